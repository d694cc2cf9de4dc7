package cpu

import (
	"runtime"

	"strobe/internal/backend/cpu/kernel/qmat"
	"strobe/internal/platform"
)

// wovenPerThread bounds the time that weaving adds to loading, to a few tenths of a second. It pays most for weights
// that stay in the caches; those of large models arrive no faster than rows can be transposed anyway.
const wovenPerThread = 384 << 20

// weave copies a matrix into the order that its kernels like best (see qmat.Matrix.Weave), as long as the memory set
// aside for copies lasts. Products no longer read the file, so its pages are let go. Experts stay where they
// are: most of them may never be needed.
func (b *Backend) weave(w *weight, forget func()) {
	if w.experts > 1 || !qmat.Weavable(w.typ) {
		return
	}
	m := w.matrix(0)
	n := m.WovenBytes()
	if b.spare < 0 {
		b.spare = min(platform.AvailableMemory()/4, wovenPerThread*b.pool.n)
	}
	if n > b.spare {
		return
	}
	mem := platform.Anonymous(n)
	if mem == nil {
		return
	}
	b.spare -= n
	panels := n / (qmat.Panel * w.typ.RowBytes(w.cols))
	b.share(panels, n/panels, func(p0, p1 int) { m.Weave(mem, p0, p1) })
	w.woven = mem
	runtime.AddCleanup(w, platform.Free, mem)
	if forget != nil {
		forget()
	}
}
