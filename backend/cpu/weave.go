package cpu

import (
	"runtime"

	"strobe/backend/cpu/kernel/qmat"
)

// weave copies a matrix into the order that its kernels like best (see qmat.Matrix.Weave), as long as the memory set
// aside for copies lasts. The mapped file is not read again for products, so the system may drop its pages. Experts
// stay where they are: most of them may never be needed.
func (b *Backend) weave(w *weight) {
	if w.experts > 1 || !qmat.Weavable(w.typ) {
		return
	}
	m := w.matrix(0)
	n := m.WovenBytes()
	if b.spare < 0 {
		b.spare = availableMemory() / 4
	}
	if n > b.spare {
		return
	}
	mem := mapMemory(n)
	if mem == nil {
		return
	}
	b.spare -= n
	panels := n / (qmat.Panel * w.typ.RowBytes(w.cols))
	b.share(panels, n/panels, func(p0, p1 int) { m.Weave(mem, p0, p1) })
	w.woven = mem
	runtime.AddCleanup(w, unmapMemory, mem)
}
