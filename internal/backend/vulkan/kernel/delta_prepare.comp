#version 460
#extension GL_GOOGLE_include_directive : require
#include "conv.glsl"
// Norms and gates of rows whose convolution was made by itself: u is its result here, and only queries and keys are
// written to dst.
void main() {
	DeltaShape d = a.d;
	uint tid = thread();
	int lane = int(tid & 31), qk = 2 * d.kheads, jobs = qk + (d.vheads + 31) / 32, total = jobs * a.rows;
	for (int base = BID * 4; base < total; base += GDIM * 4) {
		bool live = base + int(tid >> 5) < total;
		int job = min(base + int(tid >> 5), total - 1), row = job / jobs, h = job - row * jobs;
		I s = seg_of(a.table, a.rows, d.taps, row_of(a.table, row, d.taps).v[0]);
		if (h >= qk && live && (h - qk) * 32 + lane < d.vheads) gate(s, row, (h - qk) * 32 + lane);
		live = live && h < qk;
		bool taped = (s.v[SEG_FLAGS] & FLAG_PROMPT) == 0 && h >= d.kheads;
		precise float y[8], sum = 0;
		[[unroll]] for (int i = 0; i < 8; i++) {
			int at = i * 32 + lane;
			y[i] = 0;
			if (!live || at >= d.kdim) continue;
			y[i] = in1(a.u, row, h * d.kdim + at);
			sum = fma(y[i], y[i], sum);
		}
		sum = sum32(sum, tid);
		float f = head_scale(sum, h < d.kheads);
		F tape = F(seg_write(s, d, a.layer, row - s.v[SEG_ROW]));
		[[unroll]] for (int i = 0; i < 8; i++) {
			int at = i * 32 + lane;
			if (!live || at >= d.kdim) continue;
			y[i] = y[i] * f;
			F(a.dst + uint64_t(4) * (int64_t(row) * a.ds)).v[h * d.kdim + at] = y[i];
			if (taped) tape.v[channels(d) + (h - d.kheads) * d.kdim + at] = y[i];
		}
	}
}
