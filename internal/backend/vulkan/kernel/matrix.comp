#version 460
#extension GL_GOOGLE_include_directive : require
// Products with formats whose scales are integers, by cooperative matrices of signed bytes: the bits of product.comp,
// since integers are added exactly in any order.
//
// 32 lanes have a tile of 16 rows and T tokens. Codes are multiplied as they are, sub-block by sub-block (of 16 or 32
// columns), and the sums with the integer scales of the sub-block; mins are multiplied with the sums of 16 activations,
// which are two bytes. What comes out is one integer for 256 columns. Codes pass through shared memory, since nothing
// says how a subgroup lays out a matrix; a matrix of numbers that is loaded first says which results a lane has.
//
// MATRIX: with cooperative matrices of a subgroup, which has 32 lanes. Without: the same with loops, for tests where
// there are none.
layout(local_size_x_id = 3) in;
layout(constant_id = 3) const uint THREADS_ = 128;
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
// Where lane 4g+t has the results of rows g and g+8, whose scales it reads anyway: the bit of a result's number that
// says which of both, with tokens 2t, 2t+1, 2t+8 and 2t+9. -1: any order.
layout(constant_id = 4) const int HIGH = -1;
const int TILES = T / 16, LOADS = (T * 19 + THREADS - 1) / THREADS;
shared uvec4 act_mem[T * 19];
shared float factor[T];
// Shared memory of 32 lanes, in units of 16 bytes: codes of 64 columns, PITCH units a row, of even sub-blocks with zeros
// where activations of the odd ones lie, then the other way round; mins and zeros in turn; scales of rows; their (d,
// dmin).
const int PITCH = 5, PLANE = 16 * PITCH, MINS = 2 * PLANE + 1, SCALES = MINS + 32, DS = SCALES + 16, AREA = DS + 4;
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
bool short_blocks() { return FORMAT == Q6K || FORMAT == Q2K || FORMAT == Q3K; } // sub-blocks of 16 columns
int high(int i) { return HIGH < 0 ? 0 : i >> HIGH & 1; }

int whole[TILES * 8], low[TILES * 8];

#ifdef MATRIX
#define ROWS icoopmatNV<8, gl_ScopeSubgroup, 16, 32>
#define COLS icoopmatNV<8, gl_ScopeSubgroup, 32, 16>
#define SUMS_ icoopmatNV<32, gl_ScopeSubgroup, 16, 16>
#endif

void main() {
	uint tid = thread(), lane = tid & 31;
	int b = BID, j = 0, g = int(lane >> 2), t = int(lane & 3), at = int(tid >> 5) * AREA;
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
	for (int k0 = 0; k0 < T; k0 += THREADS / 32) { // what results are multiplied with
		int k = k0 + int(tid >> 5);
		precise float f = job.scale;
		if (a.sumsq != 0) f = f * rms_factor(a.sumsq + uint64_t(4) * ((tok0 + min(k, n - 1)) * kbs), kbs, a.mean, a.eps, tid);
		if (lane == 0 && k < T) factor[k] = f;
	}
	int place[8]; // which results of 16 x 16 this lane has: 16 * row + token
#ifdef MATRIX
	for (int i = int(lane); i < 64; i += 32) area[at + i] = uvec4(4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3);
	together();
	SUMS_ numbers;
	coopMatLoadNV(numbers, area, at, 4, false);
	EVERY (int i = 0; i < 8; i++) place[i] = numbers[i];
	together();
#else
	for (int i = 0; i < 8; i++) place[i] = (2 * i + int(lane >> 4)) * 16 + int(lane & 15);
#endif
	for (int i = int(lane); i < AREA; i += 32) area[at + i] = uvec4(0);
	float acc[TILES * 8];
	EVERY (int i = 0; i < TILES * 8; i++) acc[i] = 0;
	barrier();
	for (int s = s0; s < s1; s++) {
		bool last = kb + 1 == kbs, more = s + 1 < s1;
		// What was used is asked for again at once, from the next stage: registers are short.
		first += more ? 16 * (h0 + h1) : 0;
		second += more ? 16 * (h0 + h1) : 0;
		EVERY (int i = 0; i < TILES * 8; i++) whole[i] = low[i] = 0;
		if (HIGH < 0 && t == 0)
			EVERY (int hi = 0; hi < 2; hi++) {
				area[at + SCALES + g + 8 * hi] = uvec4(w.scale[hi], w.scale[4 + hi], w.wide[hi], w.wide[4 + hi]);
				area[at + DS + (g + 8 * hi) / 4][g & 3] = w.d[hi];
			}
		EVERY (int p = 0; p < 4; p++) {
			uvec4 even, odd;
			decode(w, p, uvec4(0), even, odd);
			load_codes(w, p < 2 ? first : second, p, lane);
			EVERY (int hi = 0; hi < 2; hi++) { // the other halves are zero and stay so
				area[at + (g + 8 * hi) * PITCH + t].xy = uvec2(even[hi], even[2 + hi]);
				area[at + PLANE + (g + 8 * hi) * PITCH + t].zw = uvec2(odd[hi], odd[2 + hi]);
			}
			together();
			ivec4 sc[8]; // of each result's row: of the even and of the odd sub-block, and of their upper halves
			EVERY (int i = 0; i < 8; i++) {
				uvec4 f = HIGH < 0 ? area[at + SCALES + place[i] / 16] : uvec4(w.scale[high(i)], w.scale[4 + high(i)],
					w.wide[high(i)], w.wide[4 + high(i)]);
				sc[i] = ivec4(byte2(p < 2 ? f.x : f.y, (p & 1) * 2), short_blocks() ? byte2(p < 2 ? f.z : f.w, (p & 1) * 2) : ivec2(0));
				if (FORMAT == Q6K || FORMAT == Q3K) sc[i] -= 128;
			}
#ifdef MATRIX
			ROWS me[2], mo[2];
			EVERY (int c = 0; c < 2; c++) {
				coopMatLoadNV(me[c], area, at + 2 * c, PITCH, false);
				coopMatLoadNV(mo[c], area, at + PLANE + 2 * c, PITCH, false);
			}
			EVERY (int tile = 0; tile < TILES; tile++) {
				COLS x, y;
				coopMatLoadNV(x, act_mem, tile * 16 * 19 + p * 4, 19, true);
				coopMatLoadNV(y, act_mem, tile * 16 * 19 + p * 4 + 2, 19, true);
				SUMS_ re = coopMatMulAddNV(me[0], x, SUMS_(0)), ro = coopMatMulAddNV(mo[0], x, SUMS_(0));
				if (short_blocks()) {
					EVERY (int i = 0; i < 8; i++) whole[tile * 8 + i] += sc[i].x * re[i] + sc[i].y * ro[i];
					re = coopMatMulAddNV(me[1], y, SUMS_(0));
					ro = coopMatMulAddNV(mo[1], y, SUMS_(0));
					EVERY (int i = 0; i < 8; i++) whole[tile * 8 + i] += sc[i].z * re[i] + sc[i].w * ro[i];
				} else {
					re = coopMatMulAddNV(me[1], y, re);
					ro = coopMatMulAddNV(mo[1], y, ro);
					EVERY (int i = 0; i < 8; i++) whole[tile * 8 + i] += sc[i].x * re[i] + sc[i].y * ro[i];
				}
			}
#else
			for (int i = 0; i < TILES * 8; i++)
				for (int c = 0; c < 4; c++) {
					uvec4 x = act_mem[(i / 8 * 16 + place[i & 7] % 16) * 19 + p * 4 + c];
					int from = at + place[i & 7] / 16 * PITCH + c;
					uvec2 e = area[from].xy, o = area[from + PLANE].zw;
					ivec4 f = sc[i & 7];
					whole[i] += (short_blocks() && c > 1 ? f.z : f.x) * (DOT(e.x, x.x) + DOT(e.y, x.y)) +
						(short_blocks() && c > 1 ? f.w : f.y) * (DOT(o.x, x.z) + DOT(o.y, x.w));
				}
#endif
			if ((p & 1) != 0) load_scales(w, p < 2 ? first : second, p - 1, lane);
			together();
		}
		if (has_mins()) {
			area[at + MINS + 2 * g][t] = mins_of(w, 0, t);
			area[at + MINS + 2 * g + 16][t] = mins_of(w, 1, t);
			load_mins(w, first, second, lane);
			together();
#ifdef MATRIX
			ROWS m0, m1; // mins times the lowest seven bits of sums, and times the rest
			coopMatLoadNV(m0, area, at + MINS, 2, false);
			coopMatLoadNV(m1, area, at + MINS - 1, 2, false);
			EVERY (int tile = 0; tile < TILES; tile++) {
				COLS x;
				coopMatLoadNV(x, act_mem, tile * 16 * 19 + 16, 19, true);
				SUMS_ r0 = coopMatMulAddNV(m0, x, SUMS_(0)), r1 = coopMatMulAddNV(m1, x, SUMS_(0));
				EVERY (int i = 0; i < 8; i++) low[tile * 8 + i] = r0[i] + 128 * r1[i];
			}
#else
			for (int i = 0; i < TILES * 8; i++)
				for (int c = 0; c < 4; c++) {
					int x = (i / 8 * 16 + place[i & 7] % 16) * 19 + 16;
					uint m = area[at + MINS + 2 * (place[i & 7] / 16)][c];
					low[i] += DOT(m, act_mem[x][c]) + 128 * DOT(m, act_mem[x + 1][c]);
				}
#endif
		}
		FETCH_ACTS(more ? (last ? 0 : kb + 1) : kb)
		EVERY (int i = 0; i < TILES * 8; i++) {
			int row = place[i & 7] / 16;
			vec2 d = unpackHalf2x16(HIGH < 0 ? area[at + DS + row / 4][row & 3] : w.d[high(i & 7)]);
			float scale = uintBitsToFloat(act_mem[(i / 8 * 16 + place[i & 7] % 16) * 19 + 18].x);
			acc[i] = scaled(acc[i], d, whole[i], low[i], scale);
		}
		EVERY (int hi = 0; hi < 2; hi++) w.d[hi] = d_of(second, g + 8 * hi);
		if (last || !more) {
			int piece = b - block_of(grp * kbs, all, job.blocks);
			F to = F(job.part + uint64_t(4) * ((int64_t(piece) * a.n + tok0) * rows + grp * 256 + strip * 16));
			EVERY (int i = 0; i < TILES * 8; i++) {
				int k = i / 8 * 16 + place[i & 7] % 16;
				precise float y = acc[i] * factor[k];
				if (k < n) to.v[k * rows + place[i & 7] / 16] = y;
				acc[i] = 0;
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
