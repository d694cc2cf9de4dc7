#version 460
#extension GL_GOOGLE_include_directive : require
// Products with formats whose scales are integers, by cooperative matrices of signed bytes: the bits of product.comp,
// since integers are added exactly in any order.
//
// 32 lanes have a tile of 16 rows and T tokens. Codes are multiplied as they are, sub-block by sub-block (of 16 or 32
// columns), and the sums with the integer scales of the sub-block; mins are multiplied with the sums of 16 activations,
// which are two bytes. What comes out is one integer for 256 columns.
//
// The lane 4g+t must have the results of rows g and g+8 (its own, see tile.glsl) and of tokens 2t, 2t+1, 2t+8 and 2t+9,
// which is how tensor cores of NVIDIA lay them out. Nothing promises that, so the self-test finds out.
//
// MATRIX: with cooperative matrices of a subgroup, which has 32 lanes. Without: the same with loops, for tests where
// there are none. DIRECT: what is multiplied is laid out in registers as tensor cores want it, not by way of shared
// memory.
layout(local_size_x_id = 3) in;
layout(constant_id = 3) const uint THREADS_ = 128;
#define THREADS int(THREADS_)
#define BOTH_HALVES
#define OTHERS
#ifdef MATRIX
#extension GL_NV_cooperative_matrix : require
#extension GL_NV_integer_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require
#define EVERY [[unroll]] for
#else
#define EVERY for // compiling takes longer than running
#endif
#include "tile.glsl"
#include "rms.glsl"
#include "jobs.glsl"
layout(constant_id = 4) const bool THEN = false; // something is done with the results
const int TILES = T / 16, LOADS = (T * 19 + THREADS - 1) / THREADS;
shared uvec4 act_mem[T * 19];
shared float factor[T];
// Sub-blocks of a format: of 16 columns, or of 32.
bool short_blocks() { return FORMAT == Q6K || FORMAT == Q2K || FORMAT == Q3K; }
// Of the result i of a lane: whether it is of row g+8, and its token.
int high_row(int i) { return i >> 1 & 1; }
int token_of(int i, int t) { return 2 * t + (i & 1) + 8 * (i >> 2); }

#ifndef DIRECT
// Shared memory of 32 lanes, in units of 16 bytes: codes of 64 columns, PITCH units a row, of even sub-blocks with
// zeros where activations of the odd ones lie, then the other way round; then mins with zeros, 3 units a row.
const int PITCH = 5, PLANE = 16 * PITCH, MINS_AT = 2 * PLANE, AREA = MINS_AT + 48;
shared uvec4 area[AREA * THREADS / 32];
// What the lanes of a tile wrote to their area is there.
void together() {
#ifdef MATRIX
	// subgroupBarrier would wait for global memory, too, and with it for the next stage
	controlBarrier(gl_ScopeSubgroup, gl_ScopeSubgroup, gl_StorageSemanticsShared, gl_SemanticsAcquireRelease);
#else
	barrier();
#endif
}
#endif

int whole[TILES * 8], low[TILES * 8];

#ifdef MATRIX
#define ROWS icoopmatNV<8, gl_ScopeSubgroup, 16, 32>
#define COLS icoopmatNV<8, gl_ScopeSubgroup, 32, 16>
#define SUMS_ icoopmatNV<32, gl_ScopeSubgroup, 16, 16>
#ifdef DIRECT
ROWS rows_of(uvec4 w) {
	ROWS m;
	[[unroll]] for (int i = 0; i < 16; i++) m[i] = int8_t(int(w[i / 4]) << (24 - 8 * (i & 3)) >> 24);
	return m;
}
COLS cols_of(uvec4 w) {
	COLS m;
	[[unroll]] for (int i = 0; i < 16; i++) m[i] = int8_t(int(w[i / 4]) << (24 - 8 * (i & 3)) >> 24);
	return m;
}
#endif
#endif

void main() {
	uint tid = thread(), lane = tid & 31;
	int b = BID, j = 0, g = int(lane >> 2), t = int(lane & 3);
	while (j < 7 && b >= a.job[j].blocks) b -= a.job[j++].blocks;
	Job job = a.job[j];
	int tok0 = BIDY * T, n = min(T, a.n - tok0), rows = job.groups * 256, kbs = a.kb;
	int all = job.groups * kbs, s0 = first_stage(b, all, job.blocks), s1 = first_stage(b + 1, all, job.blocks);
	int h0 = half_size(FORMAT, 0), h1 = half_size(FORMAT, 1), strip = (BIDZ * THREADS + int(tid)) / 32;
	uint64_t first = job.w + strip * h0, second = job.w + 16 * h0 + strip * h1;
	Raw w;
	uvec4 acts[LOADS];
	int grp = s0 / kbs, kb = s0 - grp * kbs;
#define FETCH_ACTS(k)                                                                                           \
	EVERY (int i = 0; i < LOADS; i++) {                                                                         \
		int o = i * THREADS + int(tid), tok = min(o / 19, n - 1);                                               \
		if (o < T * 19) acts[i] = U4(a.act + (uint64_t(tok0 + tok) * kbs + (k)) * ROW).v[o % 19];               \
	}
#define KEEP                                                                                                    \
	EVERY (int i = 0; i < LOADS; i++)                                                                           \
		if (i * THREADS + int(tid) < T * 19) act_mem[i * THREADS + int(tid)] = acts[i];
	first += uint64_t(s0) * (16 * (h0 + h1));
	second += uint64_t(s0) * (16 * (h0 + h1));
	load(w, first, second, lane);
	FETCH_ACTS(kb)
	KEEP
#ifndef DIRECT
	int at = int(tid >> 5) * AREA;
	for (int i = int(lane); i < AREA; i += 32) area[at + i] = uvec4(0);
#endif
	for (int k0 = 0; k0 < T; k0 += THREADS / 32) { // what results are multiplied with
		int k = k0 + int(tid >> 5);
		precise float f = job.scale;
		if (a.sumsq != 0) f = f * rms_factor(a.sumsq + uint64_t(4) * ((tok0 + min(k, n - 1)) * kbs), kbs, a.mean, a.eps, tid);
		if (lane == 0 && k < T) factor[k] = f;
	}
	float acc[TILES * 8];
	EVERY (int i = 0; i < TILES * 8; i++) acc[i] = 0;
	barrier();
	for (int s = s0; s < s1; s++) {
		bool last = kb + 1 == kbs, more = s + 1 < s1;
		// What was used is asked for again at once, from the next stage: registers are short.
		first += more ? 16 * (h0 + h1) : 0;
		second += more ? 16 * (h0 + h1) : 0;
		EVERY (int i = 0; i < TILES * 8; i++) whole[i] = low[i] = 0;
		EVERY (int p = 0; p < 4; p++) {
			uvec4 even, odd;
			decode(w, p, uvec4(0), even, odd);
			load_codes(w, p < 2 ? first : second, p, lane);
			ivec4 sc[2]; // of row g and g+8: even and odd sub-block, and of their upper halves
			EVERY (int hi = 0; hi < 2; hi++) {
				sc[hi] = ivec4(scales_of(w, p, hi), 0, 0);
				if (short_blocks()) sc[hi].zw = byte2(w.wide[2 * (p & 2) + hi], (p & 1) * 2);
				if (FORMAT == Q6K || FORMAT == Q3K) sc[hi] -= 128;
			}
			if ((p & 1) != 0) load_scales(w, p < 2 ? first : second, p - 1, lane);
#ifdef DIRECT
			ROWS me = rows_of(even), mo = rows_of(odd), ml, mh;
			if (short_blocks()) {
				uvec4 none = uvec4(0);
				me = rows_of(t < 2 ? even : none);
				ml = rows_of(t < 2 ? none : even);
				mo = rows_of(t < 2 ? odd : none);
				mh = rows_of(t < 2 ? none : odd);
			}
			EVERY (int tile = 0; tile < TILES; tile++) {
				uvec4 x = act_mem[(tile * 16 + g) * 19 + p * 4 + t], y = act_mem[(tile * 16 + g + 8) * 19 + p * 4 + t];
				COLS xe = cols_of(uvec4(x.xy, y.xy)), xo = cols_of(uvec4(x.zw, y.zw));
				SUMS_ re = coopMatMulAddNV(me, xe, SUMS_(0)), ro = coopMatMulAddNV(mo, xo, SUMS_(0));
				EVERY (int i = 0; i < 8; i++) whole[tile * 8 + i] += sc[high_row(i)].x * re[i] + sc[high_row(i)].y * ro[i];
				if (short_blocks()) {
					re = coopMatMulAddNV(ml, xe, SUMS_(0));
					ro = coopMatMulAddNV(mh, xo, SUMS_(0));
					EVERY (int i = 0; i < 8; i++) whole[tile * 8 + i] += sc[high_row(i)].z * re[i] + sc[high_row(i)].w * ro[i];
				}
			}
#else
			EVERY (int hi = 0; hi < 2; hi++) { // the other halves are zero and stay so
				area[at + (g + 8 * hi) * PITCH + t].xy = uvec2(even[hi], even[2 + hi]);
				area[at + PLANE + (g + 8 * hi) * PITCH + t].zw = uvec2(odd[hi], odd[2 + hi]);
			}
			together();
#ifdef MATRIX
			ROWS me[2], mo[2];
			EVERY (int c = 0; c < 2; c++) {
				coopMatLoadNV(me[c], area, at + 2 * c, PITCH, false);
				coopMatLoadNV(mo[c], area, at + PLANE + 2 * c, PITCH, false);
			}
			EVERY (int tile = 0; tile < TILES; tile++) {
				SUMS_ re = SUMS_(0), ro = SUMS_(0);
				EVERY (int c = 0; c < 2; c++) {
					COLS x;
					coopMatLoadNV(x, act_mem, tile * 16 * 19 + p * 4 + 2 * c, 19, true);
					re = coopMatMulAddNV(me[c], x, re);
					ro = coopMatMulAddNV(mo[c], x, ro);
					if (!short_blocks() && c == 0) continue;
					EVERY (int i = 0; i < 8; i++) {
						ivec4 f = sc[high_row(i)];
						whole[tile * 8 + i] += (short_blocks() && c == 1 ? f.z : f.x) * re[i] + (short_blocks() && c == 1 ? f.w : f.y) * ro[i];
					}
					re = SUMS_(0);
					ro = SUMS_(0);
				}
			}
#else
			for (int i = 0; i < TILES * 8; i++)
				for (int c = 0; c < 4; c++) {
					uvec4 x = act_mem[(i / 8 * 16 + token_of(i & 7, t)) * 19 + p * 4 + c];
					int from = at + (g + 8 * high_row(i)) * PITCH + c;
					uvec2 e = area[from].xy, o = area[from + PLANE].zw;
					ivec4 f = sc[high_row(i)];
					whole[i] += (short_blocks() && c > 1 ? f.z : f.x) * (DOT(e.x, x.x) + DOT(e.y, x.y)) +
						(short_blocks() && c > 1 ? f.w : f.y) * (DOT(o.x, x.z) + DOT(o.y, x.w));
				}
#endif
			together();
#endif
		}
		if (has_mins()) {
			uint mg = mins_of(w, 0, t), mh = mins_of(w, 1, t);
			load_mins(w, first, second, lane);
#ifdef DIRECT
			ROWS m0 = rows_of(uvec4(mg, mh, 0, 0)), m1 = rows_of(uvec4(0, 0, mg, mh));
			EVERY (int tile = 0; tile < TILES; tile++) {
				int x = (tile * 16 + g) * 19 + 16, y = x + 8 * 19;
				COLS m = cols_of(uvec4(act_mem[x][t], act_mem[x + 1][t], act_mem[y][t], act_mem[y + 1][t]));
				SUMS_ r0 = coopMatMulAddNV(m0, m, SUMS_(0)), r1 = coopMatMulAddNV(m1, m, SUMS_(0));
				EVERY (int i = 0; i < 8; i++) low[tile * 8 + i] = r0[i] + 128 * r1[i];
			}
#else
			EVERY (int hi = 0; hi < 2; hi++) {
				int to = at + MINS_AT + (g + 8 * hi) * 3;
				area[to][t] = hi == 0 ? mg : mh;
				area[to + 2][t] = hi == 0 ? mg : mh;
			}
			together();
#ifdef MATRIX
			ROWS m0, m1; // mins times the lowest seven bits of sums, and times the rest
			coopMatLoadNV(m0, area, at + MINS_AT, 3, false);
			coopMatLoadNV(m1, area, at + MINS_AT + 1, 3, false);
			EVERY (int tile = 0; tile < TILES; tile++) {
				COLS x;
				coopMatLoadNV(x, act_mem, tile * 16 * 19 + 16, 19, true);
				SUMS_ r0 = coopMatMulAddNV(m0, x, SUMS_(0)), r1 = coopMatMulAddNV(m1, x, SUMS_(0));
				EVERY (int i = 0; i < 8; i++) low[tile * 8 + i] = r0[i] + 128 * r1[i];
			}
#else
			for (int i = 0; i < TILES * 8; i++)
				for (int c = 0; c < 4; c++) {
					int x = (i / 8 * 16 + token_of(i & 7, t)) * 19 + 16;
					uint m = area[at + MINS_AT + (g + 8 * high_row(i)) * 3][c];
					low[i] += DOT(m, act_mem[x][c]) + 128 * DOT(m, act_mem[x + 1][c]);
				}
#endif
			together();
#endif
		}
		FETCH_ACTS(more ? (last ? 0 : kb + 1) : kb)
		vec2 d[2];
		EVERY (int hi = 0; hi < 2; hi++) {
			d[hi] = unpackHalf2x16(w.d[hi]);
			w.d[hi] = d_of(second, g + 8 * hi);
		}
		EVERY (int i = 0; i < TILES * 8; i++) {
			float scale = uintBitsToFloat(act_mem[(i / 8 * 16 + token_of(i & 7, t)) * 19 + 18].x);
			acc[i] = scaled(acc[i], d[high_row(i)], whole[i], low[i], scale);
		}
		if (last || !more) {
			int piece = b - block_of(grp * kbs, all, job.blocks);
			F to = F(job.part + uint64_t(4) * ((int64_t(piece) * a.n + tok0) * rows + grp * 256 + strip * 16 + g));
			EVERY (int i = 0; i < TILES * 8; i++) {
				int k = i / 8 * 16 + token_of(i & 7, t);
				precise float y = acc[i] * factor[k];
				if (k < n) to.v[k * rows + 8 * high_row(i)] = y;
				acc[i] = 0;
			}
			if (THEN) then(grp, tid);
		}
		if (last) {
			kb = 0;
			grp++;
		} else kb++;
		barrier(); // activations are read
		KEEP
		barrier();
	}
}
