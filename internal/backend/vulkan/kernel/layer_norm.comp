#version 460
#extension GL_GOOGLE_include_directive : require
// LayerNorm, a workgroup for each row. A thread writes the columns that it read, so that dst may be x.
#define THREADS 256
#include "common.glsl"
layout(local_size_x = 256) in;
shared float sums[16];
ARGS(uint64_t dst; uint64_t w; uint64_t bias; In x; int rows; int cols; int ds; float eps;)

float total(float v, uint tid, uint at) {
	precise float s = sum32(v, tid);
	if ((tid & 31) == 0) sums[at + (tid >> 5)] = s;
	barrier();
	s = sums[at];
	for (uint i = 1; i < 8; i++) s = s + sums[at + i];
	return s;
}

void main() {
	uint tid = thread();
	precise float s = 0, q = 0;
	for (int c = int(tid); c < a.cols; c += 256) s = s + in1(a.x, BID, c);
	precise float mean = total(s, tid, 0) / float(a.cols);
	for (int c = int(tid); c < a.cols; c += 256) {
		precise float d = in1(a.x, BID, c) - mean;
		q = fma(d, d, q);
	}
	float f = root(total(q, tid, 8), float(a.cols), a.eps);
	F d = F(a.dst + uint64_t(4) * (int64_t(BID) * a.ds));
	for (int c = int(tid); c < a.cols; c += 256) {
		precise float y = (in1(a.x, BID, c) - mean) * f;
		y = fma(y, F(a.w).v[c], F(a.bias).v[c]);
		d.v[c] = y;
	}
}
