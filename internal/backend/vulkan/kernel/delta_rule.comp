#version 460
#extension GL_GOOGLE_include_directive : require
#define THREADS 128
#include "common.glsl"
#include "delta.glsl"
// The delta rule, as delta.cu of backend/cuda describes it: a workgroup has 32 values of a head, four threads share a
// value, thread q has the keys 16i+4q to 16i+4q+3 for i < N. Rows of the batch pass through shared memory, TILE at a
// time.
layout(local_size_x = 128) in;
layout(constant_id = 1) const int N = 8;
layout(constant_id = 2) const bool EXACT = false; // heads have 16N keys, and all is aligned: four are read at once
const int TILE = 8;
const int KP = 16 * N, STRIDE = 2 * KP + 36; // keys with padding; of a row in shared memory: q, k, v, decay, beta, q.k
ARGS(uint64_t to; uint64_t qk; uint64_t v; uint64_t gates; uint64_t table; In u; int rows; int layer; int os;
	int qs; int vs; int tile; int shifts; DeltaShape d;)
shared float x[TILE * STRIDE];

int t, row, q4, h, kh, value, layer;
bool live;
float s[4 * N];

int key(int i) { return 16 * (i >> 2) + 4 * q4 + (i & 3); }
void load_state(FC st) {
	if (EXACT)
		[[unroll]] for (int i = 0; i < N; i++) {
			vec4 z = V4C(uint64_t(st)).v[4 * i + q4];
			[[unroll]] for (int e = 0; e < 4; e++) s[4 * i + e] = z[e];
		}
	else
		[[unroll]] for (int i = 0; i < 4 * N; i++) s[i] = live && key(i) < a.d.kdim ? st.v[key(i)] : 0.0;
}
void store_state(FC st) {
	if (EXACT)
		[[unroll]] for (int i = 0; i < N; i++)
			V4C(uint64_t(st)).v[4 * i + q4] = vec4(s[4 * i], s[4 * i + 1], s[4 * i + 2], s[4 * i + 3]);
	else
		[[unroll]] for (int i = 0; i < 4 * N; i++)
			if (live && key(i) < a.d.kdim) st.v[key(i)] = s[i];
}
void update(int i, float k, float g, float u) {
	precise float old = g * s[i];
	precise float z = fma(u, k, old);
	s[i] = z;
}

void segment(I g) {
	int chans = channels(a.d), keys = a.d.kheads * a.d.kdim;
	FC st = FC(seg_state(g, a.d, layer) + uint64_t(4) * ((h * a.d.vdim + value) * a.d.kdim));
	load_state(st);
	int pending = g.v[SEG_PENDING];
	for (int i = 0; i < pending; i++) {
		F p = F(seg_read(g, a.d, layer, I(a.table).v[g.v[SEG_PATH] + i]) + uint64_t(4) * chans);
		float u = live ? p.v[keys + h * a.d.vdim + value] : 0.0, decay = p.v[keys + a.d.vheads * a.d.vdim + h];
		if (EXACT)
			[[unroll]] for (int i = 0; i < N; i++) {
				vec4 k = V4(uint64_t(p)).v[kh * 4 * N + 4 * i + q4];
				[[unroll]] for (int e = 0; e < 4; e++) update(4 * i + e, k[e], decay, u);
			}
		else
			[[unroll]] for (int i = 0; i < 4 * N; i++) update(i, key(i) < a.d.kdim ? p.v[kh * a.d.kdim + key(i)] : 0.0, decay, u);
	}
	bool prompt = (g.v[SEG_FLAGS] & FLAG_PROMPT) != 0;
	if (pending != 0) store_state(st);
	if (a.shifts != 0 && (g.v[SEG_FLAGS] & FLAG_SHIFT) != 0) shift(g, a.u, a.d, layer, BID * 128 + t, GDIM * 128);
	bool tree = g.v[SEG_ENTRIES] != 0;
	int entries = tree ? g.v[SEG_ENTRIES] : g.v[SEG_N], first = g.v[SEG_ROW], width = a.d.tape_row;
	I order = I(a.table + uint64_t(4) * g.v[SEG_ORDER]);
	bool taped = !prompt && entries != 0;
	FC tape = FC(seg_write(g, a.d, layer, 0) + uint64_t(4) * (chans + keys + h * a.d.vdim + value));
	for (int from = 0; from < entries; from += TILE) {
		int n = min(TILE, entries - from), part = value - row;
		barrier(); // what was read is read
		for (int e = t >> 5; e < n; e += 4) {
			int r = first + ((tree ? order.v[from + e] : from + e) & ENTRY_ROW), lane = t & 31;
			F q = F(a.qk + uint64_t(4) * (int64_t(r) * a.qs + kh * a.d.kdim)),
				v = F(a.v + uint64_t(4) * (int64_t(r) * a.vs + h * a.d.vdim + part));
			for (int c = lane; c < KP; c += 32) {
				x[e * STRIDE + c] = c < a.d.kdim ? q.v[c] : 0.0;
				x[e * STRIDE + KP + c] = c < a.d.kdim ? q.v[keys + c] : 0.0;
			}
			x[e * STRIDE + 2 * KP + lane] = part + lane < a.d.vdim ? v.v[lane] : 0.0;
			if (lane < 2) x[e * STRIDE + 2 * KP + 32 + lane] = F(a.gates).v[(r * 2 + lane) * a.d.vheads + h];
		}
		barrier();
		for (int e0 = 0; e0 < n; e0 += 4) { // every row's q.k
			int e = min(e0 + (t >> 5), n - 1);
			precise float qk = 0;
			for (int c = t & 31; c < KP; c += 32) qk = fma(x[e * STRIDE + c], x[e * STRIDE + KP + c], qk);
			qk = sum32(qk, t);
			if ((t & 31) == 0 && e0 + (t >> 5) < n) x[e * STRIDE + 2 * KP + 34] = qk;
		}
		barrier();
		for (int e = 0; e < n; e++) {
			int code = tree ? order.v[from + e] : from + e, k = code & ENTRY_ROW, at = e * STRIDE;
			float decay = x[at + 2 * KP + 32], beta = x[at + 2 * KP + 33], u;
			if ((code & ENTRY_RESTART) != 0) {
				memoryBarrierBuffer(); // updates that other threads wrote to the tape
				barrier();
				load_state(st);
			}
			if ((code & ENTRY_QUIET) != 0) u = live ? tape.v[k * width] : 0.0;
			else {
				precise float sk[4] = float[](0, 0, 0, 0), sq[4] = float[](0, 0, 0, 0);
				[[unroll]] for (int i = 0; i < 4 * N; i++) {
					sk[i & 3] = fma(s[i], x[at + KP + key(i)], sk[i & 3]);
					sq[i & 3] = fma(s[i], x[at + key(i)], sq[i & 3]);
				}
				precise float ks = (sk[0] + sk[1]) + (sk[2] + sk[3]), qs = (sq[0] + sq[1]) + (sq[2] + sq[3]);
				ks = sum4(ks, t);
				qs = sum4(qs, t);
				precise float y = beta * (x[at + 2 * KP + row] - decay * ks);
				u = y;
				if (q4 == 0 && live) {
					precise float old = u * x[at + 2 * KP + 34];
					precise float z = fma(decay, qs, old);
					F(a.to + uint64_t(4) * (int64_t(first + k) * a.os)).v[h * a.d.vdim + value] = z;
					if (taped) tape.v[k * width] = u;
				}
			}
			[[unroll]] for (int i = 0; i < 4 * N; i++) update(i, x[at + KP + key(i)], decay, u);
		}
	}
	if (prompt && entries != 0) store_state(st);
}

void main() {
	int parts = (a.d.vdim + 31) / 32;
	t = int(thread());
	row = t >> 2;
	q4 = t & 3;
	h = BID / parts;
	value = BID % parts * 32 + row;
	live = value < a.d.vdim;
	kh = a.d.grouped != 0 ? h / (a.d.vheads / a.d.kheads) : h % a.d.kheads;
	layer = a.layer + BIDZ;
	for (int seg = BIDY; seg < I(a.table).v[0]; seg += GDIMY) segment(seg_of(a.table, a.rows, a.d.taps, seg));
}
