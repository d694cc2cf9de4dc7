#include "packrow.glsl"
#include "addpack.glsl"
#include "last.glsl"
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

// This workgroup's part of a group is stored.
void then(int grp, uint tid) {
	int parts = in_pieces(a.then.p.y, grp * 256) + (a.then.kind > 0 ? in_pieces(a.then.p.x, grp * 256) : 0);
	if (!comes_last(a.then.counters + 4 * grp, parts * gl_NumWorkGroups.z, tid)) return;
	int lane = int(tid & 31), at = grp * 256 + lane * 8;
	for (int r = 0; r < a.n; r += THREADS / 32) {
		bool live = r + int(tid >> 5) < a.n;
		int row = min(r + int(tid >> 5), a.n - 1);
		float v[8];
		if (a.then.kind == 0) add_job(a.then.p, v, grp, row, at, lane, tid, live);
		else {
			float up[8];
			in8(v, a.then.p.x, row, at, a.then.p.cols);
			in8(up, a.then.p.y, row, at, a.then.p.cols);
			gate8(v, up, a.then.kind > 1);
			pack_row(a.then.p.act, grp, row, v, lane, tid, live);
		}
	}
}
