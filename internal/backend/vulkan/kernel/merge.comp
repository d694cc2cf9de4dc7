#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "attention.glsl"
#define VEC vec4
#define VECS V4
#include "merged.glsl"
// Adds the splits of a row. A thread has 4 values of a head, a workgroup 128/(vdim/4) heads of a row.
layout(local_size_x = 128) in;

void main() {
	int t = int(gl_LocalInvocationIndex), vd = a.at.vdim, heads = a.kvheads * a.group, each = vd >> 2, fit = 128 / each;
	int head = BIDY * fit + t / each, d = t % each * 4;
	Seen r = SeenRows(a.seen).v[BID];
	if (r.part < 0 || t / each >= fit || head >= heads) return;
	vec4 y = merged(r, a.part, a.ml, a.sinks, heads, head, vd, d);
	F to = F(a.to + uint64_t(4) * (int64_t(BID) * a.ostride + head * vd + d));
	[[unroll]] for (int i = 0; i < 4; i++) to.v[i] = y[i];
}
