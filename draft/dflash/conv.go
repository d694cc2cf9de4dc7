package dflash

import (
	"strobe/backend"
	"strobe/nn"
)

// conv is a pair of short causal convolutions along the block, one around each half of a layer: over
// its normalised input and over its output. Their taps are a fixed kernel plus a part that a
// projection of the input gives for each row, shared by groups of channels. They never see the
// context, whose keys and values are made without them.
type conv struct {
	proj backend.Weight    // [hidden] -> taps of the input side, then of the output side
	base [2]backend.Vector // fixed taps per side: [kernel][hidden]
}

// readTaps reads the shape of the convolutions, if there are any.
func (d *Drafter) readTaps(l *nn.Loader) {
	if !l.Has("blk.0." + convNames[0]) {
		return
	}
	kernel, group := l.Need("conv_kernel_size"), l.Need("conv_group_size")
	if l.Check(nn.Range("conv_kernel_size", kernel, 1, 64), nn.Range("conv_group_size", group, 1, d.hidden)) != nil {
		return
	}
	if d.hidden%group != 0 {
		l.Fail("key %s is %d, which does not divide the width %d", l.Key("conv_group_size"), group, d.hidden)
	}
	d.kernel, d.taps = kernel, 2*kernel*(d.hidden/group)
}

func (d *Drafter) readConv(l *nn.Loader, prefix string) *conv {
	c := &conv{proj: l.Matrix(prefix+"proj.weight", d.hidden, d.taps)}
	v := l.Floats(prefix+"base", d.hidden, d.kernel, 2)
	for i, x := range v {
		if x-x != 0 {
			l.Fail("tensor %q: value %d is %v", prefix+"base", i, x)
		}
	}
	if l.Err == nil {
		c.base = [2]backend.Vector{l.Backend.VectorOf(v[:len(v)/2]), l.Backend.VectorOf(v[len(v)/2:])}
	}
	return c
}

// setIndex tells the convolutions where each row is in its block.
func (d *Drafter) setIndex(n int, starts []int32) {
	if d.taps == 0 {
		return
	}
	index := make([]int32, n)
	for i, from := range starts {
		to := int32(n)
		if i+1 < len(starts) {
			to = starts[i+1]
		}
		for r := from; r < to; r++ {
			index[r] = r - from
		}
	}
	d.b.SetInts(d.index, index)
}

// convIn convolves the normalised input h of a layer's half and keeps its taps for convOut.
func (d *Drafter) convIn(c *conv, h backend.Tensor) backend.Tensor {
	if c == nil {
		return h
	}
	out, dyn := d.mixed.First(h.Rows), d.dyn.First(h.Rows)
	d.b.MatMul(h, backend.Product{W: c.proj, Y: dyn})
	d.b.BlockConv(out, h, dyn.Columns(0, dyn.Cols/2), c.base[0], d.index)
	return out
}

// convOut convolves the output of the same half.
func (d *Drafter) convOut(c *conv, h backend.Tensor) backend.Tensor {
	if c == nil {
		return h
	}
	out, dyn := d.mixed.First(h.Rows), d.dyn.First(h.Rows)
	d.b.BlockConv(out, h, dyn.Columns(dyn.Cols/2, dyn.Cols/2), c.base[1], d.index)
	return out
}
