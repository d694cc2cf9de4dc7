package gpu_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"strobe/internal/backend"
	"strobe/internal/backend/gpu"
	"strobe/internal/cache"
	"strobe/internal/draft"
	"strobe/internal/draft/dflash"
	"strobe/internal/draft/mtp"
	"strobe/internal/gguf"
	"strobe/internal/model"
	"strobe/internal/nn"
	"strobe/internal/quant"
	"strobe/internal/sample"
	"strobe/internal/speculate"
	"strobe/internal/synth"
	"strobe/internal/testkit"
	"strobe/internal/testkit/edit"
)

// idle is a device that does nothing, to see what the host does.
type idle struct{ next gpu.Addr }

func (d *idle) Props() gpu.Props {
	return gpu.Props{Name: "idle", Major: 9, Units: 132, Memory: 1 << 40, SharedBlock: 227 << 10}
}
func (d *idle) Free() (free, total int) { return 1 << 40, 1 << 40 }
func (d *idle) Alloc(bytes int) (gpu.Addr, error) {
	d.next += gpu.Addr(bytes+511) / 256 * 256
	return d.next - gpu.Addr(bytes+511)/256*256 + 1<<20, nil
}
func (d *idle) Release(gpu.Addr)                        {}
func (d *idle) Upload(gpu.Addr, []byte)                 {}
func (d *idle) Download([]byte, gpu.Addr) error         { return nil }
func (d *idle) Copy(gpu.Addr, gpu.Addr, int)            {}
func (d *idle) Fill(gpu.Addr, byte, int)                {}
func (d *idle) Kernel(k gpu.Kernel) (gpu.Handle, error) { return k.Name(), nil }
func (d *idle) Compiling() time.Duration                { return 0 }
func (d *idle) Launch(*gpu.Launch)                      {}
func (d *idle) Record([]gpu.Launch) (gpu.Recording, error) {
	return d, nil
}
func (d *idle) Replay(gpu.Recording) {}
func (d *idle) Wait() error          { return nil }
func (d *idle) Close()               {}

type idleDriver struct{ *idle }

func (d idleDriver) Close() error { return nil }

// modelOn opens a file on a device of a driver.
func modelOn(t testing.TB, d gpu.Driver, path string, opt model.Options) *model.Model {
	t.Helper()
	dev, err := gpu.New(d)
	if err != nil {
		t.Fatal(err)
	}
	m, err := model.Open(opened(t, path), dev, opt)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func opened(t testing.TB, path string) *gguf.File {
	t.Helper()
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// BenchmarkHost times the host's part of a decoding pass, per layer.
func BenchmarkHost(b *testing.B) {
	m := modelOn(b, idleDriver{&idle{}}, testkit.Golden(b, "qwen35/model.gguf"), model.Options{})
	seq := m.NewSeq()
	tokens := make([]int32, 1)
	for b.Loop() {
		if _, err := m.Forward([]model.Segment{{Seq: seq, Tokens: tokens, Logits: model.LogitsAll,
			Want: sample.WantBest}}); err != nil {
			b.Fatal(err)
		}
		if err := seq.Commit(nil); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*m.Layers), "ns/layer")
}

// TestReplay: a pass that comes again is not lowered again, whatever the sequences do.
func TestReplay(t *testing.T) {
	d := &counting{idleDriver: idleDriver{&idle{}}}
	m := modelOn(t, d, testkit.Golden(t, "qwen35moe/model.gguf"), model.Options{})
	seq := m.NewSeq()
	for i := range 60 {
		if _, err := m.Forward([]model.Segment{{Seq: seq, Tokens: []int32{int32(i)}, Logits: model.LogitsAll,
			Want: sample.WantBest}}); err != nil {
			t.Fatal(err)
		}
		if err := seq.CommitAll(); err != nil {
			t.Fatal(err)
		}
	}
	// Pending rows, page tables and tapes change from pass to pass; the launches do not.
	if d.recorded != 1 || d.replayed != 59 {
		t.Errorf("%d recordings and %d replays of 60 equal passes; want 1 and 59", d.recorded, d.replayed)
	}
}

// TestManyStreamsReplay: passes of several streams whose rows differ from round to round are replayed but for the first
// ones of their sizes.
func TestManyStreamsReplay(t *testing.T) {
	d := &counting{idleDriver: idleDriver{&idle{}}}
	m := modelOn(t, d, testkit.Golden(t, "qwen35/model.gguf"), model.Options{})
	var seqs []*cache.Seq
	for range 8 {
		seqs = append(seqs, m.NewSeq())
	}
	r := rand.New(rand.NewPCG(1, 2))
	const rounds = 300
	for range rounds {
		var segs []model.Segment
		for _, s := range seqs[:1+r.IntN(8)] {
			segs = append(segs, model.Segment{Seq: s, Tokens: make([]int32, 1+r.IntN(7)), Logits: model.LogitsAll,
				Want: sample.WantBest})
		}
		if _, err := m.Forward(segs); err != nil {
			t.Fatal(err)
		}
		for _, g := range segs {
			if err := g.Seq.CommitFirst(1); err != nil {
				t.Fatal(err)
			}
		}
	}
	if d.replayed < rounds*3/4 || d.recorded > 50 {
		t.Errorf("%d of %d passes were replayed, with %d recordings", d.replayed, rounds, d.recorded)
	}
}

// TestDraftsReplay: a draft whose guesses follow from each other, and telling the drafter of tokens, are recorded once
// for all sequences, although each has its state elsewhere.
func TestDraftsReplay(t *testing.T) {
	d := &counting{idleDriver: idleDriver{&idle{}}}
	m := modelOn(t, d, edit.MTP(t, "qwen35").Write(t), model.Options{})
	drafter, err := mtp.Open(m.File(), m, mtp.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Capture(drafter.Capture()); err != nil {
		t.Fatal(err)
	}
	sequence := func() {
		seq, ctx := m.NewSeq(), drafter.NewSeq()
		defer seq.Close()
		defer ctx.Close()
		for i := range 30 {
			tokens := make([]int32, 1+i%3)
			out, err := m.Forward([]model.Segment{{Seq: seq, Tokens: tokens, Logits: model.LogitsAll, Want: sample.WantBest}})
			if err == nil {
				err = seq.CommitAll()
			}
			if err == nil {
				rows := []int32{0, 1, 2}[:len(tokens)]
				err = drafter.Extend(out.Features, []draft.Rows{{Seq: ctx, Tokens: tokens, Rows: rows}})
			}
			if err == nil {
				_, err = drafter.Draft([]draft.Request{{Seq: ctx, Target: seq, N: 8}}, 4)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	sequence()
	sequence()
	d.recorded, d.replayed = 0, 0
	sequence()
	if d.recorded > 0 || d.replayed != 3*30 {
		t.Errorf("%d recordings and %d replays of 90 passes; want none and 90", d.recorded, d.replayed)
	}
}

// lending is a device whose memory is counted. It fails the test when a launch names memory that was given back.
type lending struct {
	idleDriver
	t    testing.TB
	lent map[gpu.Addr]int
	gone map[gpu.Addr]int // addresses do not come again
}

func newLending(t testing.TB) *lending {
	return &lending{idleDriver: idleDriver{&idle{}}, t: t, lent: map[gpu.Addr]int{}, gone: map[gpu.Addr]int{}}
}

func (d *lending) Alloc(bytes int) (gpu.Addr, error) {
	a, err := d.idleDriver.Alloc(bytes)
	d.lent[a] = bytes
	return a, err
}

func (d *lending) Release(a gpu.Addr) {
	d.gone[a] = d.lent[a]
	delete(d.lent, a)
}

func (d *lending) bytes() (n int) {
	for _, size := range d.lent {
		n += size
	}
	return n
}

func (d *lending) Launch(l *gpu.Launch) {
	for i := 0; i+8 <= len(l.Args); i += 8 {
		at := gpu.Addr(binary.LittleEndian.Uint64(l.Args[i:]))
		for a, size := range d.gone {
			if at >= a && at < a+gpu.Addr(size) {
				d.t.Fatalf("%s names memory that was given back", l.Name)
			}
		}
	}
}

func (d *lending) Record(ls []gpu.Launch) (gpu.Recording, error) { return launches{d.idle, ls}, nil }

func (d *lending) Replay(r gpu.Recording) {
	for i := range r.(launches).list {
		d.Launch(&r.(launches).list[i])
	}
}

// launches is a recording that knows what it launches.
type launches struct {
	*idle
	list []gpu.Launch
}

// TestParked: drafters give the memory of their weights back, all of it, and go on with others; what was recorded with
// the old ones is not run again.
func TestParked(t *testing.T) {
	for _, kind := range []string{"dflash", "mtp"} {
		d := newLending(t)
		target := testkit.Golden(t, "qwen35/model.gguf")
		if kind == "mtp" {
			target = edit.MTP(t, "qwen35").Write(t)
		}
		m := modelOn(t, d, target, model.Options{})
		before := d.bytes()
		var err error
		var src interface {
			draft.Source
			Weights() *nn.Weights
		}
		if kind == "dflash" {
			src, err = dflash.Open(opened(t, testkit.Golden(t, "dflash-qwen35/model.gguf")), m, dflash.Options{})
		} else {
			src, err = mtp.Open(m.File(), m, mtp.Options{})
		}
		if err != nil {
			t.Fatal(err)
		}
		bound := d.bytes() - before
		if err := m.Capture(src.Capture()); err != nil {
			t.Fatal(err)
		}
		seq, ctx := m.NewSeq(), src.NewContext()
		rounds := func() {
			for i := range 12 {
				tokens := []int32{int32(1 + i)}
				out, err := m.Forward([]model.Segment{{Seq: seq, Tokens: tokens, Logits: model.LogitsAll, Want: sample.WantBest}})
				if err == nil {
					err = seq.CommitAll()
				}
				if err == nil {
					err = src.Extend(out.Features, []draft.Rows{{Seq: ctx, Tokens: tokens, Rows: []int32{0}}})
				}
				if err == nil {
					_, err = src.Draft([]draft.Request{{Seq: ctx, Target: seq, N: 4}}, 2)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
		}
		rounds()
		returned := 0
		src.Weights().Returned = func(bytes int, _ time.Duration) { returned = bytes }
		used := d.bytes()
		parked := src.Weights().Park()
		if used-d.bytes() != parked || parked < bound/2 || parked > bound {
			t.Errorf("%s: %d of %d bytes parked, the device got %d back", kind, parked, bound, used-d.bytes())
		}
		if src.Weights().Park() != 0 {
			t.Errorf("%s: parked twice", kind)
		}
		rounds()
		if returned != parked || d.bytes() != used {
			t.Errorf("%s: %d of %d bytes came back; %d are in use, %d were before", kind, returned, parked, d.bytes(), used)
		}
	}
}

// TestParkedWithoutRoom: weights that find no memory when they are to come back stay parked, all of them, and the next
// pass tries again.
func TestParkedWithoutRoom(t *testing.T) {
	d := &failing{idleDriver: idleDriver{&idle{}}}
	m := modelOn(t, d, edit.MTP(t, "qwen35").Write(t), model.Options{})
	drafter, err := mtp.Open(m.File(), m, mtp.Options{})
	if err != nil {
		t.Fatal(err)
	}
	w := drafter.Weights()
	refused := 0
	for n := 1; ; n++ {
		w.Park()
		d.left = n
		if err := w.Return(); d.left > 0 {
			if err != nil {
				t.Fatal(err)
			}
			break // there are fewer
		} else if err == nil || !strings.Contains(err.Error(), "out of memory") || len(w.Devices()) != 0 {
			t.Fatalf("without memory for weight %d: error %v", n, err)
		}
		refused++
		d.left = 0
		w.Hold(true)
		if err := w.Return(); !errors.Is(err, nn.ErrHeld) {
			t.Fatalf("held: error %v", err)
		}
		w.Hold(false)
		if err := w.Return(); err != nil || len(w.Devices()) != 1 {
			t.Fatalf("with memory again: error %v", err)
		}
	}
	if refused < 5 {
		t.Errorf("%d allocations were refused; the test says nothing", refused)
	}
}

// naming remembers the kernels that were compiled, and counts what ran.
type naming struct {
	idleDriver
	names map[string]bool
	fresh []string // since they were last looked at
	ran   int
}

func (d *naming) Prepare(ls []gpu.Launch) error {
	for i := range ls {
		if name := ls[i].Kernel.(string); !d.names[name] {
			d.names[name] = true
			d.fresh = append(d.fresh, name)
		}
	}
	return nil
}

func (d *naming) Launch(l *gpu.Launch) {
	d.ran++
	d.Prepare([]gpu.Launch{*l})
}

func (d *naming) Replay(gpu.Recording) { d.ran++ }

// TestRehearse: what is rehearsed does not run, and its kernels are compiled.
func TestRehearse(t *testing.T) {
	d := &naming{idleDriver: idleDriver{&idle{}}, names: map[string]bool{}}
	m := modelOn(t, d, testkit.Golden(t, "qwen35/model.gguf"), model.Options{})
	seq := m.NewSeq()
	pass := func() error {
		seg := model.Segment{Seq: seq, Tokens: make([]int32, 3), Logits: model.LogitsAll, Want: sample.WantBest}
		if _, err := m.Forward([]model.Segment{seg}); err != nil {
			return err
		}
		return seq.CommitAll()
	}
	passes := func() error {
		for range 4 { // a step that comes again is rehearsed again
			if err := pass(); err != nil {
				return err
			}
		}
		return nil
	}
	dev := m.Backend().(backend.Compiler)
	rehearse := func(known bool) {
		t.Helper()
		d.fresh, d.ran = nil, 0
		if err := dev.Rehearse(passes); err != nil {
			t.Fatal(err)
		}
		if d.ran > 0 || (len(d.fresh) == 0) != known {
			t.Errorf("%d launches and kernels %v; known before: %t", d.ran, d.fresh, known)
		}
	}
	rehearse(false)
	d.fresh = nil
	if err := passes(); err != nil || d.ran == 0 || len(d.fresh) > 0 {
		t.Errorf("after a rehearsal: error %v, %d launches, further kernels %v", err, d.ran, d.fresh)
	}
	rehearse(true)
	failed := errors.New("failed")
	if err := dev.Rehearse(func() error { return failed }); err != failed {
		t.Errorf("error %v, want that of the passes", err)
	}
	d.ran = 0
	if err := pass(); err != nil || d.ran == 0 {
		t.Errorf("after a rehearsal that failed: error %v, %d launches", err, d.ran)
	}
}

// TestCalibrateCompilesAll: a model that was calibrated needs no further kernel for chains and trees of guesses,
// sampled tokens, prompts and drafts.
func TestCalibrateCompilesAll(t *testing.T) {
	for _, shape := range []string{"tiny-qwen35", "tiny-qwen35moe", "tiny-gemma4", "tiny-gemma4moe"} {
		file := func(shape, quant string) string {
			path := filepath.Join(t.TempDir(), "model.gguf")
			if err := synth.Write(t.Context(), path, shape, quant, 1, synth.Options{}); err != nil {
				t.Fatal(err)
			}
			return path
		}
		d := &naming{idleDriver: idleDriver{&idle{}}, names: map[string]bool{}}
		m := modelOn(t, d, file(shape, "q4_k_m"), model.Options{})
		drafter, err := dflash.Open(opened(t, file(shape+"-dflash", "q8_0")), m, dflash.Options{})
		if err != nil {
			t.Fatal(err)
		}
		r, err := speculate.NewRunner(m, drafter)
		if err == nil {
			err = r.Calibrate(-1) // nothing but rehearsals and a pass
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(d.fresh) < 20 {
			t.Fatalf("%s: %d kernels; the test says nothing", shape, len(d.fresh))
		}
		d.fresh = nil
		pass := func(what string, seq *cache.Seq, seg model.Segment) {
			n := len(seg.Tokens)
			seg.Seq = seq
			out, err := m.Forward([]model.Segment{seg})
			if err == nil && seg.Parents == nil {
				err = seq.CommitAll()
			} else if err == nil {
				err = seq.Commit([]int32{0, 2})
			}
			if err == nil && seg.Parents == nil {
				ctx, rows := drafter.NewContext(), make([]int32, n)
				for i := range rows {
					rows[i] = int32(i)
				}
				err = drafter.Extend(out.Features, []draft.Rows{{Seq: ctx, Tokens: seg.Tokens, Rows: rows}})
				if err == nil {
					_, err = drafter.Draft([]draft.Request{{Seq: ctx, Target: seq, N: 1 + n%drafter.Max()}}, 4)
				}
				ctx.Close()
			}
			if err != nil {
				t.Fatal(err)
			}
			if len(d.fresh) > 0 {
				t.Errorf("%s: %s of %d rows: kernels %v", shape, what, n, d.fresh)
				d.fresh = nil
			}
		}
		for _, n := range []int{20, 64, 65, 100, 500, model.MaxRows} {
			seq := m.NewSeq()
			pass("prompt", seq, model.Segment{Tokens: make([]int32, n), Prompt: true, Logits: model.LogitsLast})
			pass("a token after a prompt", seq, model.Segment{Tokens: []int32{1}, Logits: model.LogitsAll,
				Want: sample.WantBest})
			seq.Close()
		}
		for n := 1; n <= 64; n++ {
			seq, parents := m.NewSeq(), make([]int32, n)
			for i := range parents {
				parents[i] = int32(i+1)/2 - 1
			}
			pass("chain", seq, model.Segment{Tokens: make([]int32, n), Logits: model.LogitsAll, Want: sample.WantBest})
			pass("sampled", seq, model.Segment{Tokens: make([]int32, n), Logits: model.LogitsAll})
			if fork, err := seq.Fork(); err != nil {
				t.Fatal(err)
			} else {
				fork.Close()
			}
			if n > 2 {
				pass("tree", seq, model.Segment{Tokens: make([]int32, n), Parents: parents, Logits: model.LogitsAll,
					Want: sample.WantBest})
			}
			seq.Close()
		}
	}
}

// BenchmarkRound times the host's part of a round of speculation: draft, verification and commit.
func BenchmarkRound(b *testing.B) {
	m := modelOn(b, idleDriver{&idle{}}, testkit.Golden(b, "qwen35/model.gguf"), model.Options{})
	d, err := dflash.Open(opened(b, testkit.Golden(b, "dflash-qwen35/model.gguf")), m,
		dflash.Options{Causal: dflash.CausalOff})
	if err != nil {
		b.Fatal(err)
	}
	r, err := speculate.NewRunner(m, d)
	if err != nil {
		b.Fatal(err)
	}
	var s *speculate.Stream
	for b.Loop() {
		if s == nil || s.Done() {
			if s != nil {
				s.Close()
				s.Config.Seq.Close()
				speculate.CloseContexts(s.Contexts)
			}
			s, err = r.NewStream(speculate.Config{Options: speculate.Options{Fixed: true, Synthetic: 4}, Seq: m.NewSeq(),
				Contexts: r.NewContexts(), Prompt: []int32{1}, Sampler: sample.New(sample.Params{}, m.Vocab),
				Emit: func(speculate.Token) bool { return true }})
			if err != nil {
				b.Fatal(err)
			}
		}
		if err := r.Step([]*speculate.Stream{s}, 16); err != nil {
			b.Fatal(err)
		}
	}
}

// counting counts recordings and replays.
type counting struct {
	idleDriver
	recorded, replayed int
}

func (d *counting) Record(ls []gpu.Launch) (gpu.Recording, error) {
	d.recorded++
	return d.idleDriver.Record(ls)
}
func (d *counting) Replay(gpu.Recording) { d.replayed++ }

// failing has no memory for the allocation that brings left to 0, and is lost if lost is set.
type failing struct {
	idleDriver
	left int
	lost error
}

func (d *failing) Alloc(bytes int) (gpu.Addr, error) {
	if d.left--; d.left == 0 {
		return 0, fmt.Errorf("idle: allocating %d bytes: out of memory", bytes)
	}
	return d.idleDriver.Alloc(bytes)
}

func (d *failing) Wait() error { return d.lost }

// TestOutOfMemory: a pass that finds no memory, whichever allocation it is, says so, and the next one is as good as
// any. A device that is lost stays so.
func TestOutOfMemory(t *testing.T) {
	f, err := gguf.Open(testkit.Golden(t, "qwen35moe/model.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	refused := 0
	for n := 1; ; n++ {
		d := &failing{idleDriver: idleDriver{&idle{}}}
		dev, err := gpu.New(d)
		if err != nil {
			t.Fatal(err)
		}
		m, err := model.Open(f, dev, model.Options{})
		if err != nil {
			t.Fatal(err)
		}
		pass := func() error {
			seq := m.NewSeq()
			defer seq.Close()
			if _, err := m.Forward([]model.Segment{{Seq: seq, Tokens: []int32{1, 2, 3}, Logits: model.LogitsAll,
				Want: sample.WantBest}}); err != nil {
				return err
			}
			return m.Sync()
		}
		d.left = n
		if err = pass(); d.left > 0 {
			break // there are fewer
		}
		refused++
		if err == nil || !strings.Contains(err.Error(), "idle: allocating ") {
			t.Fatalf("without memory for allocation %d of a pass: error %v", n, err)
		}
		_ = m.Sync() // of a pass that was given up in Forward
		if err := pass(); err != nil {
			t.Fatalf("after allocation %d had failed: %v", n, err)
		}
		d.lost = errors.New("idle: waiting: the device is gone")
		for range 2 {
			if err := pass(); !errors.Is(err, d.lost) {
				t.Fatalf("on a lost device: error %v", err)
			}
		}
	}
	if refused < 5 {
		t.Errorf("a pass has %d allocations: the test sees little", refused)
	}
}

// listing keeps what is launched.
type listing struct {
	idleDriver
	launches []gpu.Launch
}

func (d *listing) Launch(l *gpu.Launch) { d.launches = append(d.launches, *l) }

// TestInPlaceNorm: a product that is normalised where it lies and multiplied again, as a drafter's context is, is
// packed into other memory than its pieces, which the same kernel reads.
func TestInPlaceNorm(t *testing.T) {
	d := &listing{idleDriver: idleDriver{&idle{}}}
	dev, err := gpu.New(d)
	if err != nil {
		t.Fatal(err)
	}
	const n = 512
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	bind := func() backend.Weight {
		w, err := dev.Weight(backend.Matrix{Type: quant.Q4_K, Rows: n, Cols: n, Experts: 1,
			Data: make([]byte, n*quant.Q4_K.RowBytes(n))})
		must(err)
		return w
	}
	norm, err := dev.Vector(make([]float32, n))
	must(err)
	x, err := dev.Alloc(3, n)
	must(err)
	c, err := dev.Alloc(3, n)
	must(err)
	y, err := dev.Alloc(3, n)
	must(err)
	first, second := bind(), bind()
	dev.BeginStep(nil)
	dev.MatMul(x, backend.Product{W: first, Y: c})
	dev.RMSNorm(c, c, norm, 1e-6)
	dev.MatMul(c, backend.Product{W: second, Y: y})
	dev.EndStep()
	must(dev.Sync())
	for _, l := range d.launches {
		if l.Name != "add_norm" && l.Name != "add_pack" {
			continue
		}
		// The structures begin with where packed rows go (16 bytes); then comes the input.
		packed, pieces := binary.LittleEndian.Uint64(l.Args), binary.LittleEndian.Uint64(l.Args[16:])
		if packed == pieces {
			t.Errorf("%s packs into the pieces it reads", l.Name)
		}
		return
	}
	t.Error("the norm was not packed by the kernel that computes it")
}

// TestSweepGrows: a prompt that runs layer by layer needs ever larger blocks for its tables, and the list of its first
// layer is the only one there is when the first of them is given up.
func TestSweepGrows(t *testing.T) {
	m := modelOn(t, idleDriver{&idle{}}, testkit.Golden(t, "qwen3/model.gguf"), model.Options{SweepOnly: true})
	layers := 0
	err := m.Sweep(t.Context(), model.Sweep{Tokens: make([]int32, 20_000), Queries: 8,
		Layer: func(q, k backend.Tensor, p backend.AttnParams) error { layers++; return nil }})
	if err != nil || layers != m.Layers {
		t.Errorf("%d of %d layers: %v", layers, m.Layers, err)
	}
}
