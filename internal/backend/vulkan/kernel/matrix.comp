#version 460
#extension GL_GOOGLE_include_directive : require
// Products with formats whose scales are integers, by cooperative matrices of signed bytes: the bits of product.comp,
// since integers are added exactly in any order.
//
// 32 lanes have a tile of 16 rows and T tokens. A code times its scale has up to 13 bits, so it is two bytes: its
// lowest six bits and the rest. Both planes of 64 columns pass through shared memory, where activations lie as they are
// packed; mins are multiplied with the sums of 16 activations, which are two bytes as well. What comes out is one
// integer for 256 columns.
//
// MATRIX: with cooperative matrices of a subgroup, which has 32 lanes. Without: the same with loops, for tests where
// there are none.
layout(local_size_x_id = 3) in;
layout(constant_id = 3) const uint THREADS_ = 128;
#define THREADS int(THREADS_)
#ifdef MATRIX
#extension GL_NV_cooperative_matrix : require
#extension GL_NV_integer_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require
#endif
#ifdef MATRIX
#define EVERY [[unroll]] for
#else
#define EVERY for // compiling takes longer than running
#endif
#include "tile.glsl"
#include "rms.glsl"
#include "jobs.glsl"
layout(constant_id = 4) const int K = 32; // columns of a step: 16 or 32
const int TILES = T / 16, LOADS = (T * 19 + THREADS - 1) / THREADS;
// Shared memory of 32 lanes, in units of 16 bytes: two planes of 16 rows x 64 columns, PITCH a row; then mins; then
// results, [row][token]. Behind them the scales (d, dmin) of rows.
const int PITCH = 5, PLANE = 16 * PITCH, SCALES = 2 * PLANE, AREA = SCALES + 4;
shared uvec4 act_mem[T * 19];
shared uvec4 area[AREA * THREADS / 32];
shared float factor[T];

// The two planes of four codes of row g or g+8 times their scale. Codes and scales are those of tiles, so what makes
// some of them signed is subtracted here: (q-a)(s-128) = qs - as - 128q + 128a. 2^14 more keeps it positive and is lost
// with the ninth bit of the upper plane.
void planes(uint q, int scale, out uint low, out uint high) {
	uvec2 w = uvec2(q, q >> 8) & 0x00ff00ffu, v = w * uint(scale);
	int less = FORMAT == Q6K ? 32 : 4;
	if (FORMAT == Q6K || FORMAT == Q3K) v = v + uint(16384 + 128 * less - less * scale) * 0x00010001u - (w << 7);
	low = v.x & 0x003f003fu | (v.y & 0x003f003fu) << 8;
	v >>= 6;
	high = v.x & 0x00ff00ffu | (v.y & 0x00ff00ffu) << 8;
}
// What the lanes of a tile wrote to their area is there.
void together() {
#ifdef MATRIX
	// subgroupBarrier would wait for global memory, too, and with it for the next stage
	controlBarrier(gl_ScopeSubgroup, gl_ScopeSubgroup, gl_StorageSemanticsShared, gl_SemanticsAcquireRelease);
#else
	barrier();
#endif
}

// Where the result of row 2i + lane/16 and token lane%16 lies; its last two bits are those of the lane.
#define PLACE(at, i) ((at) + (2 * (i) + int(lane >> 4)) * PITCH + int(lane & 15) / 4)

#ifdef MATRIX
#define ROWS icoopmatNV<8, gl_ScopeSubgroup, 16, K>
#define COLS icoopmatNV<8, gl_ScopeSubgroup, K, 16>
#define SUMS_ icoopmatNV<32, gl_ScopeSubgroup, 16, 16>
SUMS_ lower[TILES], upper[TILES];
void clear_sums() {
	[[unroll]] for (int n = 0; n < TILES; n++) {
		lower[n] = SUMS_(0);
		upper[n] = SUMS_(0);
	}
}
// The planes at `at` with the columns from 64p on of all tokens.
void multiply(int at, int p, uint lane) {
	[[unroll]] for (int c = 0; c < 4; c += K / 16) {
		ROWS low, high;
		COLS x;
		coopMatLoadNV(low, area, at + c, PITCH, false);
		coopMatLoadNV(high, area, at + PLANE + c, PITCH, false);
		[[unroll]] for (int n = 0; n < TILES; n++) {
			coopMatLoadNV(x, act_mem, n * 16 * 19 + p * 4 + c, 19, true);
			lower[n] = coopMatMulAddNV(low, x, lower[n]);
			upper[n] = coopMatMulAddNV(high, x, upper[n]);
		}
	}
}
void give_sums(int at, int n, uint lane) {
	SUMS_ whole = upper[n] * 64 + lower[n];
	coopMatStoreNV(whole, area, at, PITCH, false);
}
// Mins lie at `at`, 48 bytes a row: 16 of them, zeros, and once more.
#define MINS const int STEPS = 32 / K; ROWS mins[2 * STEPS];
#define LOAD_MINS(at)                                                                       \
	[[unroll]] for (int c = 0; c < STEPS; c++) {                                            \
		coopMatLoadNV(mins[c], area, (at) + c * (K / 16), 3, false);                        \
		coopMatLoadNV(mins[STEPS + c], area, (at) + 1 + c * (K / 16), 3, false);            \
	}
#define GIVE_LOW(at, n)                                                                     \
	SUMS_ low = SUMS_(0), high = SUMS_(0);                                                  \
	[[unroll]] for (int c = 0; c < STEPS; c++) {                                            \
		COLS x;                                                                             \
		coopMatLoadNV(x, act_mem, (n) * 16 * 19 + 16 + c * (K / 16), 19, true);             \
		low = coopMatMulAddNV(mins[c], x, low);                                             \
		high = coopMatMulAddNV(mins[STEPS + c], x, high);                                   \
	}                                                                                       \
	low = high * 128 + low;                                                                 \
	coopMatStoreNV(low, area, (at) + PLANE, PITCH, false);
#else
// The lane has token lane%16 of every 16, and rows 2i + lane/16.
int lower[TILES * 8], upper[TILES * 8];
void clear_sums() {
	for (int i = 0; i < TILES * 8; i++) lower[i] = upper[i] = 0;
}
int dot16(uvec4 a, uvec4 b) { return DOT(a.x, b.x) + DOT(a.y, b.y) + DOT(a.z, b.z) + DOT(a.w, b.w); }
void multiply(int at, int p, uint lane) {
	for (int n = 0; n < TILES; n++)
		for (int c = 0; c < 4; c++) {
			uvec4 x = act_mem[(n * 16 + int(lane & 15)) * 19 + p * 4 + c];
			for (int i = 0; i < 8; i++) {
				int from = at + (2 * i + int(lane >> 4)) * PITCH + c;
				lower[n * 8 + i] += dot16(area[from], x);
				upper[n * 8 + i] += dot16(area[from + PLANE], x);
			}
		}
}
void give_sums(int at, int n, uint lane) {
	for (int i = 0; i < 8; i++) area[PLACE(at, i)][lane & 3] = uint(upper[8 * n + i] * 64 + lower[8 * n + i]);
}
#define MINS uvec4 mins[3 * 8];
#define LOAD_MINS(at)                                                                       \
	for (int i = 0; i < 24; i++) mins[i] = area[(at) + (2 * (i / 3) + int(lane >> 4)) * 3 + i % 3];
#define GIVE_LOW(at, n)                                                                     \
	for (int i = 0; i < 8; i++) {                                                           \
		int k = ((n) * 16 + int(lane & 15)) * 19 + 16;                                      \
		int low = dot16(mins[3 * i], act_mem[k]) + dot16(mins[3 * i + 1], act_mem[k + 1]);  \
		int high = dot16(mins[3 * i + 1], act_mem[k]) + dot16(mins[3 * i + 2], act_mem[k + 1]); \
		area[PLACE((at) + PLANE, i)][lane & 3] = uint(high * 128 + low);                    \
	}
#endif

void main() {
	uint tid = thread(), lane = tid & 31;
	int b = BID, j = 0, at = int(tid >> 5) * AREA, g = int(lane >> 2), t = int(lane & 3);
	while (j < 7 && b >= a.job[j].blocks) b -= a.job[j++].blocks;
	Job job = a.job[j];
	int tok0 = BIDY * T, n = min(T, a.n - tok0), rows = job.groups * 256, kbs = a.kb;
	int all = job.groups * kbs, s0 = first_stage(b, all, job.blocks), s1 = first_stage(b + 1, all, job.blocks);
	int h0 = half_size(FORMAT, 0), h1 = half_size(FORMAT, 1), strip = (BIDZ * THREADS + int(tid)) / 32;
	uint64_t first = job.w + strip * h0, second = job.w + 16 * h0 + strip * h1;
	Raw w;
	uint d; // (d, dmin) of row lane%16
	uvec4 acts[LOADS];
	int grp = s0 / kbs, kb = s0 - grp * kbs;
#define FETCH_ACTS(k)                                                                                           \
	EVERY (int i = 0; i < LOADS; i++) {                                                                \
		int o = i * THREADS + int(tid), tok = min(o / 19, n - 1);                                               \
		if (o < T * 19) acts[i] = U4(a.act + (uint64_t(tok0 + tok) * kbs + (k)) * ROW).v[o % 19];               \
	}
#define KEEP                                                                                                    \
	EVERY (int i = 0; i < LOADS; i++)                                                                  \
		if (i * THREADS + int(tid) < T * 19) act_mem[i * THREADS + int(tid)] = acts[i];
	first += uint64_t(s0) * (16 * (h0 + h1));
	second += uint64_t(s0) * (16 * (h0 + h1));
	load(w, first, second, lane);
	d = d_of(second, int(lane & 15));
	FETCH_ACTS(kb)
	KEEP
	for (int k0 = 0; k0 < T; k0 += THREADS / 32) { // what results are multiplied with
		int k = k0 + int(tid >> 5);
		precise float f = job.scale;
		if (a.sumsq != 0) f = f * rms_factor(a.sumsq + uint64_t(4) * ((tok0 + min(k, n - 1)) * kbs), kbs, a.mean, a.eps, tid);
		if (lane == 0 && k < T) factor[k] = f;
	}
	float acc[TILES * 8]; // token lane%16 of every 16, rows 2i + lane/16
	EVERY (int i = 0; i < TILES * 8; i++) acc[i] = 0;
	barrier();
	for (int s = s0; s < s1; s++) {
		bool last = kb + 1 == kbs, more = s + 1 < s1;
		// What was used is asked for again at once, from the next stage: registers are short.
		first += more ? 16 * (h0 + h1) : 0;
		second += more ? 16 * (h0 + h1) : 0;
		if (lane < 16) area[at + SCALES + int(lane >> 2)][lane & 3] = d;
		d = d_of(second, int(lane & 15));
		clear_sums();
		EVERY (int p = 0; p < 4; p++) {
			uvec4 even, odd;
			codes(w, p, even, odd);
			load_codes(w, p < 2 ? first : second, p, lane);
			EVERY (int hi = 0; hi < 2; hi++) {
				ivec2 sc = scales_of(w, p, hi);
				uvec4 low, high;
				planes(even[hi], sc.x, low.x, high.x);
				planes(even[2 + hi], sc.x, low.y, high.y);
				planes(odd[hi], sc.y, low.z, high.z);
				planes(odd[2 + hi], sc.y, low.w, high.w);
				area[at + (g + 8 * hi) * PITCH + t] = low;
				area[at + PLANE + (g + 8 * hi) * PITCH + t] = high;
			}
			if ((p & 1) != 0) load_scales(w, p < 2 ? first : second, p - 1, lane);
			together();
			multiply(at, p, lane);
			together();
		}
		FETCH_ACTS(more ? (last ? 0 : kb + 1) : kb)
		MINS
		if (has_mins()) {
			EVERY (int hi = 0; hi < 2; hi++) {
				uint m = mins_of(w, hi, t);
				int to = at + (g + 8 * hi) * 3;
				area[to][t] = m;
				area[to + 1][t] = 0;
				area[to + 2][t] = m;
			}
			load_mins(w, first, second, lane);
			together();
			LOAD_MINS(at)
			together();
		}
		uint ds[8];
		EVERY (int i = 0; i < 8; i++) {
			int row = 2 * i + int(lane >> 4);
			ds[i] = area[at + SCALES + row / 4][row & 3];
		}
		EVERY (int tile = 0; tile < TILES; tile++) {
			give_sums(at, tile, lane);
			if (has_mins()) {
				GIVE_LOW(at, tile)
			}
			together();
			float scale = uintBitsToFloat(act_mem[(tile * 16 + int(lane & 15)) * 19 + 18].x);
			EVERY (int i = 0; i < 8; i++) {
				int whole = int(area[PLACE(at, i)][lane & 3]), low = has_mins() ? int(area[PLACE(at + PLANE, i)][lane & 3]) : 0;
				acc[tile * 8 + i] = scaled(acc[tile * 8 + i], unpackHalf2x16(ds[i]), whole, low, scale);
			}
			together();
		}
		if (last || !more) {
			int piece = b - block_of(grp * kbs, all, job.blocks);
			F to = F(job.part + uint64_t(4) * ((int64_t(piece) * a.n + tok0) * rows + grp * 256 + strip * 16 + int(lane & 15)));
			EVERY (int tile = 0; tile < TILES; tile++) { // rows side by side are stored together
				EVERY (int i = 0; i < 8; i++) {
					precise float y = acc[tile * 8 + i] * factor[tile * 16 + int(lane & 15)];
					area[PLACE(at, i)][lane & 3] = floatBitsToUint(y);
					acc[tile * 8 + i] = 0;
				}
				together();
				EVERY (int i = 0; i < 8; i++) {
					int k = 2 * i + int(lane >> 4);
					if (tile * 16 + k < n)
						to.v[(tile * 16 + k) * rows] = uintBitsToFloat(area[at + int(lane & 15) * PITCH + k / 4][k & 3]);
				}
				together();
			}
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
