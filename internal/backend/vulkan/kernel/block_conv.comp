#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
layout(local_size_x = 256) in;
ARGS(uint64_t dst; uint64_t x; uint64_t dyn; uint64_t base; uint64_t index; int rows; int cols; int taps;
	int groups; int ds; int xs; int ys;)

void main() {
	int total = a.rows * a.cols, size = a.cols / a.groups;
	for (int i = BID * 256 + int(gl_LocalInvocationIndex); i < total; i += GDIM * 256) {
		int r = i / a.cols, c = i - r * a.cols, g = c / size, n = min(I(a.index).v[r] + 1, a.taps);
		precise float v = 0;
		for (int t = 0; t < n; t++) {
			precise float w = F(a.base).v[t * a.cols + c] + F(a.dyn + uint64_t(4) * (int64_t(r) * a.ys)).v[t * a.groups + g];
			v = fma(w, F(a.x + uint64_t(4) * (int64_t(r - t) * a.xs)).v[c], v);
		}
		F(a.dst + uint64_t(4) * (int64_t(r) * a.ds)).v[c] = v;
	}
}
