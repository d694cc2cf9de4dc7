#version 460
#extension GL_GOOGLE_include_directive : require
#include "conv.glsl"
// delta_prepare for rows that delta_conv4 made, with its order of sums.
void main() {
	DeltaShape d = a.d;
	uint tid = thread();
	int t = int(tid), qk = 2 * d.kheads, jobs = qk + (d.vheads + 127) / 128, total = jobs * a.rows;
	for (int job = BID; job < total; job += GDIM) {
		int row = job / jobs, h = job % jobs;
		I s = seg_of(a.table, a.rows, d.taps, row_of(a.table, row, d.taps).v[0]);
		if (h >= qk) {
			if ((h - qk) * 128 + t < d.vheads) gate(s, row, (h - qk) * 128 + t);
			continue;
		}
		float y[2];
		precise float sum = 0;
		[[unroll]] for (int u = 0; u < 2; u++)
			if (128 * u < d.kdim) {
				y[u] = in1(a.u, row, h * d.kdim + t + 128 * u);
				sum = fma(y[u], y[u], sum);
			}
		float f = head_scale(sum128(sum, tid), h < d.kheads);
		bool taped = (s.v[SEG_FLAGS] & FLAG_PROMPT) == 0 && h >= d.kheads;
		F tape = F(seg_write(s, d, a.layer, row - s.v[SEG_ROW]));
		[[unroll]] for (int u = 0; u < 2; u++) {
			int c = h * d.kdim + t + 128 * u;
			if (128 * u >= d.kdim) continue;
			precise float z = y[u] * f;
			F(a.dst + uint64_t(4) * (int64_t(row) * a.ds)).v[c] = z;
			if (taped) tape.v[channels(d) - d.kheads * d.kdim + c] = z;
		}
	}
}
