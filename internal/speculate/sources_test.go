package speculate

import (
	"errors"
	"fmt"
	"testing"

	"strobe/internal/backend"
	"strobe/internal/backend/cpu"
	"strobe/internal/cache"
	"strobe/internal/draft"
	"strobe/internal/draft/ngram"
	"strobe/internal/model"
)

// TestSeveralSources: sources with contexts of their own follow the same streams, each with the layers it asked for,
// and a stream that names one is drafted for by that one alone.
func TestSeveralSources(t *testing.T) {
	m := target(t, "qwen35")
	in := prompt(30)
	want := plain(t, m, greedy{}, in, 60)
	a := record(t, m, along(in, want.out, func(i int) bool { return i%4 == 3 }))
	b := record(t, m, along(in, want.out, func(i int) bool { return i%3 == 2 }))
	a.name, a.layers = "first", []int{0, m.Layers - 1}
	b.name, b.layers = "second", []int{m.Layers - 2}
	r, err := NewRunner(m, a, ngram.Source{}, b)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{Auto, "first", "second", "ngram", Off} {
		a.n, b.n = 0, 0
		opt := Options{Draft: name, Fixed: true, Tree: TreeOff}
		var fs []*flow
		for range 3 {
			fs = append(fs, start(t, r, opt, greedy{}, in, 60))
			step(t, r, 13, fs...)
		}
		finish(t, r, 13, fs...)
		for i, f := range fs {
			what := fmt.Sprintf("%q, stream %d", name, i)
			sameLogits(t, what, f, want)
			for _, x := range []struct {
				d   *recorder
				ctx draft.Context
			}{{a, f.Contexts[0]}, {b, f.Contexts[2]}} {
				if used := name == Auto || name == x.d.name; used != (x.d.n > 0) {
					t.Errorf("%s: %s was asked %d times", what, x.d.name, x.d.n)
				} else if used {
					x.d.check(t, x.ctx.(*cache.Seq), f.text(), what+", "+x.d.name)
				}
			}
			if st := f.Stats(); name == Auto && (st.BySource["first"] == 0 || st.BySource["second"] == 0) {
				t.Errorf("%s: rounds by source %v: both should have been better at times", what, st.BySource)
			}
		}
		if err := r.Capture(); err != nil { // looking at features changed it
			t.Fatal(err)
		}
	}
}

// TestOneSourceFails: the others go on.
func TestOneSourceFails(t *testing.T) {
	m := target(t, "qwen35")
	in := prompt(9)
	want := plain(t, m, greedy{}, in, 40)
	a := script(t, m, along(in, want.out, nil))
	b := script(t, m, along(in, want.out, nil))
	a.name, b.name = "first", "second"
	a.err = errors.New("device lost")
	r, err := NewRunner(m, a, b)
	if err != nil {
		t.Fatal(err)
	}
	f := start(t, r, Options{Fixed: true, Tree: TreeOff}, greedy{}, in, 40)
	for !f.Done() {
		step(t, r, 16, f)
	}
	sameLogits(t, "with a failed source", f, want)
	st := f.Stats()
	if a.n != 1 || b.n < 3 || st.DraftErr == nil || st.DraftErr.Error() != "first: device lost" ||
		st.BySource["second"] == 0 {
		t.Errorf("asked %d and %d times, error %v, rounds by source %v", a.n, b.n, st.DraftErr, st.BySource)
	}
}

// TestUnknownSource: a stream can only be drafted for by what is loaded.
func TestUnknownSource(t *testing.T) {
	m := target(t, "qwen35")
	r := runner(t, m, nil)
	for name, ok := range map[string]bool{Auto: true, Off: true, "ngram": true, "dflash": false, "auto": false} {
		_, err := r.NewStream(Config{Options: Options{Draft: name}, Seq: m.NewSeq(), Prompt: prompt(3)})
		if (err == nil) != ok || !ok && !errors.Is(err, ErrNoSource) {
			t.Errorf("%q: error %v", name, err)
		}
	}
	if err := r.Check("mtp"); err == nil || err.Error() != `draft source "mtp" is not loaded: want auto, off or ngram` {
		t.Errorf("error %v", err)
	}
}

// moves counts how often anything is moved by steps that are no passes.
type moves struct {
	backend.Backend
	pass bool
	n    int
}

func (m *moves) BeginStep(p *backend.Plan) { m.pass = p != nil; m.Backend.BeginStep(p) }
func (m *moves) EndStep()                  { m.pass = false; m.Backend.EndStep() }

func (m *moves) Gather(dst, src backend.Tensor, rows backend.Ints) {
	if !m.pass {
		m.n++
	}
	m.Backend.Gather(dst, src, rows)
}

func (m *moves) Copy(dst, src backend.Tensor) {
	if !m.pass {
		m.n++
	}
	m.Backend.Copy(dst, src)
}

// TestFeaturesMoveAtOnce: the features of all accepted rows of a step are put aside in one operation, however many
// streams share it.
func TestFeaturesMoveAtOnce(t *testing.T) {
	b := &moves{Backend: cpu.New(cpu.Options{Threads: 1})}
	defer b.Close()
	m, err := model.Open(open(t, "qwen3/model.gguf"), b, model.Options{})
	if err != nil {
		t.Fatal(err)
	}
	in := prompt(9)
	want := plain(t, m, greedy{}, in, 30)
	d := record(t, m, along(in, want.out, nil))
	r := runner(t, m, d)
	var fs []*flow
	for range 4 {
		fs = append(fs, start(t, r, chain, greedy{}, in, 30))
	}
	step(t, r, 64, fs...)
	b.n = 0
	step(t, r, 64, fs...)
	if b.n != 1 || r.used != 4*16 {
		t.Errorf("%d rows moved in %d operations; want a whole block and the last token of each of 4 streams in one", r.used,
			b.n)
	}
	finish(t, r, 64, fs...)
	for i, f := range fs {
		d.check(t, f.draftSeq, f.text(), fmt.Sprintf("stream %d", i))
	}
}
