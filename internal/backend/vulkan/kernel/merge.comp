#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "attention.glsl"
// Adds the splits of a row. A thread has 4 values of a head, a workgroup 128/(vdim/4) heads of a row.
layout(local_size_x = 128) in;

void main() {
	int t = int(gl_LocalInvocationIndex), vd = a.at.vdim, heads = a.kvheads * a.group, each = vd >> 2, fit = 128 / each;
	int head = BIDY * fit + t / each, d = t % each * 4;
	Seen r = SeenRows(a.seen).v[BID];
	if (r.part < 0 || t / each >= fit || head >= heads) return;
	float m = NOTHING, l = 0;
	vec4 o = vec4(0);
	const int AHEAD = 8; // splits that are asked for at once
	for (int s0 = 0; s0 < r.splits; s0 += AHEAD) {
		vec2 ml[AHEAD];
		vec4 x[AHEAD];
		[[unroll]] for (int k = 0; k < AHEAD; k++) {
			int64_t at = int64_t(r.part + min(s0 + k, r.splits - 1)) * heads + head;
			ml[k] = uintBitsToFloat(U2(a.ml + uint64_t(8) * at).v[0]);
			x[k] = V4(a.part + uint64_t(4) * (at * vd + d)).v[0];
		}
		[[unroll]] for (int k = 0; k < AHEAD; k++) {
			if (s0 + k >= r.splits) break;
			if (s0 + k == 0) {
				m = ml[k].x;
				l = ml[k].y;
				o = x[k];
				continue;
			}
			float f, g;
			take_in(m, l, ml[k].x, ml[k].y, f, g);
			[[unroll]] for (int i = 0; i < 4; i++) o[i] = blend(o[i], f, x[k][i], g);
		}
	}
	precise vec4 y = o * last_factor(m, l, head);
	F to = F(a.to + uint64_t(4) * (int64_t(BID) * a.ostride + head * vd + d));
	[[unroll]] for (int i = 0; i < 4; i++) to.v[i] = y[i];
}
