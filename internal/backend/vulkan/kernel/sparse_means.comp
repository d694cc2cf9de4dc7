#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "sparse.glsl"
// The mean keys of blocks, as the cache has them. A thread has 8 dimensions of some slots.
layout(local_size_x = 128) in;
shared float sums[1024]; // of teams of threads that have a slot each

void main() {
	int t = int(gl_LocalInvocationIndex), kd = a.at.kdim, width = kd >> 3, teams = 128 / width, team = t / width,
		d = t % width * 8;
	for (int u = BID; u < I(a.count).v[3] * a.kvheads; u += GDIM) {
		int n = u / a.kvheads, kv = u % a.kvheads, i = 0;
		Span s = Spans(a.spans).v[0];
		while (n >= s.means + (s.slots + a.block - 1) / a.block) s = Spans(a.spans).v[++i];
		int from = (n - s.means) * a.block, to = min(from + a.block, s.slots);
		uint64_t region = uint64_t(a.at.off) + uint64_t(kv) * a.at.head;
		precise float sum[8];
		[[unroll]] for (int e = 0; e < 8; e++) sum[e] = 0;
		if (team < teams)
			for (int j = from + team; j < to; j += teams) {
				float v[8];
				read8(v, L(a.pages).v[s.table + (j >> 6)] + region, a.at.ktype, kd, j & 63, d);
				[[unroll]] for (int e = 0; e < 8; e++) sum[e] = sum[e] + v[e];
			}
		barrier(); // nobody reads the sums of the unit before
		if (team < teams)
			[[unroll]] for (int e = 0; e < 8; e++) sums[team * kd + d + e] = sum[e];
		barrier();
		for (int c = t; c < kd; c += 128) {
			precise float x = sums[c];
			for (int k = 1; k < teams; k++) x = x + sums[k * kd + c];
			precise float y = x / float(to - from);
			F(a.means + uint64_t(4) * ((int64_t(n) * a.kvheads + kv) * kd + c)).v[0] = y;
		}
	}
}
