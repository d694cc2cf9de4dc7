package nn

import (
	"slices"

	"strobe/internal/backend"
)

// Passes remembers passes that a device can run again without going through their operations. K is everything that
// decides which operations a pass has and which memory they use; R is where it leaves its results. The zero value is
// empty.
type Passes[K comparable, R any] struct {
	known map[K]recorded[R]
}

// recorded is a pass that was gone through: its name on the device, and how it left the arena.
type recorded[R any] struct {
	name   int
	end    Mark
	result R
}

// Run runs a pass that has not begun: again if the device knows one with this key, else by build, which begins the
// step, adds all operations and returns the step it is in at the end, on the device of the results. ints is what
// build gives to Ints32, in order. Passes on several devices and passes with sparse attention are not remembered.
func (p *Passes[K, R]) Run(s *Step, key K, build func() (*Step, R), ints ...[]int32) (*Step, R) {
	if pass, ok := p.find(key); ok && s.Sparse == nil {
		// The positions are the first integers of every step.
		all := append(make([][]int32, 0, 8), s.batch.Pos)
		all = append(all, s.batch.More...)
		for _, v := range ints {
			if len(v) > 0 {
				all = append(all, v)
			}
		}
		done, err := backend.Repeat(s.Backend, pass.name, &s.batch.Plans[s.device], all...)
		if err != nil {
			panic(givenUp{err})
		}
		if done {
			s.arena.Release(pass.end)
			return s, pass.result
		}
	}
	last, result := build()
	if name := last.end(); name != 0 && !last.split && last.Sparse == nil {
		if p.known == nil {
			p.known = make(map[K]recorded[R])
		}
		p.known[key] = recorded[R]{name, last.arena.Mark(), result}
	}
	return last, result
}

// find looks a pass up. Keys may contain buffers, which can be compared on devices that run passes again only.
func (p *Passes[K, R]) find(key K) (pass recorded[R], ok bool) {
	if len(p.known) > 0 {
		pass, ok = p.known[key]
	}
	return pass, ok
}

// Forget forgets all passes: something has changed that is not part of their keys.
func (p *Passes[K, R]) Forget() { p.known = nil }

// Move ends the operations on the device of s and continues the pass on another, with copies of the given tensors
// there; those without a buffer are left alone.
func (s *Step) Move(to *Arena, device int, tensors ...*backend.Tensor) *Step {
	s.End()
	if err := to.Begin(len(s.batch.Pos), 0); err != nil {
		panic(givenUp{err})
	}
	t := NewStep(to, s.batch, s.mem, device, s.Eps)
	t.Sparse, t.split = s.Sparse, true
	for _, x := range tensors {
		if x.Buf != nil {
			*x = t.Take(s.Backend, *x)
		}
	}
	t.Begin()
	return t
}

// TakeRows returns x on the device of s: x itself, or a copy of its rows up to the last of the given ones.
func (s *Step) TakeRows(from backend.Backend, x backend.Tensor, rows []int32) backend.Tensor {
	if from == s.Backend {
		return x
	}
	return s.Take(from, x.Slice(0, min(x.Rows, s.Pad(int(slices.Max(rows))+1))))
}
