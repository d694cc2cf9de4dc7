#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
// Pieces of a product as plain rows.
layout(local_size_x = 128) in;
ARGS(In x; uint64_t dst; int stride; int rows; int cols;)

void main() {
	int total = a.rows * a.cols;
	for (int i = BID * 128 + int(gl_LocalInvocationIndex); i < total; i += GDIM * 128) {
		int r = i / a.cols, c = i - r * a.cols;
		F(a.dst + uint64_t(4) * (int64_t(r) * a.stride)).v[c] = in1(a.x, r, c);
	}
}
