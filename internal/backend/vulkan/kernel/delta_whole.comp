#version 460
#extension GL_GOOGLE_include_directive : require
#define THREADS 1024
#include "pack.glsl"
#include "delta.glsl"
// A recurrent layer between two products, for segments that are chains of up to four rows: delta_conv4, delta_rule and
// head_pack in one, with their bits, where heads have 128 keys and 128 values. A workgroup has the 256 values of two
// heads, four threads share a value; or it moves up the newest inputs of the layer `behind`: those of this one are
// still read. Divisors and roots are of what the other kernels take them of, not of constants: a driver may round the
// ones and the others differently.
ARGS(Act act; In u; In alpha; In beta; In gate; uint64_t w; uint64_t decay; uint64_t dt; uint64_t table; uint64_t norm;
	int rows; int layer; int behind; float eps; float norm_eps; DeltaShape d;)
const int ROWS = 4;
const int HEAD = 96; // of a head of a row in shared memory, by fours: q, k, v
shared vec4 x[ROWS * 2 * HEAD];
shared vec4 gates[ROWS * 2]; // decay, beta, q.k
shared vec4 results[ROWS * 64];
shared float sum_mem[THREADS / 32];
vec4 s[8];

void update(int i, vec4 k, float g, float u) {
	precise vec4 old = g * s[i], z = fma(vec4(u), k, old);
	s[i] = z;
}
// Over the 128 threads that have a head, in the order of delta_conv4.
float sum128(float v, uint tid) {
	float sum = sum32(v, tid);
	barrier(); // the sums before are read
	if ((tid & 31) == 0) sum_mem[tid >> 5] = sum;
	barrier();
	uint first = tid >> 7 << 2;
	precise float all = sum_mem[first];
	[[unroll]] for (int i = 1; i < 4; i++) all = all + sum_mem[first + i];
	return all;
}
// The value of the thread whose number differs by step, below 16.
float across(float v, uint tid, uint step) {
	if (REDUCE != 0 && gl_SubgroupSize >= 16) return subgroupShuffleXor(v, step);
	return at_lane(v, tid, tid ^ step);
}
// The head of keys of a head of values. Of those that share it the first one tapes it.
int key_head(int h, out bool tapes) {
	if (a.d.grouped != 0) {
		int each = a.d.vheads / a.d.kheads, kh = h / each;
		tapes = kh * each == h;
		return kh;
	}
	tapes = h < a.d.kheads;
	return h % a.d.kheads;
}
uint64_t inputs_at(int code, I g, int layer) {
	if ((code & 3) == 1) return seg_inputs(g, a.d, layer) + uint64_t(4) * ((code >> 2) * channels(a.d));
	return seg_read(g, a.d, layer, code >> 2);
}

void segment(I g, uint tid) {
	int t = int(tid), chans = channels(a.d), keys = a.d.kheads * 128, first = g.v[SEG_ROW], n = g.v[SEG_N];
	int width = a.d.tape_row;
	uint64_t tape = seg_write(g, a.d, a.layer, 0);
	barrier(); // what was read is read
	// Threads that have nothing of a single row's convolution have its gates, and the output gates of the row they pack.
	if (t >= THREADS - 32 && t - (THREADS - 32) < 2 * n) {
		int at = t & 31, hx = 2 * BID + (at & 1), k = at >> 1;
		vec2 v = gates_of(a.alpha, a.beta, a.decay, a.dt, first + k, hx);
		gates[at].xy = v;
		F(tape).v[k * width + decays(a.d) + hx] = v.x;
	}
	int mine = 6 - (t >> 7) & 7, column = 2 * (t & 127);
	bool there = mine < n;
	vec2 z = vec2(0), w = vec2(0);
	if (there) {
		z = in2(a.gate, first + mine, BID * 256 + column, a.d.vheads * 128);
		w = vec2(F(a.norm).v[column & 127], F(a.norm).v[column + 1 & 127]);
	}
	bool tapes;
	int hx = 2 * BID + (t >> 7 & 1), kx = key_head(hx, tapes);
	[[dont_unroll]] for (int job0 = 0; job0 < 6 * n; job0 += THREADS / 128) { // q, k and v of two heads
		int job = job0 + (t >> 7), e = job / 6, part = job % 6 >> 1;
		int c = part * keys + (part == 2 ? hx : kx) * 128 + (t & 127);
		precise float own = 0, y = 0;
		if (e < n) {
			I r = row_of(a.table, first + e, 4);
			vec4 taps = V4(a.w).v[c];
			int pieces = in_pieces(a.u, c);
			own = in_sum(a.u, first + e, c, pieces);
			precise float before[3];
			[[unroll]] for (int i = 0; i < 3; i++) {
				int code = r.v[1 + i];
				if ((code & 3) != 0) before[i] = F(inputs_at(code, g, a.layer)).v[c];
				else { // a row of the batch, which a single one does not see
					uint64_t p = in_addr(a.u, code >> 2, c);
					before[i] = F(p).v[0];
					[[dont_unroll]] for (int j = 1; j < pieces; j++) before[i] = before[i] + F(p + j * 4 * in_step(a.u)).v[0];
				}
			}
			[[unroll]] for (int i = 0; i < 3; i++) y = fma(taps[i], before[i], y);
			y = silu(fma(taps[3], own, y));
		}
		float f = head_scale(sum128(fma(y, y, 0.0), tid), part == 0, a.d.kdim, a.eps);
		if (e < n) {
			if (part < 2) y = y * f;
			x[(2 * e + (job & 1)) * HEAD + part * 32 + (t >> 2 & 31)][t & 3] = y;
			if (part == 2 || tapes) F(tape).v[e * width + c] = own;
			if (part == 1 && tapes) F(tape).v[e * width + chans - keys + c] = y;
		}
	}
	barrier();
	int q4 = t & 3, at = min(t >> 5, 2 * n - 1) * HEAD + (t >> 2 & 7);
	precise float qk = 0;
	[[unroll]] for (int c = 0; c < 32; c += 8) qk = fma(x[at + c][q4], x[at + 32 + c][q4], qk);
	qk = sum32(qk, tid);
	if ((t & 31) == 0 && t >> 5 < 2 * n) gates[t >> 5].z = qk;
	barrier();
	// The state is loaded only now: there are not enough registers to have it beside the convolution.
	int hh = t >> 9, value = t >> 2 & 127, h = 2 * BID + hh, kh = key_head(h, tapes);
	V4 st = V4(seg_state(g, a.d, a.layer) + uint64_t(512) * (h * 128 + value) + 16 * q4);
	F updates = F(tape + uint64_t(4) * (chans + keys + h * 128 + value));
	[[unroll]] for (int i = 0; i < 8; i++) s[i] = st.v[4 * i];
	int pending = g.v[SEG_PENDING];
	[[dont_unroll]] for (int i = 0; i < pending; i++) {
		F p = F(seg_read(g, a.d, a.layer, I(a.table).v[g.v[SEG_PATH] + i]) + uint64_t(4) * chans);
		float u = p.v[keys + h * 128 + value], decay = p.v[keys + a.d.vheads * 128 + h];
		[[unroll]] for (int i = 0; i < 8; i++) update(i, V4(uint64_t(p)).v[kh * 32 + 4 * i + q4], decay, u);
	}
	if (pending != 0)
		[[unroll]] for (int i = 0; i < 8; i++) st.v[4 * i] = s[i];
	[[dont_unroll]] for (int e = 0; e < n; e++) {
		int at = (2 * e + hh) * HEAD + q4;
		vec4 gs = gates[2 * e + hh];
		precise vec4 sk = vec4(0), sq = vec4(0);
		[[unroll]] for (int i = 0; i < 8; i++) {
			sk = fma(s[i], x[at + 32 + 4 * i], sk);
			sq = fma(s[i], x[at + 4 * i], sq);
		}
		precise float ks = (sk.x + sk.y) + (sk.z + sk.w), qs = (sq.x + sq.y) + (sq.z + sq.w);
		ks = sum4(ks, tid);
		qs = sum4(qs, tid);
		precise float u = gs.y * (x[at - q4 + 64 + (value >> 2)][value & 3] - gs.x * ks);
		if (q4 == 0) {
			precise float old = u * gs.z, z = fma(gs.x, qs, old);
			results[e * 64 + hh * 32 + (value >> 2)][value & 3] = z;
			updates.v[e * width] = u;
		}
		if (e + 1 < n)
			[[unroll]] for (int i = 0; i < 8; i++) update(i, x[at + 32 + 4 * i], gs.x, u);
	}
	barrier();
	// As head_pack: 16 lanes add up the squares of a head, eight columns each.
	int row = min(mine, n - 1) * 64, eight = row + 2 * (t & 15 | t >> 2 & 16);
	precise float sum = 0;
	[[unroll]] for (int i = 0; i < 8; i++) sum = fma(results[eight + i / 4][i & 3], results[eight + i / 4][i & 3], sum);
	[[unroll]] for (uint step = 8; step > 0; step >>= 1) sum = sum + across(sum, tid, step);
	float f = root(sum, float(a.d.vdim), a.norm_eps);
	vec4 four = results[row + (column >> 2)];
	vec2 v = (t & 1) != 0 ? four.zw : four.xy;
	precise vec2 y = vec2(v.x * f * w.x * silu(z.x), v.y * f * w.y * silu(z.y));
	pack_row(a.act, BID, first + mine, y, tid, there);
}

void main() {
	uint tid = thread();
	int groups = a.d.vheads / 2;
	[[dont_unroll]] for (int seg = BIDY; seg < I(a.table).v[0]; seg += GDIMY) {
		I g = seg_of(a.table, a.rows, 4, seg);
		if (BID < groups) segment(g, tid);
		else if ((g.v[SEG_FLAGS] & FLAG_SHIFT) != 0) {
			int chans = channels(a.d);
			F to = F(seg_inputs(g, a.d, a.behind));
			for (int c = (BID - groups) * THREADS + int(tid); c < chans; c += (GDIM - groups) * THREADS) {
				float v[3];
				[[unroll]] for (int j = 0; j < 3; j++) v[j] = F(inputs_at(g.v[SEG_SHIFT + j], g, a.behind)).v[c];
				[[unroll]] for (int j = 0; j < 3; j++) to.v[j * chans + c] = v[j];
			}
		}
	}
}
