// Package cache keeps what a model remembers of its sequences: keys and values of
// attention layers in pages, and the state of recurrent layers with a tape.
//
// A forward pass writes past a sequence's committed end and changes nothing else. Commit
// makes a chain prefix or a tree path of it permanent; everything not committed is gone with
// the next pass. That is the only way forward and the only rollback:
//
//   - Keys and values are written at slots Len()+row. Commit moves the rows of a tree path
//     together and advances the length.
//   - Recurrent state stays at the last committed token. The pass keeps each row's inputs of
//     the recurrence on the tape; Commit marks the accepted ones pending, and the next pass
//     applies them on its way through the state (or Settle does, when the state is needed).
//
// Pages are counted references: Fork shares them, and a page is copied when a sequence writes
// into one it shares. Sliding-window layers drop pages that fall out of the window.
//
// A Memory and its sequences belong to the goroutine that drives the backend.
package cache

import (
	"errors"
	"fmt"

	"strobe/backend"
	"strobe/quant"
)

// PageTokens is the number of tokens in a page.
const PageTokens = 64

// Layer is one attention layer that keeps keys and values.
type Layer struct {
	backend.KVDims
	Window int // tokens a query sees, itself included; 0 means all
}

// Spec describes the memory of a model.
type Spec struct {
	Type        quant.Type // of keys and values
	Layers      []Layer
	Delta       backend.DeltaDims
	DeltaLayers int // recurrent layers
}

// Place says where the keys and values of a layer are: which plan and pool, and the layer in it.
type Place struct {
	Group, Index int
}

// Memory is the cache of one model on one device.
type Memory struct {
	b      backend.Backend
	spec   Spec
	groups []*group
	places []Place
	seqs   int
}

// group is the layers that share a window, and hence pages.
type group struct {
	window int
	layers []backend.KVDims
	pool   backend.KVPool
	refs   []int32
}

// New returns the memory for a model.
func New(b backend.Backend, spec Spec) (*Memory, error) {
	switch spec.Type {
	case quant.F32, quant.F16, quant.Q8_0:
	default:
		return nil, fmt.Errorf("cache type %s: want F32, F16 or Q8_0", spec.Type)
	}
	m := &Memory{b: b, spec: spec}
	for _, l := range spec.Layers {
		gi := -1
		for i, g := range m.groups {
			if g.window == l.Window {
				gi = i
			}
		}
		if gi < 0 {
			gi = len(m.groups)
			m.groups = append(m.groups, &group{window: l.Window})
		}
		g := m.groups[gi]
		m.places = append(m.places, Place{gi, len(g.layers)})
		g.layers = append(g.layers, l.KVDims)
	}
	for _, g := range m.groups {
		pool, err := b.NewKVPool(backend.KVLayout{Type: spec.Type, Page: PageTokens, Layers: g.layers})
		if err != nil {
			return nil, err
		}
		g.pool = pool
	}
	return m, nil
}

// Place returns where layer i of the Spec keeps its keys and values.
func (m *Memory) Place(i int) Place { return m.places[i] }

// Window returns the window of a group, 0 for none.
func (m *Memory) Window(group int) int { return m.groups[group].window }

// Pool returns the pool of a group.
func (m *Memory) Pool(group int) backend.KVPool { return m.groups[group].pool }

// Groups returns the number of plans a batch needs.
func (m *Memory) Groups() int { return len(m.groups) }

// TokenBytes is what one more token of a long sequence costs: keys and values of the layers
// without a window.
func (m *Memory) TokenBytes() int {
	n := 0
	for _, g := range m.groups {
		if g.window == 0 {
			n += g.pool.PageBytes() / PageTokens
		}
	}
	return n
}

// SeqBytes is what a sequence costs apart from TokenBytes: full windows and recurrent state.
func (m *Memory) SeqBytes() int {
	n := m.spec.DeltaLayers * 4 * (m.stateRows()*m.spec.Delta.KDim + m.convRows()*m.spec.Delta.ConvDim())
	for _, g := range m.groups {
		if g.window > 0 {
			n += (g.window/PageTokens + 2) * g.pool.PageBytes()
		}
	}
	return n
}

// UsedBytes is the memory that all sequences hold now, pages and state.
func (m *Memory) UsedBytes() int {
	n := m.seqs * m.spec.DeltaLayers * 4 * (m.stateRows()*m.spec.Delta.KDim + m.convRows()*m.spec.Delta.ConvDim())
	for _, g := range m.groups {
		n += g.pool.Used() * g.pool.PageBytes()
	}
	return n
}

func (m *Memory) stateRows() int { return m.spec.Delta.VHeads * m.spec.Delta.VDim }
func (m *Memory) convRows() int  { return max(0, m.spec.Delta.Kernel-1) }

func (g *group) alloc() (int32, error) {
	p, err := g.pool.Alloc()
	if err != nil {
		return 0, err
	}
	for int(p) >= len(g.refs) {
		g.refs = append(g.refs, 0)
	}
	g.refs[p] = 1
	return p, nil
}

func (g *group) release(p int32) {
	if g.refs[p]--; g.refs[p] == 0 {
		g.pool.Free(p)
	}
}

// ErrRewind is returned when a sequence cannot go back to the wanted length because what it
// remembered there is gone (recurrent state, or keys that left a window).
var ErrRewind = errors.New("the sequence cannot be cut there: its memory of that point is gone")
