#version 460
#extension GL_GOOGLE_include_directive : require
#define THREADS 128
#include "common.glsl"
#include "attention.glsl"
// Turns results back where values are rotated: 32 lanes per head, a workgroup per 4 heads of a row.
layout(local_size_x = 128) in;

void main() {
	uint tid = thread();
	int vd = a.at.vdim, heads = a.kvheads * a.group, head = BIDY * 4 + int(tid >> 5);
	F to = F(a.to + uint64_t(4) * (int64_t(BID) * a.ostride + min(head, heads - 1) * vd));
	for (int first = 0; first < vd; first += 256) {
		int d = first + int(tid & 31) * 8;
		float v[8];
		[[unroll]] for (int i = 0; i < 8; i++) v[i] = d < vd ? to.v[d + i] : 0.0;
		rotate8(v, d, turned(vd), true, tid);
		if (d < vd && head < heads)
			[[unroll]] for (int i = 0; i < 8; i++) to.v[d + i] = v[i];
	}
}
