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

	"strobe/internal/backend"
	"strobe/internal/invariants"
)

// PageTokens is the number of tokens in a page.
const PageTokens = 64

// Layer is one attention layer that keeps keys and values.
type Layer struct {
	backend.KVDims
	Window int // tokens a query sees, itself included; 0 means all
	Device int // that runs the layer
}

// Spec describes the memory of a model.
type Spec struct {
	Layers    []Layer
	Delta     backend.DeltaDims
	Recurrent []int // device of each recurrent layer
	// Carry is the width of a row that a sequence carries from one pass to the next, on the first device: a drafter's
	// newest hidden state. 0 means none.
	Carry int
}

// Place says where the keys and values of a layer are: which plan of its device, and the layer in the plan's pool.
type Place struct {
	Group, Index int
}

// Memory is the cache of one model, whose layers may lie on several devices.
type Memory struct {
	spec    Spec
	devices []backend.Backend
	groups  []*group
	states  []*states
	places  []Place
	seqs    int
	cached  int // bytes of the prefix cache
}

// group is the layers of a device that share a window, and hence pages.
type group struct {
	device int
	index  int // among the groups of its device
	window int
	layers []backend.KVDims
	pool   backend.KVPool
	refs   []int32
	cached []int32 // sequences of the prefix cache that have a page
}

// states is the recurrent memory on a device.
type states struct {
	device int
	layers int
	pool   backend.StatePool
}

// New returns the memory for a model on the given devices.
func New(devices []backend.Backend, spec Spec) (*Memory, error) {
	m := &Memory{spec: spec, devices: devices}
	for _, l := range spec.Layers {
		g := m.group(l.Device, l.Window)
		m.places = append(m.places, Place{g.index, len(g.layers)})
		g.layers = append(g.layers, l.KVDims)
	}
	var err error
	for _, g := range m.groups {
		if g.pool, err = devices[g.device].NewKVPool(backend.KVLayout{Page: PageTokens, Layers: g.layers}); err != nil {
			return nil, err
		}
	}
	for d, b := range devices {
		y := &states{device: d}
		for _, at := range spec.Recurrent {
			if at == d {
				y.layers++
			}
		}
		if y.layers == 0 {
			continue
		}
		if y.pool, err = b.NewStatePool(spec.Delta, y.layers); err != nil {
			return nil, err
		}
		m.states = append(m.states, y)
	}
	return m, nil
}

// Sync waits for all devices and returns their first failure.
func (m *Memory) Sync() (first error) {
	for _, b := range m.devices {
		if err := b.Sync(); first == nil {
			first = err
		}
	}
	return first
}

// group finds the group of a device's layers with a window, or adds it.
func (m *Memory) group(device, window int) *group {
	index := 0
	for _, g := range m.groups {
		if g.device == device && g.window == window {
			return g
		}
		if g.device == device {
			index++
		}
	}
	g := &group{device: device, index: index, window: window}
	m.groups = append(m.groups, g)
	return g
}

// Place returns where layer i of the Spec keeps its keys and values, and Dims their size.
func (m *Memory) Place(i int) Place { return m.places[i] }

// Dims returns the size of layer i's keys and values.
func (m *Memory) Dims(i int) backend.KVDims { return m.spec.Layers[i].KVDims }

// Device returns the number of the device that has a group; its plan there comes after those of earlier groups.
func (m *Memory) Device(group int) int { return m.groups[group].device }

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
	n := m.stateBytes()
	for _, g := range m.groups {
		if g.window > 0 {
			n += (g.window/PageTokens + 2) * g.pool.PageBytes()
		}
	}
	return n
}

// UsedBytes is the memory that all sequences hold now, pages and state.
func (m *Memory) UsedBytes() int {
	n := m.seqs * m.stateBytes()
	for _, g := range m.groups {
		n += g.pool.Used() * g.pool.PageBytes()
	}
	return n
}

// stateBytes is the recurrent state of a sequence and the row it carries.
func (m *Memory) stateBytes() int {
	return 4 * (len(m.spec.Recurrent)*m.spec.Delta.StateValues() + m.spec.Carry)
}

// firstPage is the first page that is needed after n tokens. Later tokens see one less than a window of what is there,
// but a drafter's block may see a whole window before it.
func (g *group) firstPage(n int) int {
	if g.window == 0 {
		return 0
	}
	return max(0, n-g.window) / PageTokens
}

func (g *group) alloc() (int32, error) {
	p, err := g.pool.Alloc()
	if err != nil {
		return 0, err
	}
	for int(p) >= len(g.refs) {
		g.refs, g.cached = append(g.refs, 0), append(g.cached, 0)
	}
	invariants.Check(g.refs[p] == 0, "page %d is in use and allocated again", p)
	g.refs[p] = 1
	return p, nil
}

func (g *group) release(p int32) {
	invariants.Check(g.refs[p] > 0, "page %d is free and released again", p)
	if g.refs[p]--; g.refs[p] == 0 {
		g.pool.Free(p)
	}
}

// ErrRewind is returned when a sequence cannot go back to the wanted length because what it
// remembered there is gone (recurrent state, or keys that left a window).
var ErrRewind = errors.New("the sequence cannot be cut there: its memory of that point is gone")
