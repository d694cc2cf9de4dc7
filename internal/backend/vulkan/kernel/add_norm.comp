#version 460
#extension GL_GOOGLE_include_directive : require
#include "pack.glsl"
#include "addpack.glsl"
#include "rms.glsl"
// add_pack with a workgroup for each row, and the normalised row in float32 as well: out = dst*w / rms(dst).
ARGS(AddPack p; uint64_t to; int stride; float eps; float mean;)

void main() {
	uint tid = thread();
	int lane = int(tid & 31), kbs = a.p.act.kb, cols = a.p.cols;
	for (int row = BID; row < a.p.rows; row += GDIM) {
		F to = F(a.to + uint64_t(4) * (int64_t(row) * a.stride));
		for (int kb0 = 0; kb0 < kbs; kb0 += 4) {
			bool live = kb0 + int(tid >> 5) < kbs;
			int kb = min(kb0 + int(tid >> 5), kbs - 1), at = kb * 256 + lane * 8;
			float v[8];
			add_job(a.p, v, kb, row, at, lane, tid, live);
			if (live) give8(uint64_t(to), at, cols, v); // each thread reads back what it wrote
		}
		memoryBarrierBuffer();
		barrier(); // sums of squares are there
		float f = rms_factor(a.p.sumsq + uint64_t(4) * (row * kbs), kbs, a.mean, a.eps, tid);
		for (int kb = int(tid >> 5); kb < kbs; kb += 4)
			for (int i = kb * 256 + lane * 8; i < min(kb * 256 + lane * 8 + 8, cols); i++) {
				precise float y = to.v[i] * f;
				to.v[i] = y;
			}
		barrier();
	}
}
