package cpu

import "strobe/internal/backend"

// BlockConv convolves the rows of blocks with taps of their own. A row adds its taps in order, so its
// bits do not depend on the batch.
func (b *Backend) BlockConv(dst, x, dyn backend.Tensor, base backend.Vector, index backend.Ints) {
	fixed, at := values(base), index.(ints)
	kernel := len(fixed) / x.Cols
	groups := dyn.Cols / kernel
	size := x.Cols / groups
	b.rowsOf(x.Rows, 4*kernel*x.Cols, func(r int) {
		out, d := row(dst, r), row(dyn, r)
		clear(out)
		for tap := range min(kernel, int(at[r])+1) {
			in, w := row(x, r-tap), fixed[tap*x.Cols:][:x.Cols]
			for g, more := range d[tap*groups:][:groups] {
				o, v, f := out[g*size:][:size], in[g*size:][:size], w[g*size:][:size]
				for c := range o {
					o[c] += (f[c] + more) * v[c]
				}
			}
		}
	})
}
