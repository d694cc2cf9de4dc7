// Products of the same activations with up to eight matrices of one format. Every block of the grid's x gets an equal
// run of a matrix's stages, without regard to rows, so a row's sum may be in pieces; z counts parts of the rows of a
// stage, y the tokens by T.
struct Job {
	uint64_t w, part; // part: [piece][token][row]
	int groups, blocks, format, table;
	float scale;
	int pad;
};
// What is done with the results of a group of 256 rows by the workgroup that finishes it: the work of add_pack or
// gated_pack for its 256 columns, which then needs no launch of its own. Pieces are added in order, whoever was last.
struct Then {
	AddPack p;         // or gate and up
	uint64_t counters; // one for each group, zero before and afterwards
	int kind, pad;     // 0 add, 1 silu, 2 gelu
};
ARGS(Job job[8]; uvec2 next[6]; uint64_t act; uint64_t sumsq; float eps; float mean; int kb; int n; int depth; int late;
	Then then;)
