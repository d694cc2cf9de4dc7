#version 460
#extension GL_GOOGLE_include_directive : require
#include "pack.glsl"
#include "addpack.glsl"
#include "rms.glsl"
// add_pack with a workgroup for each row, and the normalised row in float32 as well: out = dst*w / rms(dst).
ARGS(AddPack p; uint64_t to; int stride; float eps; float mean;)

void main() {
	uint tid = thread();
	int kbs = a.p.act.kb, cols = a.p.cols;
	for (int row = BID; row < a.p.rows; row += GDIM) {
		uint64_t to = a.to + uint64_t(4) * (int64_t(row) * a.stride);
		for (int kb = 0, at = 2 * int(tid); kb < kbs; kb++, at += 256) give2(to, at, cols, add_job(a.p, kb, row, at, tid));
		memoryBarrierBuffer();
		barrier(); // sums of squares are there
		float f = rms_factor(a.p.sumsq + uint64_t(4) * (row * kbs), kbs, a.mean, a.eps, tid);
		for (int at = 2 * int(tid); at < cols; at += 256) { // each thread reads back what it wrote
			precise vec2 y = vec2(F(to).v[at], at + 1 < cols ? F(to).v[at + 1] : 0) * f;
			give2(to, at, cols, y);
		}
		barrier();
	}
}
