#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "sparse.glsl"
// The weights of 64 blocks of keys for a head of a block of queries. A thread has a block and every other eight of its
// rows, whose queries lie in shared memory, 64 dimensions at a time.
layout(local_size_x = 128) in;
shared vec4 qs[16][16];
shared vec2 other[64]; // what the threads of the second half have

// (top, sum) takes in another pair.
void take_in(inout vec2 x, vec2 y) {
	float n = max(x.x, y.x);
	precise float f = exp2(x.x - n), g = exp2(y.x - n);
	precise float s = y.y * g;
	precise float z = fma(x.y, f, s);
	x = vec2(n, z);
}

void main() {
	int t = int(gl_LocalInvocationIndex), half_ = t >> 6, n = BID * 64 + (t & 63), head = BIDY, kd = a.at.kdim,
		heads = a.kvheads * a.group, quads = kd >> 2;
	if (BIDZ >= I(a.count).v[4]) return;
	Queries b = QueryBlocks(a.queries).v[BIDZ];
	if (BID * 64 > b.n) return;
	uint64_t q = a.q + uint64_t(4) * (int64_t(b.row) * a.qstride + head * kd);
	V4 mean = V4(a.means + uint64_t(4) * kd * (int64_t(b.means + min(n, b.n)) * a.kvheads + head / a.group));
	vec2 all = vec2(NOTHING, 0);
	for (int r0 = 0; r0 < b.rows; r0 += 16) {
		precise float z[8];
		[[unroll]] for (int k = 0; k < 8; k++) z[k] = 0;
		for (int c0 = 0; c0 < quads; c0 += 16) {
			barrier();
			for (int i = t; i < 256; i += 128) {
				int r = i >> 4, c = i & 15;
				bool is = r0 + r < b.rows && c0 + c < quads;
				qs[r][c] = is ? V4(q + uint64_t(4) * int64_t(r0 + r) * a.qstride).v[c0 + c] : vec4(0);
			}
			barrier();
			for (int c = 0; c < min(16, quads - c0); c++) {
				vec4 v = mean.v[c0 + c];
				[[unroll]] for (int k = 0; k < 8; k++)
					[[unroll]] for (int e = 0; e < 4; e++) z[k] = fma(qs[half_ * 8 + k][c][e], v[e], z[k]);
			}
		}
		[[unroll]] for (int k = 0; k < 8; k++) { // a row counts for the blocks that it sees all of
			int r = r0 + half_ * 8 + k;
			precise float x = z[k] * a.scale;
			if (r < b.rows && b.first + r >= (n + 1) * a.block - 1) take_in(all, vec2(x, 1));
		}
	}
	if (half_ == 1) other[t - 64] = all;
	barrier();
	if (half_ == 1) return;
	take_in(all, other[t]);
	F to = F(a.weights + uint64_t(8) * ((int64_t(BIDZ) * heads + head) * a.words * 64 + n));
	to.v[0] = all.x;
	to.v[1] = all.y;
}
