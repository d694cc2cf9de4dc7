#version 460
#extension GL_GOOGLE_include_directive : require
// The best columns of every 8192, and the sum of their exponentials.
#define THREADS 256
#include "common.glsl"
#include "select.glsl"
layout(local_size_x = 256) in;
layout(constant_id = 1) const uint LOGS = 0;
ARGS(uint64_t ids; uint64_t logp; uint64_t keys; uint64_t sums; In x; int rows; int cols; int k; int parts; int ls;
	int keep;)
shared float part_sums[8];

void main() {
	uint tid = thread();
	int part = BID, row = BIDY, first = part * PART + int(tid);
	uint64_t mine = 0;
	for (int i = 0; i < EACH; i++) {
		int c = first + i * 256;
		if (c < a.cols) mine = max(mine, key_of(in1(a.x, row, c), c));
	}
	uint64_t best = best_of(mine, tid);
	L keys = L(a.keys + uint64_t(8) * (int64_t(row) * a.parts + part) * a.k);
	if (LOGS != 0) {
		float m = best != 0 ? key_value(best) : LEAST;
		precise float sum = 0;
		for (int i = 0; i < EACH; i++) {
			int c = first + i * 256;
			if (c >= a.cols) continue;
			float v = in1(a.x, row, c);
			sum = sum + (m == LEAST && !is_nan(v) ? 0.0 : exp_(v - m));
		}
		sum = sum32(sum, tid);
		if ((tid & 31) == 0) part_sums[tid >> 5] = sum;
		barrier();
		if (tid == 0) {
			for (int i = 1; i < 8; i++) sum = sum + part_sums[i];
			F to = F(a.sums + uint64_t(8) * (int64_t(row) * a.parts + part));
			to.v[0] = m;
			to.v[1] = sum;
		}
	}
	for (int j = 0; j < a.k; j++) {
		if (tid == 0) keys.v[j] = best;
		if (j + 1 == a.k) break;
		if (mine == best && best != 0) { // the winner looks for its next one
			uint64_t next = 0;
			for (int i = 0; i < EACH; i++) {
				int c = first + i * 256;
				if (c >= a.cols) continue;
				uint64_t k = key_of(in1(a.x, row, c), c);
				if (k < best) next = max(next, k);
			}
			mine = next;
		}
		best = best_of(mine, tid);
	}
}
