#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
// Moves slots of pages: 32 lanes per strip, which is the same bytes of every slot. A thread makes all moves of its
// bytes, in order.
layout(local_size_x = 128) in;
ARGS(uint64_t moves; uint64_t strips; int nmoves; int nstrips;)

void main() {
	int tid = int(gl_LocalInvocationIndex), strip = BID * 4 + (tid >> 5), lane = tid & 31;
	if (strip >= a.nstrips) return;
	int off = I(a.strips).v[2 * strip], bytes = I(a.strips).v[2 * strip + 1];
	for (int b = lane; b < (bytes != 0 ? bytes / 2 : 64); b += 32)
		for (int i = 0; i < a.nmoves; i++) {
			L m = L(a.moves + 24 * i);
			uvec2 at = unpackUint2x32(m.v[2]); // dst, src
			int dst = int(at.x), src = int(at.y), to = dst * bytes + 2 * b, from = src * bytes + 2 * b;
			if (bytes == 0) { // 128 bytes, whose chunks of 16 lie as F16 does
				to = dst * 128 + (((b >> 3) ^ (dst & 7)) << 4) + (b & 7) * 2;
				from = src * 128 + (((b >> 3) ^ (src & 7)) << 4) + (b & 7) * 2;
			}
			H(m.v[0] + off + to).v[0] = H(m.v[1] + off + from).v[0];
		}
}
