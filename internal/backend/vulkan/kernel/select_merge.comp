#version 460
#extension GL_GOOGLE_include_directive : require
// Merges the parts of a row. Their lists are in order, so only their heads compete: lane l has parts l, l+32, ...
#define THREADS 32
#include "common.glsl"
#include "select.glsl"
layout(local_size_x = 32) in;
ARGS(uint64_t ids; uint64_t logp; uint64_t keys; uint64_t sums; In x; int rows; int cols; int k; int parts; int ls;
	int keep;)
const int MOST = 2048; // parts: 16 million columns
shared int head[MOST];

void main() {
	uint tid = thread();
	int row = BID, lane = int(tid), parts = min(a.parts, MOST);
	L keys = L(a.keys + uint64_t(8) * (int64_t(row) * a.parts * a.k));
	for (int i = lane; i < parts; i += 32) head[i] = 0;
	precise float lse = 0;
	if (a.logp != 0) {
		F sums = F(a.sums + uint64_t(8) * (int64_t(row) * a.parts));
		precise float m = LEAST, s = 0;
		for (int i = lane; i < parts; i += 32) m = max(m, sums.v[2 * i]);
		m = max32(m, tid);
		// a part of nothing but -Inf adds nothing, one with NaN makes everything NaN
		for (int i = lane; i < parts; i += 32) {
			float most = sums.v[2 * i], sum = sums.v[2 * i + 1];
			precise float t = most == LEAST ? sum : sum * exp_(most - m);
			s = s + t;
		}
		s = sum32(s, tid);
		lse = m + log2(s) * LN2;
		if (m == LEAST) lse = is_nan(s) ? s : m;
		if (is_nan(s)) lse = s;
	}
	uint64_t mine = 0;
	int from = 0;
	bool look = true;
	for (int j = 0; j < a.k; j++) {
		if (look) {
			mine = 0;
			for (int i = lane; i < parts; i += 32)
				if (head[i] < a.k && keys.v[i * a.k + head[i]] > mine) {
					mine = keys.v[i * a.k + head[i]];
					from = i;
				}
		}
		uint64_t best = best_of(mine, tid);
		look = best != 0 && mine == best;
		if (look) head[from]++;
		if (lane == 0) {
			I(a.ids).v[row * a.k + j] = key_column(best);
			if (a.logp != 0) {
				float v = best != 0 ? key_value(best) : LEAST;
				precise float p = lse == LEAST ? v : v - lse;
				F(a.logp + uint64_t(4) * (int64_t(row) * a.ls)).v[j] = p;
			}
		}
	}
}
