#version 460
#extension GL_GOOGLE_include_directive : require
// All types and sizes, in float32. A workgroup has up to R rows (tokens x query heads of a KV head): their queries and
// scores lie in shared memory; thread t has the dimensions t, t+128, ... of all outputs in registers.
#define THREADS 128
#include "common.glsl"
#include "attention.glsl"
layout(local_size_x = 128) in;
layout(constant_id = 1) const int R = 16;
layout(constant_id = 2) const int DIMS = 128; // of keys and values, at most: R*DIMS queries
layout(constant_id = 3) const int EACH = 1;   // dimensions of a thread: DIMS/128
layout(constant_id = 4) const int KTYPE = KV_F16;
layout(constant_id = 5) const int VTYPE = KV_F16;
shared float qs[R * DIMS], ps[R * 64];
shared Seen sees[R]; // what the rows see
shared float m_[R], l_[R], f_[R], rm[R], rl[R]; // of this split; factor of the last page; of the splits so far

// Sums of eight are added up: a single chain over 512 would lose digits.
float dot8(int at, float v[8]) {
	precise float s = qs[at] * v[0];
	[[unroll]] for (int e = 1; e < 8; e++) s = fma(qs[at + e], v[e], s);
	return s;
}
void put_score(int m, int s, float x) {
	Seen r = sees[m];
	precise float z = x * a.scale;
	ps[m * 64 + s % 64] = s >= r.lo && s < r.hi ? z : NOTHING;
}

void main() {
	uint tid = thread();
	int t = int(tid), warp = t >> 5, lane = t & 31, kd = a.at.kdim, vd = a.at.vdim, heads = a.kvheads * a.group;
	int ys = a.kvheads * a.chunks, units = I(a.items).v[0] * ys;
	for (int u = BID; u < units; u += GDIM) {
		Item it = Items(a.items).v[1 + u / ys];
		int kv = u % ys / a.chunks, y = u % a.chunks, hs = min(a.chunk, a.group - y * a.chunk),
			h0 = kv * a.group + y * a.chunk;
		int used = min(it.rows * hs, R);
		uint64_t region = uint64_t(a.at.off) + uint64_t(kv) * a.at.head;
		barrier();
		for (int i = t; i < R * kd; i += 128) {
			int m = i / kd;
			qs[i] = m >= used ? 0.0 : F(a.q + uint64_t(4) * (int64_t(it.row +
				m / hs) * a.qstride)).v[(h0 + m % hs) * kd + i - m * kd];
		}
		if (t < R) {
			sees[t] = SeenRows(a.seen).v[it.row + min(t, used - 1) / hs];
			m_[t] = NOTHING;
			l_[t] = 0;
		}
		for (int i = t; i < R * 64; i += 128) ps[i] = 0; // rows that there are not
		if (turns_keys(KTYPE)) {
			barrier();
			for (int i = 0; i < R * kd >> 3; i += 128) { // the lanes of a row have its dimensions in order
				int at = min(i + t, (R * kd >> 3) - 1) * 8;
				float v[8];
				[[unroll]] for (int e = 0; e < 8; e++) v[e] = qs[at + e];
				rotate8(v, at % kd, turned(kd), false, tid);
				if (i + t < R * kd >> 3)
					[[unroll]] for (int e = 0; e < 8; e++) qs[at + e] = v[e];
			}
		}
		precise float o[R * EACH];
		[[unroll]] for (int i = 0; i < R * EACH; i++) o[i] = 0;
		barrier();
		for (int p = it.p0; p < it.p1; p++) {
			bool gathered = p >= it.base >> 6; // rows may see different slots
			uint64_t page = L(a.pages).v[it.table + p] + region;
			// Scores: a thread has a slot and every second row.
			int slot = t & 63, first = t >> 6;
			if (!gathered) {
				precise float x[R / 2];
				[[unroll]] for (int k = 0; k < R / 2; k++) x[k] = 0;
				float v[2][8]; // the next ones are asked for before the last are used
				read8(v[0], page, KTYPE, kd, slot, 0);
				for (int d = 0; d < kd; d += 16) {
					read8(v[1], page, KTYPE, kd, slot, min(d + 8, kd - 8));
					[[unroll]] for (int k = 0; k < R / 2; k++) x[k] = x[k] + dot8((first + 2 * k) * kd + d, v[0]);
					read8(v[0], page, KTYPE, kd, slot, min(d + 16, kd - 8));
					if (d + 8 < kd)
						[[unroll]] for (int k = 0; k < R / 2; k++) x[k] = x[k] + dot8((first + 2 * k) * kd + d + 8, v[1]);
				}
				[[unroll]] for (int k = 0; k < R / 2; k++)
					if (first + 2 * k < used) put_score(first + 2 * k, p * 64 + slot, x[k]);
			} else
				for (int m = first; m < used; m += 2) { // the same sums, row by row
					Seen r = sees[m];
					precise float x = 0;
					if (p * 64 + slot >= r.lo && p * 64 + slot < r.hi) {
						int at = lies_at(r.path, r.base, p * 64 + slot);
						uint64_t from = L(a.pages).v[it.table + (at >> 6)] + region;
						for (int d = 0; d < kd; d += 8) {
							float v[8];
							read8(v, from, KTYPE, kd, at & 63, d);
							x = x + dot8(m * kd + d, v);
						}
					}
					put_score(m, p * 64 + slot, x);
				}
			barrier();
			for (int m0 = 0; m0 < used; m0 += 4) {
				int m = min(m0 + warp, used - 1);
				float u = ps[m * 64 + lane], v = ps[m * 64 + 32 + lane], was = m_[m];
				float n = max(was, max32(max(u, v), tid));
				// NaN is no less than anything: it stays
				u = u <= 0.1 * NOTHING ? 0.0 : exp2(u - n);
				v = v <= 0.1 * NOTHING ? 0.0 : exp2(v - n);
				precise float uv = u + v;
				precise float sum = sum32(uv, tid);
				precise float f = exp2(was - n);
				barrier();
				if (m0 + warp < used) {
					ps[m * 64 + lane] = u;
					ps[m * 64 + 32 + lane] = v;
					if (lane == 0) {
						precise float l = fma(l_[m], f, sum);
						m_[m] = n;
						l_[m] = l;
						f_[m] = f;
					}
				}
			}
			barrier();
			bool ends = p + 1 == it.p1 || (p + 1) % it.per == 0;
			int split = p / it.per;
			[[unroll]] for (int i = 0; i < EACH; i++) {
				int d = t + 128 * i;
				if (d >= vd) continue;
				[[unroll]] for (int m = 0; m < R; m++)
					if (m < used) o[i * R + m] = o[i * R + m] * f_[m];
				// What a row does not see is left out: what lies there need not be a number.
				if (!gathered)
					for (int s = 0; s < 64; s += 8) {
						float v[8]; // asked for at once
						[[unroll]] for (int e = 0; e < 8; e++) v[e] = read1(page + a.at.values, VTYPE, vd, s + e, d);
						[[unroll]] for (int m = 0; m < R; m++)
							[[unroll]] for (int e = 0; e < 8; e++) {
								float w = ps[m * 64 + s + e];
								precise float z = fma(w, v[e], o[i * R + m]);
								o[i * R + m] = w == 0 ? o[i * R + m] : z;
							}
					}
				else
					for (int m = 0; m < used; m++) {
						Seen r = sees[m];
						precise float z = 0;
						[[unroll]] for (int k = 0; k < R; k++)
							if (k == m) z = o[i * R + k];
						for (int s = 0; s < 64; s++) {
							float w = ps[m * 64 + s];
							if (w == 0) continue;
							int at = lies_at(r.path, r.base, p * 64 + s);
							z = fma(w, read1(L(a.pages).v[it.table + (at >> 6)] + region + a.at.values, VTYPE, vd, at & 63, d), z);
						}
						[[unroll]] for (int k = 0; k < R; k++)
							if (k == m) o[i * R + k] = z;
					}
				if (!ends) continue;
				[[unroll]] for (int m = 0; m < R; m++) {
					if (m >= used) continue;
					Seen r = sees[m];
					int nth = split - r.split0, head = h0 + m % hs;
					if (nth >= 0 && nth < r.splits) {
						if (r.part >= 0) {
							int64_t to = int64_t(r.part + nth) * heads + head;
							F(a.part + uint64_t(4) * (to * vd)).v[d] = o[i * R + m];
							if (d == 0) {
								F(a.ml + uint64_t(8) * to).v[0] = m_[m];
								F(a.ml + uint64_t(8) * to).v[1] = l_[m];
							}
						} else {
							F to = F(a.to + uint64_t(4) * (int64_t(it.row + m / hs) * a.ostride + head * vd + d));
							float z = o[i * R + m], rmax = m_[m], rsum = l_[m];
							if (nth > 0) {
								float f, g;
								rmax = rm[m];
								rsum = rl[m];
								take_in(rmax, rsum, m_[m], l_[m], f, g);
								z = blend(to.v[0], f, z, g);
							}
							precise float last = z;
							if (nth == r.splits - 1) last = z * last_factor(rmax, rsum, head);
							to.v[0] = last;
						}
					}
					o[i * R + m] = 0;
				}
			}
			barrier();
			if (ends && t < used) { // the same once more for the state of the row
				Seen r = sees[t];
				int nth = split - r.split0;
				float rmax = m_[t], rsum = l_[t], f, g;
				if (nth > 0 && nth < r.splits) {
					rmax = rm[t];
					rsum = rl[t];
					take_in(rmax, rsum, m_[t], l_[t], f, g);
				}
				rm[t] = rmax;
				rl[t] = rsum;
				m_[t] = NOTHING;
				l_[t] = 0;
			}
			barrier();
		}
	}
}
