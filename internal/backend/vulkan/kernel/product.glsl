// What products with tiles share: half a warp's worth of rows (16) against up to T tokens.
//
// A workgroup has 64 rows of a stage (256 rows x 256 columns): 32 lanes have a tile of 16, and lane 4g+t has 8 columns of every
// sub-block of the rows g and g+8. Bytes are multiplied and added as integers, exactly; sums of 256 columns are scaled in float32 and
// added in the order of columns, then over the four lanes of a row. So the bits of a token do not depend on T, nor on other tokens.
#define THREADS 128
#include "common.glsl"
#include "act.glsl"
#include "weights.glsl"
#extension GL_EXT_spirv_intrinsics : require
layout(local_size_x = 128) in;
layout(constant_id = 1) const int FORMAT = Q4K;
layout(constant_id = 2) const int T = 1;
const int MOST = 16; // of T

// OpSDot of four signed bytes.
spirv_instruction(extensions = ["SPV_KHR_integer_dot_product"], capabilities = [6018, 6019], id = 4450)
int sdot(uint a, uint b, spirv_literal int format);
#define DOT(a, b) sdot(a, b, 0)

shared float sums[2 * MOST * THREADS];
float acc[2 * MOST]; // [row g or g+8][token], of this lane's columns
uint64_t act_at[MOST]; // a token's activations of the stage

bool int_scales() { return FORMAT <= Q3K; }
uvec4 less(uvec4 q, uint n) { return ((q | 0x80808080u) - n * 0x01010101u) ^ 0x80808080u; } // of every byte below 128
int byte_of(uint w, int i) { return int(w >> (8 * i) & 255); }
int low16(uint w) { return int(w << 16) >> 16; }
int high16(uint w) { return int(w) >> 16; }
uint looked_up(uint w, uvec4 tab) {
	return uint(entry(tab, w & 15) & 255) | uint(entry(tab, w >> 8 & 15) & 255) << 8 | uint(entry(tab, w >> 4 & 15) & 255) << 16 |
		uint(entry(tab, w >> 12 & 15) & 255) << 24;
}
uvec4 octets(uvec4 q) { // as signed bytes, the middle ones swapped
	q ^= 0x80808080u;
	return q & 0xff0000ffu | (q & 0x0000ff00u) << 8 | q >> 8 & 0x0000ff00u;
}

// The bytes of pair p of sub-blocks: x and z are row g's columns 0-3 and 4-7, y and w those of row g+8.
void decode(uint64_t h, int p, uint lane, uvec4 tab, out uvec4 even, out uvec4 odd) {
	if (FORMAT == Q8 || FORMAT == Q8M) {
		even = octets(U4(h + p * 1024 + lane * 16).v[0]);
		odd = octets(U4(h + p * 1024 + 512 + lane * 16).v[0]);
		return;
	}
	uvec4 q = U4(h + p * 512 + lane * 16).v[0];
	if (FORMAT == N4 || FORMAT == NV4) {
		[[unroll]] for (int i = 0; i < 4; i++) {
			even[i] = looked_up(q[i], tab);
			odd[i] = looked_up(q[i] >> 16, tab);
		}
		return;
	}
	even = q & 0x0f0f0f0fu;
	odd = q >> 4 & 0x0f0f0f0fu;
	if (FORMAT == Q5K) {
		uint f = U(h + 1024 + lane * 8 + p * 4).v[0];
		uvec4 x = uvec4(f, f >> 1, f >> 4, f >> 5), y = x >> 8;
		even |= (x & 0x00010001u) << 4 | (x & 0x00040004u) << 10;
		odd |= (y & 0x00010001u) << 4 | (y & 0x00040004u) << 10;
	}
	if (FORMAT == Q6K) {
		uvec2 f = U2(h + 1024 + lane * 16 + p * 8).v[0];
		uvec4 x = uvec4(f.x, f.y, f.x >> 8, f.y >> 8), y = x >> 4;
		even |= (x & 0x00030003u) << 4 | (x & 0x000c000cu) << 10;
		odd |= (y & 0x00030003u) << 4 | (y & 0x000c000cu) << 10;
		even = less(even, 32);
		odd = less(odd, 32);
	}
	if (FORMAT == Q3K) {
		even = less(even, 4);
		odd = less(odd, 4);
	}
}

// One stage of this lane's tile: acc += its products with n tokens.
void stage(uint64_t tile0, uint64_t tile1, int table, uint lane, int n) {
	int g = int(lane >> 2), t = int(lane & 3);
	uvec4 tab = table_of(FORMAT == NV4 ? 2 : table);
	int whole[2 * MOST];
	precise float parts[2 * MOST];
	[[unroll]] for (int i = 0; i < 2 * T; i++) {
		whole[i] = 0;
		parts[i] = 0;
	}
	[[unroll]] for (int p = 0; p < 4; p++) {
		uint64_t h = p < 2 ? tile0 : tile1;
		uvec4 even, odd;
		decode(h, p & 1, lane, tab, even, odd);
		int se[2], so[2];
		float fe[2], fo[2];
		[[unroll]] for (int hi = 0; hi < 2; hi++) {
			int r = g + 8 * hi;
			if (int_scales()) {
				uint w;
				if (FORMAT == Q4K) w = U(h + 1024 + r * 4).v[0];
				else if (FORMAT == Q5K) w = U(h + 1280 + r * 4).v[0];
				else w = U(h + (FORMAT == Q6K ? 1536 : 1024) + r * 8 + (t >> 1) * 4).v[0];
				int less = FORMAT == Q6K || FORMAT == Q3K ? 128 : 0;
				se[hi] = byte_of(w, (p & 1) * 2) - less;
				so[hi] = byte_of(w, (p & 1) * 2 + 1) - less;
			} else if (FORMAT == N4) {
				fe[hi] = F(h + 1024 + r * 16 + (p & 1) * 8).v[0];
				fo[hi] = F(h + 1024 + r * 16 + (p & 1) * 8).v[1];
			} else {
				uint w = FORMAT == NV4 ? U(h + 1024 + r * 16 + (t >> 1) * 8 + (p & 1) * 4).v[0] : U(h + 2048 + r * 8 + (p & 1) * 4).v[0];
				vec2 f = unpackHalf2x16(w);
				fe[hi] = f.x;
				fo[hi] = f.y;
			}
		}
		[[unroll]] for (int k = 0; k < T; k++) {
			if (k >= n) continue;
			uvec4 x = U4(act_at[k] + p * 64 + t * 16).v[0];
			int e0 = DOT(even.x, x.x) + DOT(even.z, x.y), e1 = DOT(even.y, x.x) + DOT(even.w, x.y);
			int o0 = DOT(odd.x, x.z) + DOT(odd.z, x.w), o1 = DOT(odd.y, x.z) + DOT(odd.w, x.w);
			if (int_scales()) {
				whole[k] += se[0] * e0 + so[0] * o0;
				whole[T + k] += se[1] * e1 + so[1] * o1;
			} else {
				parts[k] = fma(float(o0), fo[0], fma(float(e0), fe[0], parts[k]));
				parts[T + k] = fma(float(o1), fo[1], fma(float(e1), fe[1], parts[T + k]));
			}
		}
	}
	// Scales of 256 columns, and mins: lane t has those of the sub-blocks 2t and 2t+1.
	[[unroll]] for (int hi = 0; hi < 2; hi++) {
		int r = g + 8 * hi;
		vec2 d = vec2(1, 0);
		uvec2 m = uvec2(0);
		vec2 add = vec2(0);
		if (FORMAT == Q4K || FORMAT == Q5K) {
			int at = FORMAT == Q4K ? 1024 : 1280;
			d = unpackHalf2x16(U(tile1 + at + 192 + r * 4).v[0]);
			m.x = U(tile1 + at + 64 + r * 8 + (t >> 1) * 4).v[0] >> (16 * (t & 1));
		} else if (FORMAT == Q6K) d.x = half_at(tile1 + 1664 + r * 2);
		else if (FORMAT == Q3K) d.x = half_at(tile1 + 1152 + r * 2);
		else if (FORMAT == Q2K) {
			uint64_t h = t < 2 ? tile0 : tile1;
			d = unpackHalf2x16(U(h + 1280 + r * 4).v[0]);
			m = uvec2(U(h + 1152 + r * 8).v[0], U(h + 1156 + r * 8).v[0]) >> (16 * (t & 1));
		} else if (FORMAT == Q8M) add = unpackHalf2x16(U(tile1 + 2176 + r * 16 + t * 4).v[0]);
		[[unroll]] for (int k = 0; k < T; k++) {
			if (k >= n) continue;
			int i = hi * T + k;
			float scale = F(act_at[k] + SCALE_AT).v[0];
			uvec2 s = U2(act_at[k] + SUMS + t * 8).v[0];
			precise float v;
			if (int_scales()) {
				v = d.x * float(whole[i]);
				int low = 0;
				if (FORMAT == Q4K || FORMAT == Q5K)
					low = byte_of(m.x, 0) * (low16(s.x) + high16(s.x)) + byte_of(m.x, 1) * (low16(s.y) + high16(s.y));
				if (FORMAT == Q2K)
					low = byte_of(m.x, 0) * low16(s.x) + byte_of(m.y, 0) * high16(s.x) + byte_of(m.x, 1) * low16(s.y) + byte_of(m.y, 1) * high16(s.y);
				v = fma(-d.y, float(low), v);
			} else {
				v = parts[i];
				if (FORMAT == Q8M) v = fma(add.y, float(low16(s.y) + high16(s.y)), fma(add.x, float(low16(s.x) + high16(s.x)), v));
			}
			precise float z = fma(scale, v, acc[i]);
			acc[i] = z;
		}
	}
}
void clear_acc() {
	[[unroll]] for (int i = 0; i < 2 * T; i++) acc[i] = 0;
}
// Puts the lanes' sums where all threads find them; total adds those of one of the workgroup's 64 rows.
void share_acc(uint tid) {
	barrier();
	[[unroll]] for (int i = 0; i < 2 * T; i++) sums[i * THREADS + tid] = acc[i];
	barrier();
}
float total(int row, int k) {
	int at = ((row >> 3 & 1) * T + k) * THREADS + (row >> 4) * 32 + (row & 7) * 4;
	precise float s = (sums[at] + sums[at + 1]) + (sums[at + 2] + sums[at + 3]);
	return s;
}
