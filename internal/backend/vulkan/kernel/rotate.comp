#version 460
#extension GL_GOOGLE_include_directive : require
#define THREADS 128
#include "common.glsl"
#include "attention.glsl"
// Rotates queries as keys are, or turns results back where values are rotated: 32 lanes per head, a workgroup per 4
// heads of a row.
layout(local_size_x = 128) in;
layout(constant_id = 1) const bool BACK = false;

void main() {
	uint tid = thread();
	int dim = BACK ? a.at.vdim : a.at.kdim, heads = a.kvheads * a.group, head = BIDY * 4 + int(tid >> 5),
		at = min(head, heads - 1) * dim;
	F to = F(a.to + uint64_t(4) * (int64_t(BID) * a.ostride + at)), from = to;
	if (!BACK) from = F(a.q + uint64_t(4) * (int64_t(BID) * a.qstride + at));
	for (int first = 0; first < dim; first += 256) {
		int d = first + int(tid & 31) * 8;
		float v[8];
		[[unroll]] for (int i = 0; i < 8; i++) v[i] = d < dim ? from.v[d + i] : 0.0;
		rotate8(v, d, turned(dim), BACK, tid);
		if (d < dim && head < heads)
			[[unroll]] for (int i = 0; i < 8; i++) to.v[d + i] = v[i];
	}
}
