#version 460
#extension GL_GOOGLE_include_directive : require
// Products with formats whose scales are integers, by cooperative matrices of signed bytes: the bits of product.comp,
// since integers are added exactly in any order.
//
// 32 lanes have a tile of 16 rows and T tokens. Codes are multiplied as they are, sub-block by sub-block (of 16 or 32
// columns), and the sums with the integer scales of the sub-block; mins are multiplied with the sums of 16 activations,
// which are two bytes. What comes out is one integer for 256 columns. Codes pass through shared memory, since nothing
// says how a subgroup lays out a matrix. Results are taken as NVIDIA lays them out: lane 4g+t, which reads the scales
// of the rows g and g+8, has those of tokens 2t and 2t+1 of every eight. Where that is wrong the self-test finds out.
//
// MATRIX: with cooperative matrices of a subgroup, which has 32 lanes. Without: the same with loops, for tests where
// there are none.
layout(local_size_x_id = 3) in;
layout(constant_id = 3) const uint THREADS_ = 128; // at least four for each token
#define THREADS int(THREADS_)
#define BOTH_HALVES
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
const int TILES = T / 8;
// Matrices of a pair of sub-blocks: the even and the odd one. If these have two scales each, there are two with their
// lower columns and zeros, and two with zeros and their upper columns.
const int PARTS = FORMAT == Q6K || FORMAT == Q2K || FORMAT == Q3K ? 4 : 2;
// Activations of the next stage are asked for at the beginning of one and have a buffer of their own; with more tokens
// registers and shared memory are short.
const bool AHEAD = T <= 16;
// Of 256 columns of a token, in units of 16 bytes: two for every sub-block, the first four columns of each lane and
// then its last four; sums; scale.
const int UNITS = 19;
shared uvec4 act_mem[(AHEAD ? 2 : 1) * T * UNITS];
shared float factor[T];
// Codes: of 32 lanes SLOTS matrices of 16 rows, PITCH units each of which two are used.
const int SLOTS = T == 8 ? 8 : 4, PITCH = 3, SLOT = 16 * PITCH;
// Lanes fill matrices from their registers, byte by byte, as NVIDIA lays them out. On an H200 that is 7 % faster with
// 16 tokens and Q4_K; with 8, or where matrices are partly zero, it is slower.
#ifdef MATRIX
const bool FILLED = T == 16 && FORMAT == Q4K;
#else
const bool FILLED = false;
#endif
shared uvec4 area[FILLED ? 1 : THREADS / 32 * SLOTS * SLOT];
// What the lanes of a tile wrote to their area is there, or was read.
void together() {
#ifdef MATRIX
	// subgroupBarrier would wait for global memory, too, and with it for the next stage
	if (!FILLED) controlBarrier(gl_ScopeSubgroup, gl_ScopeSubgroup, gl_StorageSemanticsShared, gl_SemanticsAcquireRelease);
#else
	barrier();
#endif
}
int slot_at(uint tid, int slot) { return (int(tid >> 5) * SLOTS + slot % SLOTS) * SLOT; }
// A lane's bytes of a matrix of codes: x and z of row g, y and w of row g+8.
void put(uint tid, int slot, uvec4 v) {
	int at = slot_at(tid, slot) + int(tid >> 2 & 7) * PITCH, t = int(tid & 3);
	if (!FILLED) {
		area[at][t] = v.x;
		area[at + 1][t] = v.z;
		area[at + 8 * PITCH][t] = v.y;
		area[at + 8 * PITCH + 1][t] = v.w;
	}
}
#ifdef MATRIX
#define ROWS icoopmatNV<8, gl_ScopeSubgroup, 16, 32>
#define COLS icoopmatNV<8, gl_ScopeSubgroup, 32, 8>
#define SUMS_ icoopmatNV<32, gl_ScopeSubgroup, 16, 8>
#define FILL(m, i, v)                                                                                           \
	m[i] = int8_t(int(v));                                                                                      \
	m[i + 1] = int8_t(int(v) >> 8);                                                                             \
	m[i + 2] = int8_t(int(v) >> 16);                                                                            \
	m[i + 3] = int8_t(int(v) >> 24);
// The matrix of what was put, which is v.
#define GET(m, slot, v)                                                                                         \
	if (FILLED) {                                                                                               \
		FILL(m, 0, (v).x)                                                                                       \
		FILL(m, 4, (v).z)                                                                                       \
		FILL(m, 8, (v).y)                                                                                       \
		FILL(m, 12, (v).w)                                                                                      \
	} else coopMatLoadNV(m, area, slot_at(tid, slot), PITCH, false);
#define TOKENS(m, at) coopMatLoadNV(m, act_mem, at, UNITS, true);
#define MULTIPLY(r, m, x)                                                                                       \
	{                                                                                                           \
		SUMS_ sums = coopMatMulAddNV(m, x, SUMS_(0));                                                           \
		EVERY (int i = 0; i < 4; i++) r[i] = sums[i];                                                           \
	}
#else
#define ROWS int // where they lie
#define COLS int
#define GET(m, slot, v) m = slot_at(tid, slot);
#define TOKENS(m, at) m = at;
#define MULTIPLY(r, m, x)                                                                                       \
	for (int i = 0; i < 4; i++) {                                                                               \
		r[i] = 0;                                                                                               \
		for (int u = 0; u < 8; u++)                                                                             \
			r[i] += DOT(area[m + (g + 8 * (i >> 1)) * PITCH + u / 4][u & 3],                                    \
				act_mem[x + (2 * t + (i & 1)) * UNITS + u / 4][u & 3]);                                         \
	}
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
	int grp = s0 / kbs, kb = s0 - grp * kbs;
	// A thread's part of the activations: 16 threads have the bytes of some tokens, four what follows them.
	const int ACROSS = THREADS / 16, PASSES = (T + ACROSS - 1) / ACROSS;
	uvec4 acts[PASSES + 1];
	uint off[PASSES + 1];
	uint64_t from = a.act + (uint64_t(tok0) * kbs + kb) * ROW;
	EVERY (int i = 0; i < PASSES; i++) off[i] = uint(min(i * ACROSS + int(tid >> 4), n - 1) * kbs * ROW) + (tid & 15) * 16;
	off[PASSES] = uint(min(int(tid >> 2), n - 1) * kbs * ROW) + SUMS + min(tid & 3, 2) * 16;
#define FETCH_ACTS EVERY (int i = 0; i <= PASSES; i++) acts[i] = U4(from + off[i]).v[0];
#define KEEP(buf)                                                                                               \
	EVERY (int i = 0; i < PASSES; i++) {                                                                        \
		int tok = i * ACROSS + int(tid >> 4), to = (buf) * (T * UNITS) + tok * UNITS + int(tid & 12);           \
		if (T % ACROSS == 0 || tok < T)                                                                         \
			EVERY (int c = 0; c < 4; c++) act_mem[to + c][t] = acts[i][c];                                      \
	}                                                                                                           \
	if (tid < 4 * T && t < 3) act_mem[(buf) * (T * UNITS) + int(tid >> 2) * UNITS + 16 + t] = acts[PASSES];
	first += uint64_t(s0) * (16 * (h0 + h1));
	second += uint64_t(s0) * (16 * (h0 + h1));
	load(w, first, second, lane);
	FETCH_ACTS
	KEEP(0)
	for (int k0 = 0; k0 < T; k0 += THREADS / 32) { // what results are multiplied with
		int k = k0 + int(tid >> 5);
		precise float f = job.scale;
		if (a.sumsq != 0) f = f * rms_factor(a.sumsq + uint64_t(4) * ((tok0 + min(k, n - 1)) * kbs), kbs, a.mean, a.eps, tid);
		if (lane == 0 && k < T) factor[k] = f;
	}
	float acc[TILES * 4];
	EVERY (int i = 0; i < TILES * 4; i++) acc[i] = 0;
	barrier();
	for (int s = s0, buf = 0; s < s1; s++, buf ^= AHEAD ? 1 : 0) {
		bool last = kb + 1 == kbs, more = s + 1 < s1;
		int x0 = buf * (T * UNITS), whole[TILES * 4], r[4];
		// What was used is asked for again at once, from the next stage: registers are short.
		first += more ? 16 * (h0 + h1) : 0;
		second += more ? 16 * (h0 + h1) : 0;
		from += more ? (last ? ROW - kbs * ROW : ROW) : 0;
		if (AHEAD) FETCH_ACTS
		EVERY (int i = 0; i < TILES * 4; i++) whole[i] = 0;
		EVERY (int p = 0; p < 4; p++) {
			uvec4 part[4];
			decode(w, p, uvec4(0), part[0], part[1]);
			load_codes(w, p < 2 ? first : second, p, lane);
			ivec4 sc[2]; // of rows g and g+8, for every part
			EVERY (int hi = 0; hi < 2; hi++) {
				sc[hi] = ivec4(scales_of(w, p, hi), byte2(w.wide[2 * (p & 2) + hi], (p & 1) * 2));
				if (FORMAT == Q6K || FORMAT == Q3K) sc[hi] -= 128;
			}
			if ((p & 1) != 0) load_scales(w, p < 2 ? first : second, p - 1, lane);
			if (PARTS == 4) {
				uint lower = t < 2 ? 0xffffffffu : 0;
				EVERY (int k = 0; k < 2; k++) {
					part[2 + k] = part[k] & ~lower;
					part[k] &= lower;
				}
			}
			if (SLOTS == PARTS) together();
			EVERY (int k = 0; k < PARTS; k++) put(tid, p * PARTS + k, part[k]);
			together();
			ROWS m0, m1, m2, m3;
			GET(m0, p * PARTS, part[0])
			GET(m1, p * PARTS + 1, part[1])
			if (PARTS == 4) {
				GET(m2, p * PARTS + 2, part[2])
				GET(m3, p * PARTS + 3, part[3])
			}
#define ADD(m, x, k)                                                                                            \
	MULTIPLY(r, m, x)                                                                                           \
	EVERY (int i = 0; i < 4; i++) whole[tile * 4 + i] += sc[i >> 1][k] * r[i];
			EVERY (int tile = 0; tile < TILES; tile++) {
				COLS x, y;
				TOKENS(x, x0 + tile * 8 * UNITS + p * 4)
				TOKENS(y, x0 + tile * 8 * UNITS + p * 4 + 2)
				ADD(m0, x, 0)
				ADD(m1, y, 1)
				if (PARTS == 4) {
					ADD(m2, x, 2)
					ADD(m3, y, 3)
				}
			}
		}
		ROWS mins, rest; // times the lowest seven bits of sums, and times the rest
		if (has_mins()) {
			uint mg = mins_of(w, 0, t), mh = mins_of(w, 1, t);
			load_mins(w, first, second, lane);
			if (SLOTS == PARTS) together();
			put(tid, 0, uvec4(mg, mh, 0, 0));
			put(tid, 1, uvec4(0, 0, mg, mh));
			together();
			GET(mins, 0, uvec4(mg, mh, 0, 0))
			GET(rest, 1, uvec4(0, 0, mg, mh))
		}
		if (!AHEAD) FETCH_ACTS
		EVERY (int tile = 0; tile < TILES; tile++) {
			int low[4] = int[4](0, 0, 0, 0);
			if (has_mins()) {
				COLS x;
				TOKENS(x, x0 + tile * 8 * UNITS + 16)
				MULTIPLY(r, rest, x)
				EVERY (int i = 0; i < 4; i++) low[i] = 128 * r[i];
				MULTIPLY(r, mins, x)
				EVERY (int i = 0; i < 4; i++) low[i] += r[i];
			}
			EVERY (int i = 0; i < 4; i++) {
				float scale = uintBitsToFloat(act_mem[x0 + (tile * 8 + 2 * t + (i & 1)) * UNITS + 18].x);
				acc[tile * 4 + i] = scaled(acc[tile * 4 + i], unpackHalf2x16(w.d[i >> 1]), whole[tile * 4 + i], low[i], scale);
			}
		}
		EVERY (int hi = 0; hi < 2; hi++) w.d[hi] = d_of(second, g + 8 * hi);
		if (last || !more) {
			int piece = b - block_of(grp * kbs, all, job.blocks);
			F to = F(job.part + uint64_t(4) * ((int64_t(piece) * a.n + tok0) * rows + grp * 256 + strip * 16 + g));
			EVERY (int i = 0; i < TILES * 4; i++) {
				int k = i / 4 * 8 + 2 * t + (i & 1);
				precise float y = acc[i] * factor[k];
				if (k < n) to.v[k * rows + 8 * (i >> 1 & 1)] = y;
				acc[i] = 0;
			}
		}
		if (last) {
			kb = 0;
			grp++;
		} else kb++;
		if (!AHEAD) barrier(); // activations are read
		KEEP(AHEAD ? buf ^ 1 : 0)
		barrier();
	}
}
