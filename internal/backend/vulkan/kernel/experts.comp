#version 460
#extension GL_GOOGLE_include_directive : require
#include "product.glsl"
#include "rms.glsl"
// Products with stacks of experts. Tables: the number of items; then items {expert, first entry of the order,
// entries, 0}; then the order: pairs by expert. A unit of work is a group of 256 rows and 1/cuts of the columns, of a
// matrix of an item.
struct Job {
	uint64_t w, part, scales; // part: [piece][pair][row]; scales: of the results of each expert, or 0
	int groups, cuts, table;
	float scale;
};
ARGS(Job job[2]; uint64_t act; uint64_t tables; uint64_t sumsq; float eps; float mean; int kb; int jobs; int pairs; int div;
	int most;)
shared float factor[T];

void main() {
	uint tid = thread(), lane = tid & 31;
	I tables = I(a.tables);
	int per0 = a.job[0].groups * a.job[0].cuts, per = per0 + (a.jobs > 1 ? a.job[1].groups * a.job[1].cuts : 0),
		kbs = a.kb;
	int h0 = half_size(FORMAT, 0), h1 = half_size(FORMAT, 1), strip = BIDZ * 4 + int(tid >> 5), units = tables.v[0] * per;
	for (int u = BID; u < units; u += GDIM) {
		int item = u / per, v = u - item * per;
		Job job = a.job[v >= per0 ? 1 : 0];
		if (v >= per0) v -= per0;
		int grp = v / job.cuts, cut = v - grp * job.cuts, rows = job.groups * 256;
		int expert = tables.v[4 + 4 * item], first = 4 + 4 * a.most + tables.v[5 + 4 * item], n = min(T,
			tables.v[6 + 4 * item]);
		uint64_t w = job.w + (uint64_t(expert) * (job.groups * kbs) + grp * kbs) * (16 * (h0 + h1));
		clear_acc();
		for (int kb = cut * kbs / job.cuts, end = (cut + 1) * kbs / job.cuts, buf = 0; kb < end; kb++, buf ^= 1) {
			Raw raw;
			uint64_t at = w + uint64_t(kb) * (16 * (h0 + h1));
			load(raw, at + strip * h0, at + 16 * h0 + strip * h1, lane);
			for (int o = int(tid); o < T * 19; o += THREADS)
				act_mem[buf * (T * 19) + o] =
					U4(a.act + (uint64_t(tables.v[first + min(o / 19, n - 1)] / a.div) * kbs + kb) * ROW).v[o % 19];
			barrier();
			stage(raw, buf, job.table, tid);
		}
		for (int k0 = 0; k0 < T; k0 += 4) { // what results are multiplied with
			int k = min(k0 + int(tid >> 5), n - 1);
			precise float f = job.scale;
			if (job.scales != 0) f = f * F(job.scales).v[expert];
			if (a.sumsq != 0)
				f = f * rms_factor(a.sumsq + uint64_t(4) * (tables.v[first + k] / a.div * kbs), kbs, a.mean, a.eps, tid);
			if (lane == 0 && k0 + int(tid >> 5) < T) factor[k0 + int(tid >> 5)] = f;
		}
		barrier();
		[[unroll]] for (int k = 0; k < T; k++) {
			precise float y = total(k, tid) * factor[k];
			if (k < n && stores(k, tid))
				F(job.part + uint64_t(4) * ((int64_t(cut) * a.pairs +
					tables.v[first + k]) * rows + grp * 256 + strip * 16 + row_of_lane(tid))).v[0] = y;
		}
		barrier();
	}
}
