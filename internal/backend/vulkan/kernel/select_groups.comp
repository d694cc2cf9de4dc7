#version 460
#extension GL_GOOGLE_include_directive : require
// The largest value of each thread's columns, and the best of every 8192 columns. Rows are plain.
#define THREADS 256
#include "common.glsl"
#include "select.glsl"
layout(local_size_x = 256) in;
ARGS(uint64_t ids; uint64_t logp; uint64_t keys; uint64_t sums; In x; int rows; int cols; int k; int parts; int ls;
	int keep; uint64_t plain; uint64_t groups; int stride; int pad;)

void main() {
	uint tid = thread();
	int part = BID, row = BIDY;
	F x = F(in_addr(a.x, row, 0));
	uint64_t mine = 0;
	bool odd = false;
	for (int i = 0; i < EACH; i++) {
		int c = part_column(part, i, tid);
		if (c >= a.cols) break;
		float v = x.v[c];
		mine = max(mine, key_of(v, c));
		odd = odd || (floatBitsToUint(v) & 0x7f800000u) == 0x7f800000u;
	}
	int64_t at = int64_t(row) * a.parts + part;
	U(a.groups + uint64_t(4) * (at * 256 + int64_t(tid))).v[0] = odd ? NOT_FINITE : uint(mine >> 32);
	uint64_t best = best_of(mine, tid);
	if (tid == 0) L(a.keys + uint64_t(8) * at).v[0] = best;
}
