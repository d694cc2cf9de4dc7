#version 460
#extension GL_GOOGLE_include_directive : require
// The weight of every 8192 columns of a row, in units, as package weight computes it.
#define THREADS 256
#include "common.glsl"
#include "select.glsl"
layout(local_size_x = 256) in;
ARGS(uint64_t dst; uint64_t keys; uint64_t groups; uint64_t sums; uint64_t x; uint64_t table; int cols; int parts;
	int stride; int pad;)
shared uint64_t part_sums[256];

uint64_t weight_units(float x) {
	if (!(x > -87.0)) return 0;
	precise float t = x * 92.33248261893209;
	t = t - 0.5;
	int n = int(t);
	precise float hi = float(n) * 0.010833740234375, lo = float(n) * -3.3155381258549027e-06;
	precise float r = x - hi;
	r = r - lo;
	precise float half_square = r * r;
	half_square = half_square * 0.5;
	precise float p = 1.0 + r;
	p = p + half_square;
	precise float w = F(a.table).v[n & 63] * uintBitsToFloat(uint((n >> 6) + 127) << 23);
	w = w * p;
	precise float upper = w * 4194304.0; // the upper 22 of 44 bits, then the lower
	uint high = uint(upper);
	precise float rest = upper - float(high);
	rest = rest * 4194304.0;
	return (uint64_t(high) << 22) + uint(rest);
}

void main() {
	uint tid = thread();
	int part = BID, row = BIDY;
	L keys = L(a.keys + uint64_t(8) * (int64_t(row) * a.parts));
	uint64_t best = 0;
	for (int i = 0; i < a.parts; i++) best = max(best, keys.v[i]);
	float top = key_value(best);
	F x = F(a.x + uint64_t(4) * (int64_t(row) * a.stride));
	uint64_t sum = 0;
	for (int i = 0; i < EACH; i++) {
		int c = part_column(part, i, tid);
		if (c >= a.cols) break;
		precise float d = x.v[c] - top;
		sum += weight_units(d);
	}
	part_sums[tid] = sum;
	for (uint step = 128; step > 0; step >>= 1) {
		barrier();
		if (tid < step) part_sums[tid] += part_sums[tid + step];
	}
	if (tid == 0) L(a.sums + uint64_t(8) * (int64_t(row) * a.parts + part)).v[0] = part_sums[0];
}
