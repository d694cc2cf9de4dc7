// Products of the same activations with up to eight matrices of one format. Every block of the grid's x gets an equal
// run of a matrix's stages, without regard to rows, so a row's sum may be in pieces; z counts parts of the rows of a
// stage, y the tokens by T.
struct Job {
	uint64_t w, part; // part: [piece][token][row]
	int groups, blocks, format, table;
	float scale;
	int pad;
};
ARGS(Job job[8]; uvec2 next[6]; uint64_t act; uint64_t sumsq; float eps; float mean; int kb; int n; int depth; int late;)
