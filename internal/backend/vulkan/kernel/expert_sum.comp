#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
layout(local_size_x = 256) in;
ARGS(uint64_t dst; uint64_t w; uint64_t scale; uint64_t ids; In y; int rows; int cols; int used; int ds; int ws;)

void main() {
	int total = a.rows * a.cols;
	for (int i = BID * 256 + int(gl_LocalInvocationIndex); i < total; i += GDIM * 256) {
		int r = i / a.cols, c = i - r * a.cols, pieces = in_pieces(a.y, c);
		precise float v = 0;
		for (int j = 0; j < a.used; j++) {
			precise float f = F(a.w + uint64_t(4) * (int64_t(r) * a.ws)).v[j];
			if (a.scale != 0) f = f * F(a.scale).v[I(a.ids).v[r * a.used + j]];
			v = fma(f, in_sum(a.y, r * a.used + j, c, pieces), v);
		}
		F(a.dst + uint64_t(4) * (int64_t(r) * a.ds)).v[c] = v;
	}
}
