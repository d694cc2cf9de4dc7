#version 460
#extension GL_GOOGLE_include_directive : require
// RMSNorm. EACH is 32 for short rows (32 lanes each), 256 for long ones: what a row's sum looks like depends on its
// length alone. Of short rows a lane has eight columns side by side, which is how the kernels sum that do more than the
// norm of heads (qkv_write, head_pack): a row has the same bits whoever does it.
#define THREADS 256
#include "common.glsl"
layout(local_size_x_id = 2) in; // 128 or 256
layout(constant_id = 1) const uint EACH = 32;
layout(constant_id = 2) const uint SIZE = 128;
shared float sums[8];
ARGS(uint64_t dst; uint64_t w; In x; In y; int rows; int cols; int heads; int xs; int ys; int ds; int dhs; float eps;)

void main() {
	uint tid = thread();
	int t = int(tid % EACH), row = BID * int(SIZE / EACH) + int(tid / EACH);
	bool live = row < a.rows;
	int tok = row / a.heads, head = row - tok * a.heads, at = head * a.xs;
	const int RUN = EACH == 32 ? 8 : 1;
	precise float s = 0;
	if (live)
		for (int first = t * RUN; first < a.cols; first += int(EACH) * RUN)
			for (int c = first; c < min(first + RUN, a.cols); c++) {
				float v = in1(a.x, tok, at + c);
				s = fma(v, v, s);
			}
	s = sum32(s, tid);
	if (EACH > 32) {
		if ((tid & 31) == 0) sums[tid >> 5] = s;
		barrier();
		s = sums[0];
		for (uint i = 1; i < EACH / 32; i++) s = s + sums[i];
	}
	if (!live) return;
	float f = root(s, float(a.cols), a.eps);
	F d = F(a.dst + uint64_t(4) * (int64_t(tok) * a.ds + head * a.dhs));
	for (int first = t * RUN; first < a.cols; first += int(EACH) * RUN) // the same columns: they may be written in place
		for (int c = first; c < min(first + RUN, a.cols); c++) {
			precise float y = in1(a.x, tok, at + c) * f;
			if (a.w != 0) y = y * F(a.w).v[c];
			d.v[c] = y;
		}
}
