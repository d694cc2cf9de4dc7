package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"strobe/internal/backend"
	"strobe/internal/backend/cpu"
	"strobe/internal/device"
	"strobe/internal/draft/dflash"
	"strobe/internal/nn"
	"strobe/internal/pflash"
	"strobe/internal/speculate"
	"strobe/internal/testkit"
)

// lender is the processor in the guise of a GPU: it counts what its weights take, and fails the test when one that is
// parked is used. Others use all of its memory but what is left to it.
type lender struct {
	*testkit.Device
	t      testing.TB
	lent   map[backend.Weight]int
	parked map[backend.Weight]bool
	used   atomic.Int64 // bytes of weights
	left   atomic.Int64 // what others leave, with the weights
	full   atomic.Bool  // weights cannot come back
}

const lenderTotal = 1 << 36

func newLender(t testing.TB) *lender {
	d := &lender{Device: testkit.NewDevice(t, cpu.New(cpu.Options{Threads: 1})), t: t, lent: map[backend.Weight]int{},
		parked: map[backend.Weight]bool{}}
	return d
}

func (d *lender) Memory() (free, total int) { return int(d.left.Load() - d.used.Load()), lenderTotal }

func (d *lender) WeightBytes(m backend.Matrix) int { return len(m.Data) }

func (d *lender) Weight(m backend.Matrix) (backend.Weight, error) {
	w, err := d.Device.Weight(m)
	if err == nil {
		d.lent[w] = w.Bytes()
		d.used.Add(int64(w.Bytes()))
	}
	return w, err
}

func (d *lender) Park(ws ...backend.Weight) {
	for _, w := range ws {
		if d.lent[w] == 0 {
			d.t.Error("a weight that was never there was parked")
		}
		if !d.parked[w] {
			d.parked[w] = true
			d.used.Add(-int64(d.lent[w]))
		}
	}
}

func (d *lender) Unpark(w backend.Weight, m backend.Matrix) error {
	if d.full.Load() {
		return errors.New("the device is full")
	}
	if !d.parked[w] {
		d.t.Error("a weight that is there came back")
	}
	delete(d.parked, w)
	d.used.Add(int64(d.lent[w]))
	return nil
}

func (d *lender) MatMul(x backend.Tensor, ps ...backend.Product) {
	for _, p := range ps {
		if d.parked[p.W] {
			d.t.Error("a parked weight was used")
		}
	}
	d.Device.MatMul(x, ps...)
}

// messages is a log that sends the lines about drafters.
type messages chan string

func (m messages) Enabled(context.Context, slog.Level) bool { return true }
func (m messages) WithAttrs([]slog.Attr) slog.Handler       { return m }
func (m messages) WithGroup(string) slog.Handler            { return m }
func (m messages) Handle(_ context.Context, r slog.Record) error {
	if strings.HasPrefix(r.Message, "drafter") {
		s := r.Message
		r.Attrs(func(a slog.Attr) bool {
			s += " " + a.Key
			return true
		})
		m <- s
	}
	return nil
}

// next is the next line.
func (m messages) next() string {
	select {
	case s := <-m:
		return s
	case <-time.After(20 * time.Second):
		return "nothing"
	}
}

const (
	parked   = "drafter parked drafter bytes took"
	returned = "drafter back on its device drafter bytes took"
)

// lenderModel loads a pair on a lender.
func lenderModel(t *testing.T, name string, left int64, opt Options) (*Model, *lender) {
	t.Helper()
	var d *lender
	opt.Threads, opt.Device, opt.Drafter = 1, "cuda:0", testkit.Golden(t, "dflash-"+name+"/model.gguf")
	opt.Causal = dflash.CausalOff
	opt.open = func(string, device.Options) (backend.Backend, error) {
		d = newLender(t)
		d.left.Store(left)
		return d, nil
	}
	m, err := Load(testkit.Golden(t, name+"/model.gguf"), opt)
	if err != nil {
		t.Fatal(err)
	}
	return m, d
}

// short is a GPU whose first pass finds no memory, or is its last.
type short struct {
	roomy
	failed, lost bool
}

func (s *short) EndStep() (int, error) {
	if !s.failed {
		s.failed = true
		return 0, errors.New("no memory")
	}
	return s.roomy.EndStep()
}

func (s *short) Sync() error {
	if s.failed && s.lost {
		return errors.New("device lost")
	}
	return s.roomy.Sync()
}

// TestLoadShortOfMemory: a GPU that has no memory for a pass while a model is loaded may have it later; one that is
// lost is no place for a model.
func TestLoadShortOfMemory(t *testing.T) {
	for _, lost := range []bool{false, true} {
		opt := Options{Device: "cuda:0", Drafter: testkit.Golden(t, "dflash-qwen35/model.gguf")}
		opt.open = func(string, device.Options) (backend.Backend, error) {
			return &short{roomy: roomy{weighing{cpu.New(cpu.Options{Threads: 1})}, "GPU 0", ample}, lost: lost}, nil
		}
		m, err := Load(testkit.Golden(t, "qwen35/model.gguf"), opt)
		if lost {
			if err == nil {
				t.Error("a lost device was loaded on")
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		generate(t, startModel(t, m, Config{Parallel: 1}), Request{Tokens: randomPrompt(1, 20), MaxTokens: 5})
	}
}

// TestParkWhileIdle: where memory is short the drafter leaves when nobody generates and is back when somebody does,
// with the same guesses; who does not draft does not bring it back, and where it finds no room the text is the same
// without it.
func TestParkWhileIdle(t *testing.T) {
	req := Request{Tokens: randomPrompt(3, 40), MaxTokens: 20, IgnoreEOG: true, Spec: fixed, NoCache: true}
	want := plain(t, "qwen35moe", req)
	m, d := lenderModel(t, "qwen35moe", lenderTotal, Options{})
	log := make(messages, 16)
	e := startModel(t, m, Config{Parallel: 1, Log: slog.New(log)})
	all := d.used.Load()
	ask := func(what string, req Request, said ...string) Event {
		t.Helper()
		ev := generate(t, e, req)
		if !slices.Equal(ids(ev.Tokens), want) {
			t.Errorf("%s: another text", what)
		}
		for _, s := range said {
			if got := log.next(); got != s {
				t.Errorf("%s: %q was said, want %q", what, got, s)
			}
		}
		return ev
	}
	first := ask("room", req).Result.Stats
	if first.Accepted == 0 || d.used.Load() != all {
		t.Fatalf("%d guesses accepted, %d of %d bytes in use: the test says nothing", first.Accepted, d.used.Load(), all)
	}
	// Between two looks at the room, or the look after the first request might already see it.
	if err := e.do(t.Context(), 0, func(*loop) error { d.left.Store(all + lenderTotal/11); return nil }); err != nil {
		t.Fatal(err)
	}
	if got := log.next(); got != parked {
		t.Errorf("no room any more: %q was said, want %q", got, parked)
	}
	away := all - d.used.Load()
	if own := int64(m.Drafter.WeightBytes()); away != own {
		t.Errorf("%d bytes were given back; the drafter has %d", away, own)
	}
	again := ask("from the file", req, returned, parked).Result.Stats
	if again.Accepted != first.Accepted || again.Guessed != first.Guessed || again.DraftErr != nil {
		t.Errorf("%d of %d guesses accepted, want %d of %d (error %v)", again.Accepted, again.Guessed, first.Accepted,
			first.Guessed, again.DraftErr)
	}
	off := req
	off.Spec = speculate.Options{Draft: speculate.Off}
	ask("nobody drafts", off)
	d.full.Store(true)
	if s := ask("no way back", req).Result.Stats; s.DraftErr == nil || s.Accepted != 0 {
		t.Errorf("%d guesses accepted by a drafter that is not there (error %v)", s.Accepted, s.DraftErr)
	}
	d.full.Store(false)
	d.left.Store(lenderTotal)
	if s := ask("room again", req, returned).Result.Stats; s.Accepted != first.Accepted {
		t.Errorf("%d guesses accepted, want %d", s.Accepted, first.Accepted)
	}
	if len(log) > 0 {
		t.Errorf("%q was said besides", <-log)
	}
}

// TestParkForRoom: a text that is refused memory gets the drafter's, which stays away until nobody generates.
func TestParkForRoom(t *testing.T) {
	req := Request{Tokens: randomPrompt(5, 50), MaxTokens: 60, IgnoreEOG: true, Spec: fixed, NoCache: true}
	want := plain(t, "qwen35moe", req)
	m, d := lenderModel(t, "qwen35moe", lenderTotal, Options{})
	log := make(messages, 16)
	e := startModel(t, m, Config{Parallel: 2, Log: slog.New(log)})
	first := generate(t, e, req).Result.Stats
	all := d.used.Load()
	armed, refused, other := false, 0, make(chan *Generation, 1)
	big := req
	big.Constraint = watch(func() { // for each token, on the engine's goroutine
		switch {
		case !armed:
			armed = true
			d.left.Store(all + 1000)
			d.Fail = func() error {
				if d.used.Load() < all || d.left.Load() > all+1000 {
					return nil
				}
				refused++
				return fmt.Errorf("out of memory: %d bytes of weights", all)
			}
		case refused > 0 && len(other) == 0: // another one comes while there is no room
			other <- submit(t, e, req)
		}
	})
	ev := generate(t, e, big)
	second := wait(t, <-other)
	if !slices.Equal(ids(ev.Tokens), want) || !slices.Equal(ids(second.Tokens), want) || ev.Result.Stats.DraftErr == nil {
		t.Errorf("%d and %d tokens of %d; drafting ended with %v", len(ev.Tokens), len(second.Tokens), len(want),
			ev.Result.Stats.DraftErr)
	}
	if s := second.Result.Stats; !errors.Is(s.DraftErr, nn.ErrHeld) || s.Accepted > 0 {
		t.Errorf("beside it %d guesses accepted, drafting ended with %v", s.Accepted, s.DraftErr)
	}
	if got := log.next(); got != parked || refused == 0 {
		t.Errorf("%q was said after %d refusals", got, refused)
	}
	d.left.Store(lenderTotal)
	if s := generate(t, e, req).Result.Stats; s.Accepted != first.Accepted || s.DraftErr != nil {
		t.Errorf("afterwards %d guesses accepted, want %d (error %v)", s.Accepted, first.Accepted, s.DraftErr)
	}
	if got := log.next(); got != returned {
		t.Errorf("%q was said, want %q", got, returned)
	}
}

// TestParkAtLoad: where memory is short the drafter leaves before a scorer comes, and that is said.
func TestParkAtLoad(t *testing.T) {
	said := ""
	m, d := lenderModel(t, "qwen35", 2*reserve, Options{Scorer: "self",
		Prefill: pflash.Options{Mode: pflash.Always, Device: "cpu"},
		Say:     func(s string) { said = s }})
	defer m.Close()
	if !strings.HasPrefix(said, "drafter dflash parked in ") || len(d.parked) == 0 {
		t.Errorf("%d weights parked, said %q", len(d.parked), said)
	}
}

// TestNoPark: whoever wants the drafter to stay has it stay.
func TestNoPark(t *testing.T) {
	m, d := lenderModel(t, "qwen35moe", lenderTotal, Options{NoPark: true})
	all := d.used.Load()
	d.left.Store(all)
	log := make(messages, 16)
	e := startModel(t, m, Config{Parallel: 1, Log: slog.New(log)})
	generate(t, e, Request{Tokens: randomPrompt(3, 40), MaxTokens: 5, IgnoreEOG: true, Spec: fixed})
	if err := e.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if d.used.Load() != all || len(log) > 0 {
		t.Errorf("%d of %d bytes are there, %d lines about it", d.used.Load(), all, len(log))
	}
}
