//go:build !nogpu && ((linux && (amd64 || arm64)) || (windows && amd64) || darwin)

package vulkan

import (
	"errors"
	"fmt"

	"strobe/internal/backend/gpu"
	"strobe/internal/quant"
)

// selfTest computes a few things whose results are known: drivers exist that list what they compute wrongly. Shuffles
// are used if they give the bits that shared memory gives; a device that sums or multiplies wrongly is refused.
func (d *Driver) selfTest() error {
	shared, err := gpu.TestSums(d)
	if err != nil {
		return err
	}
	if d.canShuffle() && !d.opt.Shared {
		d.again(true)
		if shuffled, err := gpu.TestSums(d); err != nil || !gpu.SameBits(shared, shuffled) {
			d.again(false)
		}
	}
	if err := gpu.TestProducts(d, 1, 3); err != nil {
		return err
	}
	if d.opt.Loops || d.matrices && d.shuffles {
		if d.props.Matrices = d.testMatrices() == nil; d.err != nil {
			return errMatrices
		}
	}
	return d.err
}

// errMatrices says that the device was lost when it was asked for products by matrices.
var errMatrices = errors.New("cooperative matrices break it")

// again has all kernels compiled anew, with or without shuffles.
func (d *Driver) again(shuffles bool) {
	for _, k := range d.kernels {
		if k.pipeline != 0 {
			d.f.destroyPipeline.call(d.handle, uintptr(k.pipeline), 0)
			k.pipeline = 0
		}
	}
	d.shuffles = shuffles
}

// testMatrices compares products by cooperative matrices with those by bytes: they have the same bits, or are not used.
func (d *Driver) testMatrices() error {
	// One that fills matrices from registers, and one that loads them.
	for typ, tokens := range map[quant.Type]int{quant.Q4_K: 16, quant.Q6_K: 8} {
		const rows, cols = 300, 768
		t, err := gpu.NewTrial(d, typ, rows, cols, tokens)
		if err != nil {
			return err
		}
		bytes, matrices := t.Product(tokens, false), t.Product(tokens, true)
		t.Close()
		if t.Err != nil {
			return t.Err
		}
		if !gpu.SameBits(bytes, matrices) {
			return fmt.Errorf("cooperative matrices compute wrongly with %s", typ)
		}
	}
	return nil
}
