#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
// Reads memory that is zero, to measure how fast. Were it not, the sum would be written, so nothing can be left out.
layout(local_size_x = 256) in;
ARGS(uint64_t p; uint64_t to; int quads;)

void main() {
	uvec4 sum = uvec4(0);
	int step = GDIM * 256;
	for (int i = BID * 256 + int(gl_LocalInvocationIndex); i < a.quads; i += 4 * step) {
		uvec4 v[4]; // asked for at once
		[[unroll]] for (int k = 0; k < 4; k++) v[k] = U4(a.p).v[min(i + k * step, a.quads - 1)];
		[[unroll]] for (int k = 0; k < 4; k++) sum |= v[k];
	}
	if ((sum.x | sum.y | sum.z | sum.w) != 0) U(a.to).v[0] = sum.x;
}
