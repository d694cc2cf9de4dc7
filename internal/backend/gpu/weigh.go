package gpu

import (
	"math"

	"strobe/internal/backend"
)

type weighArgs struct {
	q, k, dst, x, sums           Addr
	n, rows, heads, kvHeads, dim int32
	qStride, kStride, dstStride  int32
	scale                        float32
}

// Weigh raises dst to the weights that the last tokens of k give to all.
func (b *Backend) Weigh(dst, q, k backend.Tensor, p backend.AttnParams) {
	n, pairs := k.Rows, q.Rows*p.Heads
	room, err := b.Alloc(pairs, n+2)
	if err != nil {
		b.fail(err)
		return
	}
	defer b.Free(room)
	x := viewOf(room).addr
	a := weighArgs{q: viewOf(q).addr, k: viewOf(k).addr, dst: viewOf(dst).addr, x: x, sums: x + Addr(4*pairs*n),
		n: int32(n), rows: int32(q.Rows), heads: int32(p.Heads), kvHeads: int32(p.KVHeads), dim: int32(q.Cols / p.Heads),
		qStride: int32(q.Stride), kStride: int32(k.Stride), dstStride: int32(dst.Stride), scale: p.Scale * math.Log2E}
	blocks := (n + 3) / 4
	if b.props.NoTensorCores {
		blocks = min(blocks, maxGroups)
	}
	b.launch(Call{kernelWeighLogits, &a, Config{Grid: [3]int{blocks, p.KVHeads, 1}, Threads: 128}},
		Call{kernelWeighSums, &a, Config{Grid: [3]int{pairs, 1, 1}, Threads: 256, Shared: 32}},
		Call{kernelWeighMost, &a, Config{Grid: [3]int{(n + 255) / 256, q.Rows, 1}, Threads: 256}})
}
