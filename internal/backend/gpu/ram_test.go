package gpu_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"strobe/internal/backend"
	"strobe/internal/backend/gpu"
	"strobe/internal/quant"
)

// ram is a device of which only the memory works: kernels do nothing but name what they would read and write. It fails
// the test when memory is used that is not there. What was given back comes again, with other bytes in it.
type ram struct {
	t          testing.TB
	live, gone map[gpu.Addr][]byte
	next       gpu.Addr
	log        []string // launches
	copies     int
	allocs     int // so far
	recordings int // not closed
	recorded   int // so far
	replayed   int
	closed     int

	room     int // bytes that are left; 0: any
	noRecord bool
	failed   error // of Record, Download and Times
	lost     error // of Wait
}

// ramBase is where addresses begin: numbers and values that kernels are given do not look like it.
const ramBase = gpu.Addr(1) << 60

func newRAM(t testing.TB) *ram {
	return &ram{t: t, live: map[gpu.Addr][]byte{}, gone: map[gpu.Addr][]byte{}, next: ramBase}
}

func (d *ram) Props() gpu.Props {
	return gpu.Props{Name: "ram", Major: 9, Units: 132, Memory: 1 << 40, SharedBlock: 227 << 10}
}
func (d *ram) Free() (free, total int)                 { return 1 << 40, 1 << 40 }
func (d *ram) Kernel(k gpu.Kernel) (gpu.Handle, error) { return k.Name(), nil }
func (d *ram) Compiling() time.Duration                { return 0 }
func (d *ram) Wait() error                             { return d.lost }
func (d *ram) Close() error                            { d.closed++; return nil }

func (d *ram) Alloc(n int) (gpu.Addr, error) {
	if n <= 0 {
		d.t.Errorf("%d bytes were asked for", n)
	}
	if d.room > 0 && d.bytes()+n > d.room {
		return 0, errors.New("ram: out of memory")
	}
	d.allocs++
	for _, a := range slices.Sorted(maps.Keys(d.gone)) {
		if b := d.gone[a]; len(b) == n {
			for i := range b {
				b[i] = 0xa5
			}
			delete(d.gone, a)
			d.live[a] = b
			return a, nil
		}
	}
	a := d.next
	d.next += gpu.Addr(n+1023) / 256 * 256
	d.live[a] = bytes.Repeat([]byte{0x5a}, n)
	return a, nil
}

func (d *ram) Release(a gpu.Addr) {
	if a == 0 {
		return
	}
	if d.live[a] == nil {
		d.t.Fatalf("memory at %x was given back that is not there", a)
	}
	d.gone[a] = d.live[a]
	delete(d.live, a)
}

func (d *ram) bytes() (n int) {
	for _, b := range d.live {
		n += len(b)
	}
	return n
}

// at is memory that must be there.
func (d *ram) at(a gpu.Addr, n int) []byte {
	d.t.Helper()
	for start, b := range d.live {
		if a >= start && a+gpu.Addr(n) <= start+gpu.Addr(len(b)) {
			return b[a-start:][:n]
		}
	}
	d.t.Fatalf("%d bytes at %x are not there", n, a)
	return nil
}

func (d *ram) Upload(dst gpu.Addr, src []byte) { copy(d.at(dst, len(src)), src) }
func (d *ram) Download(dst []byte, src gpu.Addr) error {
	copy(dst, d.at(src, len(dst)))
	return d.failed
}
func (d *ram) Copy(dst, src gpu.Addr, n int) {
	d.copies++
	copy(d.at(dst, n), d.at(src, n))
}
func (d *ram) Fill(dst gpu.Addr, v byte, n int) { copy(d.at(dst, n), bytes.Repeat([]byte{v}, n)) }

// addresses are those among some bytes.
func (d *ram) addresses(b []byte) (out []gpu.Addr) {
	for i := 0; i+8 <= len(b); i += 4 {
		if a := gpu.Addr(binary.LittleEndian.Uint64(b[i:])); a >= ramBase && a < d.next {
			out = append(out, a)
		}
	}
	return out
}

func (d *ram) Launch(l *gpu.Launch) {
	if l.Kernel == nil {
		d.t.Fatalf("%s is launched without its kernel", l.Name)
	}
	for _, a := range d.addresses(l.Args) {
		d.at(a, 0)
	}
	d.log = append(d.log, fmt.Sprint(l.Name, l.Grid, l.Threads, l.Shared, l.Args))
}

type ramRecording struct {
	d      *ram
	list   []gpu.Launch
	closed bool
}

func (d *ram) Record(ls []gpu.Launch) (gpu.Recording, error) {
	d.recorded++
	if d.noRecord || d.failed != nil {
		return nil, d.failed
	}
	d.recordings++
	r := &ramRecording{d: d}
	for _, l := range ls {
		l.Args = slices.Clone(l.Args)
		r.list = append(r.list, l)
	}
	return r, nil
}

func (r *ramRecording) Close() {
	if r.closed {
		r.d.t.Fatal("a recording was closed twice")
	}
	r.closed = true
	r.d.recordings--
}

func (d *ram) Replay(r gpu.Recording) {
	d.replayed++
	if r.(*ramRecording).closed {
		d.t.Fatal("a closed recording was replayed")
	}
	for i := range r.(*ramRecording).list {
		d.Launch(&r.(*ramRecording).list[i])
	}
}

// Times says that every launch took a millisecond.
func (d *ram) Times(ls []gpu.Launch) ([]time.Duration, error) {
	out := make([]time.Duration, len(ls))
	for i := range ls {
		d.Launch(&ls[i])
		out[i] = time.Millisecond
	}
	return out, d.failed
}

// ramBackend is a backend on such a device.
func ramBackend(t testing.TB) (*ram, *gpu.Backend) {
	t.Helper()
	d := newRAM(t)
	b, err := gpu.New(d)
	if err != nil {
		t.Fatal(err)
	}
	return d, b
}

func tensor(t testing.TB, b *gpu.Backend, rows, cols int) backend.Tensor {
	t.Helper()
	x, err := b.Alloc(rows, cols)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// randomStep is a step of operations on some tensors, and all that it is in words.
func randomStep(r *rand.Rand, b *gpu.Backend, xs []backend.Tensor, rows []backend.Ints) (what string, run func()) {
	var ops []func()
	add := func(name string, op func()) {
		what += name + "; "
		ops = append(ops, op)
	}
	for range 3 + r.IntN(4) {
		i, k, n := r.IntN(len(xs)), r.IntN(len(xs)), 1+r.IntN(4)
		x, y, s := xs[i].Slice(0, n), xs[k].Slice(0, n), float32(1+r.IntN(3))
		if r.IntN(4) == 0 {
			x, y = x.Columns(16, 32), y.Columns(16, 32)
		}
		at := fmt.Sprintf("%d %d %d rows of %d", i, k, n, x.Cols)
		switch r.IntN(5) {
		case 0:
			add("add "+at, func() { b.Add(x, x, y) })
		case 1:
			add(fmt.Sprintf("scale %s by %g", at, s), func() { b.Scale(x, y, s) })
		case 2:
			add("copy "+at, func() { b.Copy(x, y) })
		case 3:
			add("softcap "+at, func() { b.Softcap(x, s); b.Scale(x, x, s) })
			what += fmt.Sprint(s)
		case 4:
			v := rows[r.IntN(len(rows))]
			add(fmt.Sprintf("set %p of %d", v, n), func() { b.SetInts(v, make([]int32, n)) })
			add("gather "+at, func() { b.Gather(x, y, v) })
		}
	}
	return what, func() {
		b.BeginStep(nil)
		for _, op := range ops {
			op()
		}
	}
}

// TestStepsKeepTheirLaunches: a step is the same launches whenever it comes, recorded or not, and whatever came in
// between; other steps are other launches; what was recorded with memory that is gone is not run again.
func TestStepsKeepTheirLaunches(t *testing.T) {
	d, b := ramBackend(t)
	r := rand.New(rand.NewPCG(1, 41))
	xs := []backend.Tensor{tensor(t, b, 4, 64), tensor(t, b, 4, 64), tensor(t, b, 4, 64)}
	var rows []backend.Ints
	for range 2 {
		v, err := b.AllocInts(8)
		if err != nil {
			t.Fatal(err)
		}
		rows = append(rows, v)
	}
	type step struct {
		what string
		run  func()
		log  []string
		name int
		runs int
	}
	known := map[string]*step{}
	names := map[int]string{}
	var steps []*step
	run := func(s *step) {
		t.Helper()
		d.log = nil
		replayed := d.replayed
		s.run()
		name, err := b.EndStep()
		if err != nil {
			t.Fatal(err)
		}
		if s.log != nil && !slices.Equal(d.log, s.log) {
			t.Fatalf("%s is\n%s\nbefore it was\n%s", s.what, strings.Join(d.log, "\n"), strings.Join(s.log, "\n"))
		}
		if s.log == nil {
			s.log, s.name = d.log, name
			if was := names[name]; was != "" && was != s.what {
				t.Fatalf("%s has the name of %s", s.what, was)
			}
			names[name] = s.what
		}
		if name != s.name {
			t.Fatalf("%s is list %d, before it was %d", s.what, name, s.name)
		}
		// Launched, recorded and replayed, replayed.
		if s.runs++; (d.replayed > replayed) != (s.runs > 1) {
			t.Fatalf("run %d of %s: replayed %t", s.runs, s.what, d.replayed > replayed)
		}
	}
	for range 60 {
		what, fn := randomStep(r, b, xs, rows)
		if known[what] == nil {
			s := &step{what: what, run: fn}
			known[what], steps = s, append(steps, s)
			run(s)
		}
	}
	for range 400 {
		run(steps[r.IntN(len(steps))])
	}
	for _, s := range steps {
		d.log = nil
		if ok, err := b.Repeat(s.name, nil); strings.Contains(s.what, "set") == ok || err != nil {
			t.Fatalf("%s: repeated without integers: %t, %v", s.what, ok, err)
		} else if ok && !slices.Equal(d.log, s.log) {
			t.Fatalf("%s is something else when it is repeated", s.what)
		}
	}
	if d.recordings == 0 || b.Recorded() != len(steps) {
		t.Fatalf("%d recordings of %d steps, %d are kept", d.recordings, len(steps), b.Recorded())
	}
	// One tensor goes, and what follows is in its place.
	b.Free(xs[2])
	left := 0
	for _, s := range steps {
		ok, err := b.Repeat(s.name, nil)
		if err != nil {
			t.Fatal(err)
		}
		if ok {
			left++
		}
	}
	xs[2] = tensor(t, b, 8, 32)
	if left == 0 || left == len(steps) {
		t.Fatalf("%d of %d steps are left: the test says nothing", left, len(steps))
	}
	for range 100 {
		what, fn := randomStep(r, b, []backend.Tensor{xs[2], xs[2].Slice(4, 4)}, rows)
		d.log = nil
		fn()
		if strings.Contains(what, "of 32") { // columns past its end are another matter
			continue
		}
		if _, err := b.EndStep(); err != nil || len(d.log) == 0 {
			t.Fatalf("%s: %v, %d launches", what, err, len(d.log))
		}
	}
	if err := b.Close(); err != nil || d.recordings != 0 || d.closed != 1 {
		t.Errorf("%v: %d recordings are left, the device was closed %d times", err, d.recordings, d.closed)
	}
}

// TestRecordingRefused: a device without memory for a recording is asked again the next time, and its steps run
// meanwhile; one that fails to record fails the step.
func TestRecordingRefused(t *testing.T) {
	d, b := ramBackend(t)
	x := tensor(t, b, 4, 64)
	step := func() error {
		d.log = nil
		b.BeginStep(nil)
		for range 3 {
			b.Scale(x, x, 2)
		}
		_, err := b.EndStep()
		if err == nil && len(d.log) == 0 {
			t.Error("nothing was launched")
		}
		return err
	}
	d.noRecord = true
	for i := range 5 {
		if err := step(); err != nil || d.recorded != i || d.replayed != 0 {
			t.Fatalf("run %d: %v, asked %d times", i, err, d.recorded)
		}
	}
	d.noRecord = false
	if err := step(); err != nil || d.recordings != 1 || d.replayed != 1 {
		t.Errorf("with memory: %v, %d recordings, %d replays", err, d.recordings, d.replayed)
	}
	y := tensor(t, b, 4, 64)
	x = y
	if err := step(); err != nil {
		t.Fatal(err)
	}
	d.failed = errors.New("ram: recording failed")
	if err := step(); !errors.Is(err, d.failed) {
		t.Errorf("error %v, want that of the recording", err)
	}
	d.failed = nil
	if err := step(); err != nil {
		t.Errorf("after a recording failed: %v", err)
	}
	// Two operations are run and forgotten.
	kept := b.Recorded()
	for range 3 {
		b.BeginStep(nil)
		b.Scale(x, x, 2)
		b.Add(x, x, x)
		if name, err := b.EndStep(); name != 0 || err != nil || b.Recorded() != kept {
			t.Errorf("a short step is list %d of %d, error %v", name, b.Recorded(), err)
		}
	}
	b.BeginStep(nil)
	if name, err := b.EndStep(); name != 0 || err != nil {
		t.Errorf("an empty step is list %d, error %v", name, err)
	}
}

// TestTensorsOnTheHost: what is written to a view is read from it and from nowhere else; rows that follow each other
// are copied without a kernel, others by one.
func TestTensorsOnTheHost(t *testing.T) {
	d, b := ramBackend(t)
	const rows, cols = 6, 10
	x, y := tensor(t, b, rows, cols), tensor(t, b, rows, cols)
	all := make([]float32, rows*cols)
	if !slices.Equal(b.Read(x), all) {
		t.Error("new memory is not zero")
	}
	for i := range all {
		all[i] = float32(i)
	}
	b.Write(x, all)
	for name, c := range map[string]struct {
		view  func(backend.Tensor) backend.Tensor
		whole bool
	}{
		"all":     {func(x backend.Tensor) backend.Tensor { return x }, true},
		"rows":    {func(x backend.Tensor) backend.Tensor { return x.Slice(2, 3) }, true},
		"a row":   {func(x backend.Tensor) backend.Tensor { return x.Slice(5, 1).Columns(3, 4) }, true},
		"columns": {func(x backend.Tensor) backend.Tensor { return x.Slice(1, 4).Columns(3, 7) }, false},
		"one":     {func(x backend.Tensor) backend.Tensor { return x.Columns(9, 1) }, false},
	} {
		v, to := c.view(x), c.view(y)
		var want []float32
		for r := range v.Rows {
			want = append(want, all[v.Off+r*v.Stride:][:v.Cols]...)
		}
		if got := b.Read(v); !slices.Equal(got, want) {
			t.Errorf("%s: read %v, want %v", name, got, want)
		}
		// There and back, and nothing else is touched.
		b.Write(y, make([]float32, rows*cols))
		b.Write(to, want)
		sum := float32(0)
		for _, v := range b.Read(y) {
			sum += v
		}
		for _, v := range want {
			sum -= v
		}
		if !slices.Equal(b.Read(to), want) || sum != 0 {
			t.Errorf("%s: written %v, want %v; the rest is %g", name, b.Read(to), want, sum)
		}
		for _, pair := range []struct {
			dst, src backend.Tensor
			whole    bool
		}{{to, v, c.whole}, {tensor(t, b, v.Rows, v.Cols), v, c.whole}, {to, tensor(t, b, v.Rows, v.Cols), c.whole}} {
			b.Write(y, make([]float32, rows*cols))
			want := b.Read(pair.src)
			copies, log := d.copies, len(d.log)
			b.Copy(pair.dst, pair.src)
			if (d.copies > copies) != pair.whole || (len(d.log) > log) == pair.whole {
				t.Errorf("%s: copied by the device %t, by a kernel %t", name, d.copies > copies, len(d.log) > log)
			}
			if pair.whole && !slices.Equal(b.Read(pair.dst), want) {
				t.Errorf("%s: copied %v, want %v", name, b.Read(pair.dst), want)
			}
		}
	}
	v, err := b.AllocInts(5)
	if err != nil {
		t.Fatal(err)
	}
	b.SetInts(v, []int32{7, 8, 9})
	b.SetInts(v, nil)
	if got := b.Ints(v); !slices.Equal(got, []int32{7, 8, 9, 0, 0}) || v.Len() != 5 {
		t.Errorf("integers %v", got)
	}
	if first := v.First(2); first.Len() != 2 || !slices.Equal(b.Ints(first), []int32{7, 8}) {
		t.Errorf("the first two are %v", b.Ints(first))
	}
	d.failed = errors.New("ram: reading failed")
	b.Read(x)
	b.Ints(v)
	d.failed = nil
	if err := b.Sync(); err == nil || err.Error() != "ram: reading failed" {
		t.Errorf("after reading failed: %v", err)
	}
	if err := b.Sync(); err != nil {
		t.Errorf("the failure is reported twice: %v", err)
	}
	d.lost = errors.New("ram: lost")
	if err := b.Sync(); !errors.Is(err, d.lost) {
		t.Errorf("a lost device: %v", err)
	}
}

// TestWeightsComeAndGo: a weight takes what WeightBytes says, gives all of it back while it is parked, and is the same
// bytes afterwards.
func TestWeightsComeAndGo(t *testing.T) {
	d, b := ramBackend(t)
	r := rand.New(rand.NewPCG(3, 3))
	for _, typ := range []quant.Type{quant.F32, quant.Q8_0, quant.Q4_K} {
		for _, cols := range []int{256, 512} {
			m := backend.Matrix{Name: "blk.0", Type: typ, Rows: 20, Cols: cols, Experts: 3,
				Data: gpu.RandomBlocks(r, typ, 3*20*cols), Scale: []float32{1, 2, 3}}
			forgot := 0
			m.Forget = func() { forgot++ }
			before := d.bytes()
			w, err := b.Weight(m)
			if err != nil {
				t.Fatal(err)
			}
			if n := d.bytes() - before; n != b.WeightBytes(m)+4*3 || w.Bytes() != b.WeightBytes(m) || forgot != 1 ||
				w.Rows() != 20 || w.Cols() != cols || w.Experts() != 3 || w.Type() != typ {
				t.Errorf("%v: %d bytes were taken, %d expected; %d x %d of %v", typ, n, b.WeightBytes(m), w.Rows(), w.Cols(),
					w.Type())
			}
			l, err := gpu.LayoutOf(typ, 20, cols, 3, len(m.Data))
			if err != nil {
				t.Fatal(err)
			}
			packed := l.Pack(m.Data)
			there := func() bool {
				for _, b := range d.live {
					if bytes.Equal(b, packed) {
						return true
					}
				}
				return false
			}
			if !there() {
				t.Errorf("%v: other bytes are on the device", typ)
			}
			b.Park(w, w)
			b.Park(w)
			if d.bytes() != before+4*3 {
				t.Errorf("%v: %d bytes stay while it is parked", typ, d.bytes()-before)
			}
			d.room = d.bytes() + 1
			if err := b.Unpark(w, m); err == nil || !strings.Contains(err.Error(), `"blk.0"`) {
				t.Errorf("%v: without room: %v", typ, err)
			}
			d.room = 0
			if err := b.Unpark(w, m); err != nil || !there() || d.bytes() != before+4*3+w.Bytes() || forgot != 2 {
				t.Errorf("%v: back: %v, %d bytes, forgot %d times", typ, err, d.bytes()-before, forgot)
			}
		}
	}
	// Without room for the scales, or for all but them.
	m := backend.Matrix{Name: "blk.1", Type: quant.F32, Rows: 1, Cols: 4, Experts: 2, Data: make([]byte, 32),
		Scale: []float32{1, 2}}
	for _, room := range []int{1, 8} {
		d.room = d.bytes() + room
		if w, err := b.Weight(m); err == nil || w != nil {
			t.Errorf("a weight in %d bytes: %v", room, err)
		}
	}
	d.room = 0
	if n := b.WeightBytes(backend.Matrix{Type: quant.Q4_K, Rows: 1, Cols: 7, Experts: 1}); n != 0 {
		t.Errorf("a matrix that cannot be takes %d bytes", n)
	}
}

// TestProfile: profiled steps are timed kernel by kernel, the longest first, and not replayed.
func TestProfile(t *testing.T) {
	d, b := ramBackend(t)
	x := tensor(t, b, 4, 64)
	step := func() error {
		b.BeginStep(nil)
		b.Scale(x, x, 2)
		b.Scale(x, x, 3)
		b.Add(x, x, x)
		_, err := b.EndStep()
		return err
	}
	for range 3 {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	replayed := d.replayed
	times, err := b.Profile(func() error { return errors.Join(step(), step()) })
	count := 0
	for i, k := range times {
		count += k.Count
		if k.Time != time.Duration(k.Count)*time.Millisecond || i > 0 && k.Time > times[i-1].Time {
			t.Errorf("%d of %s took %v", k.Count, k.Name, k.Time)
		}
	}
	if err != nil || count != 6 || d.replayed != replayed {
		t.Errorf("%d launches timed, %d replayed, error %v", count, d.replayed-replayed, err)
	}
	failed := errors.New("failed")
	if _, err := b.Profile(func() error { return failed }); err != failed {
		t.Errorf("error %v, want that of the steps", err)
	}
	d.failed = errors.New("ram: timing failed")
	if _, err := b.Profile(step); !errors.Is(err, d.failed) {
		t.Errorf("error %v, want that of the device", err)
	}
	d.failed = nil
	if err := step(); err != nil || d.replayed != replayed+1 {
		t.Errorf("afterwards: %v, %d replays", err, d.replayed-replayed)
	}
}

// TestStatesAgainstAModel: whatever is done to recurrent states, each slot has its own values, passes are given memory
// that is theirs alone, and all of it is given back in the end.
func TestStatesAgainstAModel(t *testing.T) {
	dims := backend.DeltaDims{KHeads: 1, VHeads: 2, KDim: 16, VDim: 16, Kernel: 4, Eps: 1e-6}
	const layers = 2
	n := dims.StateValues()
	for seed := range uint64(6) {
		d := newRAM(t)
		r := rand.New(rand.NewPCG(seed, 51))
		p, err := gpu.NewStates(d, dims, layers)
		if err != nil {
			t.Fatal(err)
		}
		before := d.bytes()
		want := map[int32][]float32{} // by slot, of all layers
		room := map[int32]int{}       // rows of the tape that the next pass writes
		var slots []int32
		for step := range 200 {
			what := fmt.Sprintf("seed %d, step %d", seed, step)
			full := r.IntN(6) == 0
			if d.room = 0; full {
				d.room = d.bytes() + 1
			}
			at := r.IntN(max(1, len(slots)))
			op := r.IntN(8)
			if len(slots) == 0 {
				op = 0
			}
			switch op {
			case 0:
				s, err := p.Alloc()
				if err != nil {
					if !full || !strings.Contains(err.Error(), "recurrent memory") {
						t.Fatalf("%s: %v", what, err)
					}
					break
				}
				if want[s] != nil {
					t.Fatalf("%s: slot %d is given to two", what, s)
				}
				slots, want[s], room[s] = append(slots, s), make([]float32, layers*n), 0
			case 1:
				p.Free(slots[at])
				p.Free(slots[at]) // without effect
				delete(want, slots[at])
				slots = slices.Delete(slots, at, at+1)
			case 2:
				layer := r.IntN(layers)
				v := want[slots[at]][layer*n:][:n]
				for i := range v {
					v[i] = r.Float32()
				}
				p.Write(slots[at], layer, v)
			case 3:
				p.Clear(slots[at])
				clear(want[slots[at]])
			case 4:
				to := slots[r.IntN(len(slots))]
				p.Copy(to, slots[at])
				copy(want[to], want[slots[at]])
			case 5:
				p.Release(slots[at])
				room[slots[at]] = 0
			default:
				rows := 1 + r.IntN(20)
				if err := p.Reserve(slots[at], rows); err != nil {
					if !full {
						t.Fatalf("%s: %v", what, err)
					}
					break
				}
				pass(t, d, p, what, slots, slots[at], rows)
			}
			for s, v := range want {
				for layer := range layers {
					if !slices.Equal(p.Read(s, layer), v[layer*n:][:n]) {
						t.Fatalf("%s: layer %d of slot %d has other values", what, layer, s)
					}
				}
			}
		}
		for _, bad := range []int32{-1, 1000} {
			if _, err := p.Tables([]backend.DeltaSeg{{N: 1, Slot: bad}}, 0); err == nil {
				t.Errorf("seed %d: slot %d is there", seed, bad)
			}
		}
		if p.Close(); d.bytes() != before {
			t.Errorf("seed %d: %d bytes are not given back", seed, d.bytes()-before)
		}
	}
}

// pass makes the tables of a pass over rows of a slot: they name memory that is there, and none of another slot.
func pass(t *testing.T, d *ram, p *gpu.States, what string, slots []int32, slot int32, rows int) {
	t.Helper()
	named := map[gpu.Addr]int32{}
	note := func(s int32, tables *gpu.DeltaTables) {
		b := make([]byte, tables.Room().Bytes())
		tables.Put(b, tables.Room())
		for _, a := range d.addresses(b) {
			d.at(a, 0)
			if other, ok := named[a]; ok && other != s {
				t.Fatalf("%s: slots %d and %d have memory together", what, s, other)
			}
			named[a] = s
		}
	}
	for _, s := range slots { // a prompt turns no tape around
		tables, err := p.Tables([]backend.DeltaSeg{{N: 1, Slot: s, Prompt: true}}, 1)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		note(s, tables)
	}
	if _, err := p.Tables([]backend.DeltaSeg{{N: rows + 100, Slot: slot}}, 0); err == nil {
		t.Fatalf("%s: %d rows on a tape of fewer", what, rows+100)
	}
	tables, err := p.Tables([]backend.DeltaSeg{{N: rows, Slot: slot}}, rows)
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	note(slot, tables)
	reads := func() []byte {
		tables, err := p.Tables([]backend.DeltaSeg{{N: 1, Slot: slot, Prompt: true, Pending: 1}}, 1)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		b := make([]byte, tables.Room().Bytes())
		tables.Put(b, tables.Room())
		return b
	}
	before := reads()
	if _, err := p.Tables([]backend.DeltaSeg{{Slot: slot}}, 0); err != nil || !bytes.Equal(before, reads()) {
		t.Fatalf("%s: a pass over no rows turned the tapes around, or %v", what, err)
	}
	// What it taped may be pending for the next one, chosen or not, and no more than that.
	if err := p.Reserve(slot, 1); err != nil {
		return // the device is full
	}
	path := []int32{int32(rows - 1)}
	p.Keep(slot, path)
	d.log = nil
	if p.Settle(slot, 0); len(d.log) > 0 {
		t.Fatalf("%s: nothing was pending", what)
	}
	if p.Settle(slot, 1); len(d.log) == 0 {
		t.Fatalf("%s: nothing was launched", what)
	}
}

// TestPagesAgainstAModel: every page has its own bytes, pages that were given back come again, and what the device
// has no room for costs nothing.
func TestPagesAgainstAModel(t *testing.T) {
	layout := backend.KVLayout{Page: 64, Layers: []backend.KVDims{{Heads: 2, KeyDim: 512, ValueDim: 512, Key: quant.F32,
		Value: quant.F32}}}
	d := newRAM(t)
	p, err := gpu.NewPages(d, layout, nil)
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 61))
	want := map[int32]byte{}
	var ids []int32
	buf := make([]byte, p.PageBytes())
	check := func(what string, id int32, v byte) {
		t.Helper()
		p.ReadPage(id, buf)
		if slices.ContainsFunc([]int{0, 1, len(buf) / 2, len(buf) - 1}, func(i int) bool { return buf[i] != v }) {
			t.Fatalf("%s: page %d has other bytes", what, id)
		}
	}
	chunks := 0
	for step := range 600 {
		what := fmt.Sprintf("step %d", step)
		allocs := d.allocs
		switch op := r.IntN(6); {
		case op < 3 || len(ids) < 2:
			if d.room = 0; r.IntN(4) == 0 {
				d.room = d.bytes() + 1
			}
			id, err := p.Alloc()
			if err != nil {
				if d.room == 0 || !strings.Contains(err.Error(), "cache has no free page") {
					t.Fatalf("%s: %v", what, err)
				}
				break
			}
			if chunks += d.allocs - allocs; slices.Contains(ids, id) {
				t.Fatalf("%s: page %d is given to two", what, id)
			}
			if _, old := want[id]; !old {
				check(what+", new", id, 0)
			}
			ids = append(ids, id)
			for i := range buf {
				buf[i] = byte(step)
			}
			p.WritePage(id, buf)
			want[id] = byte(step)
		case op == 3:
			at := r.IntN(len(ids))
			p.Free(ids[at])
			ids = slices.Delete(ids, at, at+1)
		case op == 4:
			dst, src := ids[r.IntN(len(ids))], ids[r.IntN(len(ids))]
			p.Copy(dst, src)
			want[dst] = want[src]
		case op == 5:
			d.log = nil
			p.Move(make([]backend.RowMove, 1+r.IntN(600)))
			if n := len(d.log); n == 0 || n > 3 {
				t.Fatalf("%s: rows are moved by %d launches", what, n)
			}
			p.Move(nil)
		}
		if p.Used() != len(ids) {
			t.Fatalf("%s: %d pages in use, want %d", what, p.Used(), len(ids))
		}
		for range 3 {
			if len(ids) > 0 {
				id := ids[r.IntN(len(ids))]
				check(what, id, want[id])
			}
		}
	}
	if chunks < 2 {
		t.Errorf("%d chunks: the test says little", chunks)
	}
	if p.Addr(-1) != 0 {
		t.Error("a page that was dropped has an address")
	}
	d.room = 0
	before := 0
	for k := range 6 { // sequences of one step: the table of their pages grows
		if _, err := p.List(slices.Concat(ids[k:], ids[:k]), 1); err != nil {
			t.Fatal(err)
		}
		if _, entries := p.Table(); entries < before {
			t.Errorf("the table has %d entries, before it had %d", entries, before)
		} else {
			before = entries
		}
	}
	if p.Close(); d.bytes() != 0 {
		t.Errorf("%d bytes are not given back", d.bytes())
	}
	layout.Page = 32
	if _, err := gpu.NewPages(d, layout, nil); err == nil || d.bytes() != 0 {
		t.Errorf("pages of 32 tokens: %v, %d bytes are in use", err, d.bytes())
	}
	layout.Page = 64
	for _, room := range []int{1, 20000} { // for nothing, and for all but a page
		d.room = room
		if _, err := gpu.NewPages(d, layout, nil); err == nil || d.bytes() != 0 {
			t.Errorf("in %d bytes: %v, %d bytes are in use", room, err, d.bytes())
		}
	}
}

// TestNoRoomForABackend: a device without memory for what a backend needs of its own is closed again.
func TestNoRoomForABackend(t *testing.T) {
	failed := 0
	for room := 1; ; room *= 2 {
		d := newRAM(t)
		d.room = room
		b, err := gpu.New(d)
		if err == nil {
			if d.closed != 0 || b.Close() != nil || d.closed != 1 {
				t.Errorf("closed %d times", d.closed)
			}
			break
		}
		if failed++; d.closed != 1 {
			t.Errorf("%d bytes: %v, the device was closed %d times", room, err, d.closed)
		}
	}
	if failed == 0 {
		t.Error("a backend needs no memory: the test says nothing")
	}
}

// TestFreedAndRehearsed: a tensor that is freed gives its memory back, and a step that fails does so in a rehearsal,
// too.
func TestFreedAndRehearsed(t *testing.T) {
	d, b := ramBackend(t)
	before := d.bytes()
	x := tensor(t, b, 3, 5)
	if n := d.bytes() - before; n != 4*3*5 {
		t.Errorf("a tensor of 15 values takes %d bytes", n)
	}
	b.Free(x)
	b.Free(backend.Tensor{})
	if d.bytes() != before {
		t.Errorf("%d bytes are left of it", d.bytes()-before)
	}
	pool, err := b.NewStatePool(backend.DeltaDims{KHeads: 1, VHeads: 2, KDim: 128, VDim: 128, Kernel: 4, Eps: 1e-6}, 1)
	if err != nil {
		t.Fatal(err)
	}
	x = tensor(t, b, 4, 64)
	step := func(segs ...backend.DeltaSeg) error {
		b.BeginStep(&backend.Plan{State: pool, Delta: segs})
		for range 3 {
			b.Add(x, x, x)
		}
		_, err := b.EndStep()
		return err
	}
	wrong := backend.DeltaSeg{Slot: 9, N: 1}
	if err := step(wrong); err == nil {
		t.Error("a step of a slot that is not there runs")
	}
	if err := b.Rehearse(func() error { return step(wrong) }); err == nil {
		t.Error("a step of a slot that is not there is rehearsed")
	}
	d.log = nil
	if err := b.Rehearse(func() error { return step() }); err != nil || len(d.log) > 0 || b.Recorded() != 0 {
		t.Errorf("rehearsed: %v, %d launches, %d lists are kept", err, len(d.log), b.Recorded())
	}
	if err := step(); err != nil || len(d.log) == 0 {
		t.Errorf("run: %v, %d launches", err, len(d.log))
	}
}

// TestTwoGroups: a step with attention over two pools has tables of both.
func TestTwoGroups(t *testing.T) {
	d, b := ramBackend(t)
	plan := &backend.Plan{}
	var pools []*gpu.Pages
	for range 2 {
		dims := backend.KVDims{Heads: 2, KeyDim: 128, ValueDim: 128, Key: quant.F16, Value: quant.F16}
		pool, err := b.NewKVPool(backend.KVLayout{Page: 64, Layers: []backend.KVDims{dims}})
		if err != nil {
			t.Fatal(err)
		}
		page, err := pool.Alloc()
		if err != nil {
			t.Fatal(err)
		}
		p := backend.KVPlan{Pool: pool, Tables: [][]int32{{page}}}
		addRow(&p, 0, 0)
		plan.KV, pools = append(plan.KV, p), append(pools, pool.(*gpu.Pages))
	}
	kv, q := tensor(t, b, 1, 2*128), tensor(t, b, 1, 4*128)
	for run := range 3 {
		d.log = nil
		b.BeginStep(plan)
		for group := range pools {
			b.KVWrite(group, 0, kv, kv)
			b.Attention(q, q, group, 0, backend.AttnParams{Heads: 4, KVHeads: 2, Scale: 1})
		}
		if _, err := b.EndStep(); err != nil {
			t.Fatal(err)
		}
		for group, p := range pools {
			if at, entries := p.Table(); at == 0 || entries == 0 {
				t.Errorf("run %d: no pages of group %d are on the device", run, group)
			}
		}
	}
}

// TestBlockMoves: steps that were recorded before the block of what changes grew do not read where it was.
func TestBlockMoves(t *testing.T) {
	d, b := ramBackend(t)
	x := tensor(t, b, 4, 64)
	many, err := b.AllocInts(1 << 16)
	if err != nil {
		t.Fatal(err)
	}
	step := func(n int) {
		t.Helper()
		for range 3 {
			b.BeginStep(nil)
			b.SetInts(many, make([]int32, n))
			b.Gather(x, x, many)
			b.Scale(x, x, 2)
			if _, err := b.EndStep(); err != nil {
				t.Fatal(err)
			}
		}
	}
	step(4)
	lent := len(d.gone)
	step(1 << 16)
	if len(d.gone) == lent {
		t.Fatal("the block did not move: the test says nothing")
	}
	step(4)
}
