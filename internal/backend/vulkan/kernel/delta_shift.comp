#version 460
#extension GL_GOOGLE_include_directive : require
#include "conv.glsl"
void main() {
	for (int seg = BIDY; seg < I(a.table).v[0]; seg += GDIMY) {
		I s = seg_of(a.table, a.rows, a.d.taps, seg);
		if ((s.v[SEG_FLAGS] & FLAG_SHIFT) != 0) shift(s, a.u, a.d, a.layer, BID * 128 + int(gl_LocalInvocationIndex),
			GDIM * 128);
	}
}
