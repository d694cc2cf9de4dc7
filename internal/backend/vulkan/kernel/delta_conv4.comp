#version 460
#extension GL_GOOGLE_include_directive : require
#include "conv.glsl"
// silu of the short convolution over four rows, and with `ready` norms and gates too, where heads have 128 or 256
// channels and all is aligned. A workgroup has a head of queries, keys or values of `run` rows one after the other,
// thread t the channels t and t+128; or gates. What does not depend on tables is asked for first.

void main() {
	DeltaShape d = a.d;
	uint tid = thread();
	int t = int(tid), chans = channels(d), qk = 2 * d.kheads, heads = qk + d.vheads;
	int jobs = heads + (a.ready != 0 ? (d.vheads + 127) / 128 : 0), total = (a.rows + a.run - 1) / a.run * jobs;
	for (int job = BID; job < total; job += GDIM) {
		int row0 = job / jobs * a.run, h = job % jobs, row1 = min(row0 + a.run, a.rows);
		bool query = h < d.kheads, key = !query && h < qk, scaled = a.ready != 0 && h < qk;
		int dim = h < qk ? d.kdim : d.vdim, first = (h < qk ? h * d.kdim : qk * d.kdim + (h - qk) * d.vdim) + t;
		float old[2][3]; // what the rows before had
		for (int row = row0; row < row1; row++) {
			I r = row_of(a.table, row, 4), s = seg_of(a.table, a.rows, 4, r.v[0]);
			if (h >= heads) {
				if ((h - heads) * 128 + t < d.vheads) gate(s, row, (h - heads) * 128 + t);
				continue;
			}
			float own[2];
			vec4 w[2];
			[[unroll]] for (int u = 0; u < 2; u++)
				if (128 * u < dim) {
					w[u] = V4(a.w).v[first + 128 * u];
					own[u] = in1(a.u, row, first + 128 * u);
				}
			bool taped = (s.v[SEG_FLAGS] & FLAG_PROMPT) == 0;
			F tape = F(seg_write(s, d, a.layer, row - s.v[SEG_ROW]));
			precise float y[2], sum = 0;
			[[unroll]] for (int u = 0; u < 2; u++) {
				int c = first + 128 * u;
				if (128 * u >= dim) continue;
				float x[4];
				[[unroll]] for (int k = 0; k < 3; k++) {
					int code = r.v[1 + k];
					if (row - row0 + k >= 3 && code == (row - 3 + k) << 2) x[k] = old[u][k];
					else x[k] = source1(code, a.u, s, d, a.layer, c);
				}
				x[3] = own[u];
				if (taped) tape.v[c] = x[3];
				precise float z = 0;
				[[unroll]] for (int k = 0; k < 4; k++) z = fma(w[u][k], x[k], z);
				[[unroll]] for (int k = 0; k < 3; k++) old[u][k] = x[k + 1];
				y[u] = silu(z);
				sum = fma(y[u], y[u], sum);
			}
			float f = 1;
			if (scaled) f = head_scale(sum128(sum, tid), query);
			[[unroll]] for (int u = 0; u < 2; u++) {
				int c = first + 128 * u;
				if (128 * u >= dim) continue;
				precise float z = y[u] * f;
				F(a.dst + uint64_t(4) * (int64_t(row) * a.ds)).v[c] = z;
				if (scaled && key && taped) tape.v[chans - d.kheads * d.kdim + c] = z;
			}
		}
	}
}
