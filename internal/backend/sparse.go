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
