#version 460
#extension GL_GOOGLE_include_directive : require
#include "product.glsl"
// Products with stacks of experts. Tables: the number of items; then items {expert, first entry of the order, entries, 0}; then
// the order: pairs by expert. A unit of work is a group of 256 rows and 1/cuts of the columns, of a matrix of an item.
struct Job {
	uint64_t w, part, scales; // part: [piece][pair][row]; scales: of the results of each expert, or 0
	int groups, cuts, table;
	float scale;
};
ARGS(Job job[2]; uint64_t act; uint64_t tables; int kb; int format; int jobs; int pairs; int div; int most; int depth;)

void main() {
	uint tid = thread(), lane = tid & 31;
	I tables = I(a.tables);
	int per0 = a.job[0].groups * a.job[0].cuts, per = per0 + (a.jobs > 1 ? a.job[1].groups * a.job[1].cuts : 0);
	int h0 = half_size(FORMAT, 0), h1 = half_size(FORMAT, 1), strip = BIDZ * 4 + int(tid >> 5), units = tables.v[0] * per;
	for (int u = BID; u < units; u += GDIM) {
		int item = u / per, v = u - item * per;
		Job job = a.job[v >= per0 ? 1 : 0];
		if (v >= per0) v -= per0;
		int grp = v / job.cuts, cut = v - grp * job.cuts, rows = job.groups * 256;
		int expert = tables.v[4 + 4 * item], first = 4 + 4 * a.most + tables.v[5 + 4 * item], n = min(T, tables.v[6 + 4 * item]);
		clear_acc();
		for (int kb = cut * a.kb / job.cuts; kb < (cut + 1) * a.kb / job.cuts; kb++) {
			[[unroll]] for (int k = 0; k < T; k++)
				act_at[k] = a.act + (uint64_t(tables.v[first + min(k, n - 1)] / a.div) * a.kb + kb) * ROW;
			uint64_t w = job.w + (uint64_t(expert) * (job.groups * a.kb) + grp * a.kb + kb) * (16 * (h0 + h1));
			stage(w + strip * h0, w + 16 * h0 + strip * h1, job.table, lane, n);
		}
		share_acc(tid);
		precise float f = job.scale;
		if (job.scales != 0) f = f * F(job.scales).v[expert];
		for (int i = int(tid); i < 64 * n; i += 128) {
			int pair = tables.v[first + (i >> 6)];
			precise float y = total(i & 63, i >> 6) * f;
			F(job.part + uint64_t(4) * ((int64_t(cut) * a.pairs + pair) * rows + grp * 256 + BIDZ * 64)).v[i & 63] = y;
		}
		barrier();
	}
}
