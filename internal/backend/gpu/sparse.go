package gpu

import "strobe/internal/backend"

// SparseAttention is Attention over chosen blocks of keys, where all rows are parts of prompts that see all before
// them.
func (b *Backend) SparseAttention(dst, q backend.Tensor, group, layer int, p backend.AttnParams,
	s *backend.Sparse) bool {
	if b.step.plan == nil {
		return false
	}
	plan := &b.step.plan.KV[group]
	shape := plan.Pool.(*Pages).Layout.Shapes[layer]
	a, err := b.attentionOf(p.Heads, shape, 0)
	if err != nil || a.family != anyAttention && s.Block%PageSlots != 0 {
		return false // kernels for tensor cores see whole pages, or nothing of them
	}
	for r := range plan.Slot {
		if plan.Lo[r] > 0 || plan.Hi[r] != plan.Slot[r]+1 || s.Tokens[plan.Seg[r]] == 0 {
			return false
		}
	}
	b.step.tokens = s.Tokens
	b.attend(dst, q, group, layer, p, sparseOp{block: int32(s.Block), sink: int32(s.Sink), window: int32(s.Window),
		last: int32(s.Last), alpha: s.Alpha})
	return true
}

// HasSparse says whether there are kernels for blocks of so many tokens.
func (b *Backend) HasSparse(block int) bool { return b.props.NoTensorCores || block%PageSlots == 0 }
