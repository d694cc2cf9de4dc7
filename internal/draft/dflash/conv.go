package dflash

import (
	"strobe/internal/backend"
	"strobe/internal/nn"
)

// conv is a pair of short causal convolutions along the block, one around each half of a layer: over
// its normalised input and over its output. Their taps are a fixed kernel plus a part that a
// projection of the input gives for each row, shared by groups of channels. They see the block only: keys and values of
// the context are computed without them.
type conv struct {
	proj backend.Weight    // [taps, hidden]: dynamic taps of the input side, then of the output side
	base [2]backend.Vector // [kernel, hidden]: fixed taps of each side
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
	if v := l.Floats(prefix+"base", d.hidden, d.kernel, 2); l.Err == nil {
		c.base = [2]backend.Vector{l.VectorOf(v[:len(v)/2]), l.VectorOf(v[len(v)/2:])}
	}
	return c
}

// index says where each of so many rows is in its block, for the convolutions; nil without them.
func (d *Drafter) index(rows int, starts []int32) []int32 {
	if d.taps == 0 {
		return nil
	}
	index := make([]int32, rows)
	for i, from := range starts {
		to := int32(rows)
		if i+1 < len(starts) {
			to = starts[i+1]
		}
		for r := from; r < to; r++ {
			index[r] = r - from
		}
	}
	return index
}

// convIn convolves the normalised input h of a layer's half. The taps it computes serve convOut, too.
func (d *Drafter) convIn(s *nn.Step, c *conv, h backend.Tensor, index backend.Ints) (out, taps backend.Tensor) {
	if c == nil {
		return h, taps
	}
	out, taps = s.Rows(d.hidden), s.Multiply(h, c.proj)
	s.BlockConv(out, h, taps.Columns(0, d.taps/2), c.base[0], index)
	return out, taps
}

// convOut convolves the output of the same half.
func (d *Drafter) convOut(s *nn.Step, c *conv, h, taps backend.Tensor, index backend.Ints) backend.Tensor {
	if c == nil {
		return h
	}
	out := s.Rows(d.hidden)
	s.BlockConv(out, h, taps.Columns(d.taps/2, d.taps/2), c.base[1], index)
	return out
}
