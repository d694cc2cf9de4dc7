package nn

import (
	"errors"
	"slices"
	"testing"

	"strobe/internal/backend"
	"strobe/internal/backend/cpu"
	"strobe/internal/cache"
)

// recorder is a device that can run steps again: it counts steps, and repeats only those it knows.
type recorder struct {
	backend.Backend
	steps   int
	forgets bool
	fails   error
	ints    [][]int32 // of the last repeated step
}

func (r *recorder) Pad(n int) int           { return n }
func (r *recorder) BeginStep(*backend.Plan) {}
func (r *recorder) EndStep() (int, error) {
	r.steps++
	return r.steps, nil
}

func (r *recorder) Repeat(name int, _ *backend.Plan, ints ...[]int32) (bool, error) {
	if r.forgets || r.fails != nil {
		return false, r.fails
	}
	r.ints = ints
	return name > 0, nil
}

// passRun runs one pass on a recorder.
type passRun struct {
	t      *testing.T
	device *recorder
	other  *recorder
	arena  *Arena
	passes Passes[int, backend.Tensor]
	sparse *backend.Sparse
	move   bool
}

func newPassRun(t *testing.T) *passRun {
	b := cpu.New(cpu.Options{Threads: 1})
	t.Cleanup(func() { b.Close() })
	r := &passRun{t: t, device: &recorder{Backend: b}, other: &recorder{Backend: b}}
	r.arena = NewArena(r.device)
	return r
}

// run runs a pass over three tokens and reports whether its operations were gone through.
func (r *passRun) run(key int, ints ...[]int32) (built bool, last *Step, result backend.Tensor) {
	r.t.Helper()
	if err := r.arena.Begin(3, 0); err != nil {
		r.t.Fatal(err)
	}
	batch := &cache.Batch{Pos: []int32{7, 8, 9}, Plans: make([]backend.Plan, 2)}
	s := NewStep(r.arena, batch, nil, 0, 1e-6)
	s.Sparse = r.sparse
	last, result = r.passes.Run(s, key, func() (*Step, backend.Tensor) {
		built = true
		s.Begin()
		for _, v := range ints {
			s.Ints32(v)
		}
		x := s.Rows(40)
		if r.move {
			return s.Move(NewArena(r.other), 1, &x), x
		}
		return s, x
	}, ints...)
	return built, last, result
}

// TestPasses: a pass with a known key is run again with new integers, leaves its results where they were and the arena
// as it was; another key, or a device that has forgotten the pass, goes through the operations.
func TestPasses(t *testing.T) {
	r := newPassRun(t)
	built, s, first := r.run(1, []int32{1, 2}, nil)
	if !built {
		t.Fatal("the first pass was run again")
	}
	end := s.Mark()
	built, s, again := r.run(1, []int32{3, 4}, nil)
	if built || again.Off != first.Off || again.Rows != first.Rows || s.Mark() != end {
		t.Errorf("built %v, result at %d, want %d, arena %v, want %v", built, again.Off, first.Off, s.Mark(), end)
	}
	want := [][]int32{{7, 8, 9}, {3, 4}}
	if !slices.EqualFunc(r.device.ints, want, slices.Equal) {
		t.Errorf("repeated with %v, want %v", r.device.ints, want)
	}
	if built, _, _ := r.run(2); !built {
		t.Error("another key was run again")
	}
	r.device.forgets = true
	if built, _, _ := r.run(1); !built {
		t.Error("a pass that the device has forgotten was run again")
	}
	r.device.forgets = false
	r.passes.Forget()
	if built, _, _ := r.run(1); !built {
		t.Error("a pass was run again after Forget")
	}
}

// TestPassesThatAreNotRepeated: those of several devices, and those with sparse attention, which depends on the length
// of the prompt.
func TestPassesThatAreNotRepeated(t *testing.T) {
	r := newPassRun(t)
	r.move = true
	for range 2 {
		built, last, x := r.run(1)
		if !built || last.Backend != r.other || x.Rows != 3 || x.Cols != 40 {
			t.Errorf("built %v, ends on %v with %v", built, last.Backend, x)
		}
	}
	if r.device.steps != 2 || r.other.steps != 2 {
		t.Errorf("%d and %d steps of two passes", r.device.steps, r.other.steps)
	}
	r.move = false
	r.run(1) // is remembered
	r.sparse = &backend.Sparse{}
	r.move = true
	if _, last, _ := r.run(1); last.Sparse != r.sparse {
		t.Error("the next device does not know of sparse attention")
	}
	r.move = false
	for range 2 {
		if built, _, _ := r.run(1); !built {
			t.Error("a pass with sparse attention was run again")
		}
	}
	r.passes.Forget()
	r.run(1)
	r.sparse = nil
	if built, _, _ := r.run(1); !built {
		t.Error("a pass without sparse attention ran the one with it")
	}
}

// TestRepeatFails: what a device says when it cannot begin a pass ends the pass with that error.
func TestRepeatFails(t *testing.T) {
	r := newPassRun(t)
	r.run(1)
	r.device.fails = errors.New("no memory for tables")
	var err error
	func() {
		defer Catch(&err)
		r.run(1)
	}()
	if !errors.Is(err, r.device.fails) {
		t.Errorf("error %v", err)
	}
}
