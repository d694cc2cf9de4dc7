#version 460
#extension GL_GOOGLE_include_directive : require
#include "conv.glsl"
// silu of the short convolution, and with `ready` norms and gates too. 32 lanes have a head of queries, keys or
// values of a row, lane l the channels l, l+32, ...; or 32 gates.
void main() {
	DeltaShape d = a.d;
	uint tid = thread();
	int lane = int(tid & 31), chans = channels(d), qk = 2 * d.kheads, heads = qk + d.vheads;
	int jobs = heads + (a.ready != 0 ? (d.vheads + 31) / 32 : 0), total = a.rows * jobs;
	for (int base = BID * 4; base < total; base += GDIM * 4) {
		bool live = base + int(tid >> 5) < total;
		int job = min(base + int(tid >> 5), total - 1), row = job / jobs, h = job - row * jobs;
		I r = row_of(a.table, row, d.taps);
		I s = seg_of(a.table, a.rows, d.taps, r.v[0]);
		bool gates = h >= heads, query = h < d.kheads, key = !query && h < qk;
		if (gates && live && (h - heads) * 32 + lane < d.vheads) gate(s, row, (h - heads) * 32 + lane);
		live = live && !gates;
		int dim = h < qk ? d.kdim : d.vdim, first = h < qk ? h * d.kdim : qk * d.kdim + (h - qk) * d.vdim;
		bool taped = (s.v[SEG_FLAGS] & FLAG_PROMPT) == 0;
		F tape = F(seg_write(s, d, a.layer, row - s.v[SEG_ROW]));
		precise float y[8], sum = 0;
		[[unroll]] for (int i = 0; i < 8; i++) {
			int at = i * 32 + lane, c = first + at;
			y[i] = 0;
			if (!live || at >= dim) continue;
			float x = 0;
			for (int t = 0; t < d.taps; t++) {
				x = source1(r.v[1 + t], a.u, s, d, a.layer, c);
				y[i] = fma(F(a.w).v[c * d.taps + t], x, y[i]);
			}
			if (taped) tape.v[c] = x; // the last tap is the row's own input
			y[i] = silu(y[i]);
			sum = fma(y[i], y[i], sum);
		}
		bool scaled = a.ready != 0 && (query || key);
		sum = sum32(sum, tid);
		float f = head_scale(sum, query);
		[[unroll]] for (int i = 0; i < 8; i++) {
			int at = i * 32 + lane;
			if (!live || at >= dim) continue;
			if (scaled) y[i] = y[i] * f;
			F(a.dst + uint64_t(4) * (int64_t(row) * a.ds)).v[first + at] = y[i];
			if (scaled && key && taped) tape.v[chans + (h - d.kheads) * d.kdim + at] = y[i];
		}
	}
}
