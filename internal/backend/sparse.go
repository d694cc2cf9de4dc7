package backend

// Sparse says which blocks of keys the rows of prompts attend to. Keys and queries are taken in blocks of tokens, from
// the first token of a sequence. A block of queries sees the first blocks, those just before it and its own; of the
// others those whose mean key gets at least Alpha of the weight that the heaviest block gets, for each query head by
// itself (FlashPrefill, arXiv 2603.06199). With Alpha 0 all blocks are seen, and the result is that of Attention.
type Sparse struct {
	Block  int // tokens
	Sink   int // blocks at the beginning that are always seen
	Window int // blocks that are always seen up to the queries' own, which counts
	Last   int // blocks of queries at the end of a prompt that see everything
	Alpha  float32
	Tokens []int // per segment of the plan: length of the prompt it is a part of; 0 sees everything
}

// SparseAttender is a device that may have block-sparse attention. Others run Attention instead, which costs time and
// loses nothing.
type SparseAttender interface {
	// SparseAttention is Attention for plans in which some segments are chunks of prompts. A block of queries that the
	// plan has only a part of is judged by that part. It reports false, and has done nothing, where the device has no
	// kernels for these blocks, types and rows, as for layers with a sliding window: Attention is to be used then. A
	// device may always show the first block and the queries' own.
	SparseAttention(dst, q Tensor, group, layer int, p AttnParams, s *Sparse) bool
	// HasSparse says whether the device has such kernels for blocks of so many tokens at all.
	HasSparse(block int) bool
}

// Weigher is a device that can say how much attention tokens get.
type Weigher interface {
	// Weigh raises dst[r][j] to the largest weight that any head of row r of q gives to row j of k. Rows of q and k are
	// tokens with their heads side by side; q are the last ones of k, and each sees itself and what is before it. It
	// reports false, and has done nothing, where the device has no kernels for it.
	Weigh(dst, q, k Tensor, p AttnParams) bool
}
