#version 460
#extension GL_GOOGLE_include_directive : require
// All types and sizes, in float32. A workgroup has up to R rows (tokens x query heads of a KV head): their queries and
// scores lie in shared memory; thread t has the dimensions 2t and 2t+1 (and 256 further on) of all outputs in registers.
// Loads are asked for several at a time, which wait for memory; more of them at once make the kernel longer, and its
// instructions, which come from memory for every launch, take longer than that wait.
#define THREADS 128
#include "common.glsl"
#include "attention.glsl"
layout(local_size_x = 128) in;
layout(constant_id = 1) const int R = 16;
layout(constant_id = 2) const int DIMS = 128; // of keys and values, at most: R*DIMS queries
layout(constant_id = 3) const int PAIRS = 1;  // of dimensions that a thread has
layout(constant_id = 4) const int KTYPE = KV_F16;
layout(constant_id = 5) const int VTYPE = KV_F16;
layout(constant_id = 6) const int AHEAD = 8; // values that are asked for at once; bits do not depend on it
shared vec4 qs[R * DIMS / 4], ps[R * 16]; // scores, then weights: row m has slot s at ps[m * 16 + s / 4][s % 4]
shared Seen sees[R]; // what the rows see
shared float m_[R], l_[R], f_[R], rm[R], rl[R]; // of this split; factor of the last page; of the splits so far

// Sums of eight are added up: a single chain over 512 would lose digits.
float dot8(int at, float v[8]) { // at: in eights
	vec4 x = qs[2 * at], y = qs[2 * at + 1];
	precise float s = x[0] * v[0];
	[[unroll]] for (int e = 1; e < 8; e++) s = fma(e < 4 ? x[e & 3] : y[e & 3], v[e], s);
	return s;
}
// The sums of both halves of the dimensions make a score.
void put_score(int m, int s, bool seen, float x, float y) {
	precise float z = x + y;
	z = z * a.scale;
	ps[m * 16 + s % 64 / 4][s & 3] = seen && s >= sees[m].lo && s < sees[m].hi ? z : NOTHING;
}

void main() {
	uint tid = thread();
	int t = int(tid), warp = t >> 5, lane = t & 31, kd = a.at.kdim, vd = a.at.vdim, heads = a.kvheads * a.group;
	int eights = kd >> 3, middle = (eights + 1) >> 1;
	int ys = a.kvheads * a.chunks, units = I(a.items).v[0] * ys;
	for (int u = a.share * GDIM + BID; u < units; u += a.shares * GDIM) {
		Item it = Items(a.items).v[1 + u / ys];
		int kv = u % ys / a.chunks, y = u % a.chunks, hs = min(a.chunk, a.group - y * a.chunk),
			h0 = kv * a.group + y * a.chunk;
		int used = min(it.rows * hs, R);
		uint64_t region = uint64_t(a.at.off) + uint64_t(kv) * a.at.head;
		barrier();
		for (int i = t; i < R * eights * 2; i += 128) {
			int m = i / (eights * 2);
			qs[i] = m >= used ? vec4(0) : V4(a.q + uint64_t(4) * (int64_t(it.row + m / hs) * a.qstride +
				(h0 + m % hs) * kd)).v[i - m * eights * 2];
		}
		if (t < R) {
			sees[t] = SeenRows(a.seen).v[it.row + min(t, used - 1) / hs];
			m_[t] = NOTHING;
			l_[t] = 0;
		}
		for (int i = t; i < R * 16; i += 128) ps[i] = vec4(0); // rows that there are not
		if (turns_keys(KTYPE)) {
			barrier();
			for (int i = 0; i < R * eights; i += 128) { // the lanes of a row have its dimensions in order
				int at = min(i + t, R * eights - 1);
				float v[8];
				[[unroll]] for (int e = 0; e < 8; e++) v[e] = qs[2 * at + e / 4][e & 3];
				rotate8(v, at % eights * 8, turned(kd), false, tid);
				if (i + t < R * eights)
					[[unroll]] for (int e = 0; e < 8; e++) qs[2 * at + e / 4][e & 3] = v[e];
			}
		}
		precise vec2 o[R * PAIRS];
		[[unroll]] for (int i = 0; i < R * PAIRS; i++) o[i] = vec2(0);
		barrier();
		uint64_t kept = kept_of(sees[0], h0); // sparse: all rows are of one block of queries and of one head
		int next;
		for (int p = next_page(kept, it.p0, it.p1); p < it.p1; p = next) {
			next = next_page(kept, p + 1, it.p1);
			bool gathered = p >= it.base >> 6; // rows may see different slots
			uint64_t page = L(a.pages).v[it.table + p] + region;
			// Scores: a thread has a slot and half of the dimensions.
			int slot = t & 63, half_ = t >> 6;
			bool seen = sees_slot(kept, p * 64 + slot);
			if (!gathered) {
				precise float x[R];
				[[unroll]] for (int k = 0; k < R; k++) x[k] = 0;
				int to = half_ != 0 ? eights : middle;
				for (int c = half_ * middle; c < to; c += AHEAD / 4) {
					float v[AHEAD / 4][8];
					[[unroll]] for (int e = 0; e < AHEAD / 4; e++) read8(v[e], page, KTYPE, kd, slot, min(c + e, to - 1) * 8);
					[[unroll]] for (int e = 0; e < AHEAD / 4; e++)
						if (c + e < to)
							[[unroll]] for (int k = 0; k < R; k++) x[k] = x[k] + dot8(k * eights + c + e, v[e]);
				}
				if (half_ != 0)
					[[unroll]] for (int k = 0; k < R; k++)
						if (k < used) ps[k * 16 + slot / 4][slot & 3] = x[k];
				barrier();
				if (half_ == 0)
					[[unroll]] for (int k = 0; k < R; k++)
						if (k < used) put_score(k, p * 64 + slot, seen, x[k], ps[k * 16 + slot / 4][slot & 3]);
			} else
				for (int m = half_; m < used; m += 2) { // the same sums, row by row
					Seen r = sees[m];
					precise float x = 0, y = 0;
					if (p * 64 + slot >= r.lo && p * 64 + slot < r.hi) {
						int at = lies_at(r.path, r.base, p * 64 + slot);
						uint64_t from = L(a.pages).v[it.table + (at >> 6)] + region;
						for (int c = 0; c < eights; c++) {
							float v[8];
							read8(v, from, KTYPE, kd, at & 63, c * 8);
							precise float z = (c < middle ? x : y) + dot8(m * eights + c, v);
							if (c < middle) x = z;
							else y = z;
						}
					}
					put_score(m, p * 64 + slot, seen, x, y);
				}
			barrier();
			for (int m0 = 0; m0 < used; m0 += 4) {
				int m = min(m0 + warp, used - 1);
				float u = ps[m * 16 + lane / 4][lane & 3], v = ps[m * 16 + 8 + lane / 4][lane & 3], was = m_[m];
				float n = max(was, max32(max(u, v), tid));
				// NaN is no less than anything: it stays
				u = u <= 0.1 * NOTHING ? 0.0 : exp2(u - n);
				v = v <= 0.1 * NOTHING ? 0.0 : exp2(v - n);
				precise float uv = u + v;
				precise float sum = sum32(uv, tid);
				precise float f = exp2(was - n);
				barrier();
				if (m0 + warp < used) {
					ps[m * 16 + lane / 4][lane & 3] = u;
					ps[m * 16 + 8 + lane / 4][lane & 3] = v;
					if (lane == 0) {
						precise float l = fma(l_[m], f, sum);
						m_[m] = n;
						l_[m] = l;
						f_[m] = f;
					}
				}
			}
			barrier();
			int split = p / it.per;
			bool ends = next == it.p1 || next / it.per != split;
			[[unroll]] for (int i = 0; i < PAIRS; i++) {
				int d = 2 * t + 256 * i;
				if (d >= vd) continue;
				[[unroll]] for (int m = 0; m < R; m++)
					if (m < used) o[i * R + m] = o[i * R + m] * f_[m];
				// What a row does not see is left out: what lies there need not be a number.
				if (!gathered)
					for (int s = 0; s < 64; s += AHEAD) {
						vec2 v[AHEAD];
						[[unroll]] for (int e = 0; e < AHEAD; e++) v[e] = read2(page + a.at.values, VTYPE, vd, s + e, d);
						[[unroll]] for (int m = 0; m < R; m++)
							[[unroll]] for (int e = 0; e < AHEAD; e++) {
								float w = ps[m * 16 + s / 4 + e / 4][e & 3];
								precise vec2 z = fma(vec2(w), v[e], o[i * R + m]);
								o[i * R + m] = w == 0 ? o[i * R + m] : z;
							}
					}
				else
					for (int m = 0; m < used; m++) {
						Seen r = sees[m];
						precise vec2 z = vec2(0);
						[[unroll]] for (int k = 0; k < R; k++)
							if (k == m) z = o[i * R + k];
						for (int s = 0; s < 64; s++) {
							float w = ps[m * 16 + s / 4][s & 3];
							if (w == 0) continue;
							int at = lies_at(r.path, r.base, p * 64 + s);
							uint64_t from = L(a.pages).v[it.table + (at >> 6)] + region + a.at.values;
							z = fma(vec2(w), read2(from, VTYPE, vd, at & 63, d), z);
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
							F out_ = F(a.part + uint64_t(4) * (to * vd + d));
							out_.v[0] = o[i * R + m].x;
							out_.v[1] = o[i * R + m].y;
							if (d == 0) {
								F(a.ml + uint64_t(8) * to).v[0] = m_[m];
								F(a.ml + uint64_t(8) * to).v[1] = l_[m];
							}
						} else {
							F to = F(a.to + uint64_t(4) * (int64_t(it.row + m / hs) * a.ostride + head * vd + d));
							vec2 z = o[i * R + m];
							float rmax = m_[m], rsum = l_[m];
							if (nth > 0) {
								float f, g;
								rmax = rm[m];
								rsum = rl[m];
								take_in(rmax, rsum, m_[m], l_[m], f, g);
								z = vec2(blend(to.v[0], f, z.x, g), blend(to.v[1], f, z.y, g));
							}
							precise vec2 last = z;
							if (nth == r.splits - 1) last = z * last_factor(a.sinks, rmax, rsum, head);
							to.v[0] = last.x;
							to.v[1] = last.y;
						}
					}
					o[i * R + m] = vec2(0);
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
