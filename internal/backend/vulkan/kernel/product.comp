#version 460
#extension GL_GOOGLE_include_directive : require
#include "product.glsl"
#include "rms.glsl"
// Products of the same activations with up to eight matrices of one format. Every block of the grid's x gets an equal run of a
// matrix's stages, without regard to rows, so a row's sum may be in pieces; z counts the quarters of the rows of a stage, y the tokens by T.
struct Job {
	uint64_t w, part; // part: [piece][token][row]
	int groups, blocks, format, table;
	float scale;
	int pad;
};
ARGS(Job job[8]; uint64_t act; uint64_t sumsq; float eps; float mean; int kb; int n; int depth; int late;)
shared float factor[MOST];

void main() {
	uint tid = thread(), lane = tid & 31;
	int b = BID, j = 0;
	while (j < 7 && b >= a.job[j].blocks) b -= a.job[j++].blocks;
	Job job = a.job[j];
	int tok0 = BIDY * T, n = min(T, a.n - tok0), rows = job.groups * 256;
	for (int k0 = 0; k0 < T; k0 += 4) { // what results are multiplied with
		int k = k0 + int(tid >> 5);
		precise float f = job.scale;
		if (a.sumsq != 0) f = f * rms_factor(a.sumsq + uint64_t(4) * ((tok0 + min(k, n - 1)) * a.kb), a.kb, a.mean, a.eps, tid);
		if (lane == 0 && k < T) factor[k] = f;
	}
	int all = job.groups * a.kb, s0 = first_stage(b, all, job.blocks), s1 = first_stage(b + 1, all, job.blocks);
	int h0 = half_size(FORMAT, 0), h1 = half_size(FORMAT, 1), strip = BIDZ * 4 + int(tid >> 5);
	clear_acc();
	for (int s = s0; s < s1; s++) {
		int grp = s / a.kb, kb = s - grp * a.kb;
		[[unroll]] for (int k = 0; k < T; k++) act_at[k] = a.act + (uint64_t(tok0 + k) * a.kb + kb) * ROW;
		uint64_t w = job.w + uint64_t(s) * (16 * (h0 + h1));
		stage(w + strip * h0, w + 16 * h0 + strip * h1, job.table, lane, n);
		if (kb + 1 < a.kb && s + 1 < s1) continue;
		share_acc(tid);
		int piece = b - block_of(grp * a.kb, all, job.blocks);
		F to = F(job.part + uint64_t(4) * ((int64_t(piece) * a.n + tok0) * rows + grp * 256 + BIDZ * 64));
		for (int i = int(tid); i < 64 * n; i += 128) {
			precise float y = total(i & 63, i >> 6) * factor[i >> 6];
			to.v[(i >> 6) * rows + (i & 63)] = y;
		}
		clear_acc();
	}
}
