#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
// Integers that the host set: entry i of the block says where its values are in it, how many, and where they belong.
layout(local_size_x = 128) in;
ARGS(uint64_t block;)

void main() {
	U2 e = U2(a.block + uint64_t(16) * BID);
	uvec2 dst = e.v[0], at = e.v[1];
	I to = I(packUint2x32(dst));
	for (uint i = gl_LocalInvocationIndex; i < at.y; i += 128) to.v[i] = I(a.block + at.x).v[i];
}
