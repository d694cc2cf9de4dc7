#version 460
#extension GL_GOOGLE_include_directive : require
#include "product.glsl"
#include "rms.glsl"
#include "jobs.glsl"
// With products of bytes: for few tokens, and for formats whose scales are floats.
shared float factor[T];

void main() {
	uint tid = thread(), lane = tid & 31;
	int b = BID, j = 0;
	while (j < 7 && b >= a.job[j].blocks) b -= a.job[j++].blocks;
	Job job = a.job[j];
	int tok0 = BIDY * T, n = min(T, a.n - tok0), rows = job.groups * 256, kbs = a.kb;
	int all = job.groups * kbs, s0 = first_stage(b, all, job.blocks), s1 = first_stage(b + 1, all, job.blocks);
	int h0 = half_size(FORMAT, 0), h1 = half_size(FORMAT, 1), strip = BIDZ * 4 + int(tid >> 5);
	uint64_t first = job.w + strip * h0, second = job.w + 16 * h0 + strip * h1;
	Raw now, next;
	uvec4 acts[LOADS];
	int grp = s0 / kbs, kb = s0 - grp * kbs;
#define FETCH(raw, s, k)                                                                                        \
	load(raw, first + uint64_t(s) * (16 * (h0 + h1)), second + uint64_t(s) * (16 * (h0 + h1)), lane);           \
	[[unroll]] for (int i = 0; i < LOADS; i++) {                                                                \
		int o = i * THREADS + int(tid), tok = min(o / 19, n - 1);                                               \
		if (o < T * 19) acts[i] = U4(a.act + (uint64_t(tok0 + tok) * kbs + (k)) * ROW).v[o % 19];               \
	}
#define KEEP(buf)                                                                                               \
	[[unroll]] for (int i = 0; i < LOADS; i++)                                                                  \
		if (i * THREADS + int(tid) < T * 19) act_mem[(buf) * (T * 19) + i * THREADS + int(tid)] = acts[i];
	FETCH(now, s0, kb)
	KEEP(0)
	for (int k0 = 0; k0 < T; k0 += 4) { // what results are multiplied with
		int k = k0 + int(tid >> 5);
		precise float f = job.scale;
		if (a.sumsq != 0) f = f * rms_factor(a.sumsq + uint64_t(4) * ((tok0 + min(k, n - 1)) * kbs), kbs, a.mean, a.eps, tid);
		if (lane == 0 && k < T) factor[k] = f;
	}
	clear_acc();
	barrier();
	for (int s = s0, buf = 0; s < s1; s++, buf ^= 1) {
		bool last = kb + 1 == kbs;
		if (s + 1 < s1) {
			FETCH(next, s + 1, last ? 0 : kb + 1)
		}
		stage(now, buf, job.table, tid);
		if (s + 1 < s1) {
			KEEP(buf ^ 1)
		}
		if (last || s + 1 == s1) {
			int piece = b - block_of(grp * kbs, all, job.blocks);
			F to = F(job.part + uint64_t(4) * ((int64_t(piece) * a.n + tok0) * rows + grp * 256 + strip * 16 + row_of_lane(tid)));
			[[unroll]] for (int k = 0; k < T; k++) {
				precise float y = total(k, tid) * factor[k];
				if (k < n && stores(k, tid)) to.v[k * rows] = y;
			}
			clear_acc();
		}
		if (last) {
			kb = 0;
			grp++;
		} else kb++;
		barrier();
		now = next;
	}
}
