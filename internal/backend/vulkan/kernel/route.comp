#version 460
#extension GL_GOOGLE_include_directive : require
// Softmax over all experts, the best ones, renormalised. 32 lanes have a row.
#define THREADS 32
#include "common.glsl"
#include "select.glsl"
layout(local_size_x = 32) in;
ARGS(uint64_t ids; uint64_t weights; In x; int rows; int experts; int used; int ws; float scale;)

void main() {
	uint tid = thread();
	int row = BID, lane = int(tid);
	I ids = I(a.ids + uint64_t(4) * (row * a.used));
	F weights = F(a.weights + uint64_t(4) * (int64_t(row) * a.ws));
	uint64_t best = 0;
	for (int e = lane; e < a.experts; e += 32) best = max(best, key_of(in1(a.x, row, e), e));
	best = best_of(best, tid);
	float m = key_value(best);
	precise float s = 0;
	for (int e = lane; e < a.experts; e += 32) s = s + exp_(in1(a.x, row, e) - m);
	precise float all = sum32(s, tid), sum = 0, mine = 0;
	bool sound = !is_nan(all); // a NaN among the logits leaves no choice: any expert will do, its weight is NaN
	for (int j = 0; j < a.used; j++) {
		precise float w = 0;
		int e = 0;
		if (sound && best != 0) {
			w = exp_(key_value(best) - m) / all;
			sum = sum + w;
			e = key_column(best);
		} else if (!sound) w = all;
		if (lane == 0) {
			ids.v[j] = e;
			weights.v[j] = w;
		}
		uint64_t next = 0;
		for (int e = lane; e < a.experts; e += 32) {
			uint64_t k = key_of(in1(a.x, row, e), e);
			if (k < best) next = max(next, k);
		}
		best = best_of(next, tid);
	}
	precise float f = a.scale / max(sum, 6.103515625e-5);
	if (lane == 0)
		for (int j = 0; j < a.used; j++) {
			precise float w = weights.v[j] * f;
			weights.v[j] = w;
		}
}
