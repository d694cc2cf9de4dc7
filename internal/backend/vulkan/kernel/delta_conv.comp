#version 460
#extension GL_GOOGLE_include_directive : require
#include "conv.glsl"
// silu of the short convolution, and with `ready` norms and gates too. 32 lanes have a head of queries, keys or
// values of a row, lane l the channels l, l+32, ...; or 32 gates. What four channels need is asked for at once.
const int TAPS = 8; // at most

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
		bool gates = h >= heads;
		if (gates && live && (h - heads) * 32 + lane < d.vheads) gate(s, row, (h - heads) * 32 + lane);
		live = live && !gates;
		h = min(h, heads - 1);
		bool query = h < d.kheads, key = !query && h < qk;
		int dim = h < qk ? d.kdim : d.vdim, first = h < qk ? h * d.kdim : qk * d.kdim + (h - qk) * d.vdim;
		bool taped = (s.v[SEG_FLAGS] & FLAG_PROMPT) == 0;
		F tape = F(seg_write(s, d, a.layer, row - s.v[SEG_ROW]));
		int code[TAPS];
		uint64_t from[TAPS];
		[[unroll]] for (int t = 0; t < TAPS; t++) {
			code[t] = r.v[1 + min(t, d.taps - 1)];
			from[t] = source_at(code[t], a.u, s, d, a.layer);
		}
		precise float y[8], sum = 0;
		[[unroll]] for (int i0 = 0; i0 < 8; i0 += 4) {
			[[unroll]] for (int i = i0; i < i0 + 4; i++) y[i] = 0;
			if (i0 * 32 >= dim) continue;
			precise float x[TAPS][4];
			int c[4], pieces[4], most = 1;
			[[unroll]] for (int i = 0; i < 4; i++) {
				c[i] = first + min((i0 + i) * 32 + lane, dim - 1);
				[[unroll]] for (int t = 0; t < TAPS; t++) x[t][i] = F(from[t]).v[c[i]];
				pieces[i] = in_pieces(a.u, c[i]);
				most = max(most, pieces[i]);
			}
			uint64_t step = 4 * in_step(a.u);
			[[unroll]] for (int t = 0; t < TAPS; t++) {
				if ((code[t] & 3) != 0) continue;
				for (int k = 1; k < most; k += 4) {
					float w[4][4];
					[[unroll]] for (int i = 0; i < 4; i++)
						[[unroll]] for (int e = 0; e < 4; e++) w[i][e] = F(from[t] + min(k + e, pieces[i] - 1) * step).v[c[i]];
					[[unroll]] for (int i = 0; i < 4; i++)
						[[unroll]] for (int e = 0; e < 4; e++)
							if (k + e < pieces[i]) x[t][i] = x[t][i] + w[i][e];
				}
			}
			[[unroll]] for (int i = 0; i < 4; i++) {
				if (!live || (i0 + i) * 32 + lane >= dim) continue;
				[[unroll]] for (int t = 0; t < TAPS; t++)
					if (t < d.taps) y[i0 + i] = fma(F(a.w).v[c[i] * d.taps + t], x[t][i], y[i0 + i]);
				if (taped) tape.v[c[i]] = x[TAPS - 1][i]; // the last tap is the row's own input
				y[i0 + i] = silu(y[i0 + i]);
				sum = fma(y[i0 + i], y[i0 + i], sum);
			}
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
