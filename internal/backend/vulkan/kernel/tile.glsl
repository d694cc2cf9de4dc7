// Reading tiles of 16 rows x 256 columns: 32 lanes have one, and lane 4g+t has 8 columns of every sub-block of the rows
// g and g+8. BOTH_HALVES: and where sub-blocks have 16 columns the scales of both halves of 32, not of its own alone.
#ifndef THREADS
#define THREADS 128
layout(local_size_x = 128) in;
#endif
#include "common.glsl"
#include "act.glsl"
#include "weights.glsl"
#extension GL_EXT_spirv_intrinsics : require
layout(constant_id = 1) const int FORMAT = Q4K;
layout(constant_id = 2) const int T = 1; // tokens

// OpSDot of four signed bytes.
spirv_instruction(extensions = ["SPV_KHR_integer_dot_product"], capabilities = [6018, 6019], id = 4450)
int sdot(uint a, uint b, spirv_literal int format);
#define DOT(a, b) sdot(a, b, 0)

// What a lane reads of a tile, before it is decoded: it is asked for a stage ahead.
struct Raw {
	uvec4 q[8];    // bytes, or nibbles in the first four
	uint more[8];  // further bits: of pair p at 2p and 2p+1
	uint scale[8]; // of pair p: row g at 2p, row g+8 at 2p+1; N4 has two words each
	uint wide[8];
	uint d[2], low[4];
};

bool int_scales() { return FORMAT <= Q3K; }
uvec4 less(uvec4 q, uint n) { return ((q | 0x80808080u) - n * 0x01010101u) ^ 0x80808080u; } // of every byte below 128
int byte_of(uint w, int i) { return int(w >> (8 * i) & 255); }
ivec2 byte2(uint w, int i) { return ivec2(byte_of(w, i), byte_of(w, i + 1)); }
uint looked_up(uint w, uvec4 tab) {
	return uint(entry(tab, w & 15) & 255) | uint(entry(tab, w >> 8 & 15) & 255) << 8 | uint(entry(tab,
		w >> 4 & 15) & 255) << 16 |
		uint(entry(tab, w >> 12 & 15) & 255) << 24;
}
uvec4 octets(uvec4 q) { // as signed bytes, the middle ones swapped
	q ^= 0x80808080u;
	return q & 0xff0000ffu | (q & 0x0000ff00u) << 8 | q >> 8 & 0x0000ff00u;
}

// The scales of 256 columns of a row, two halves, in the second half of a tile.
uint d_of(uint64_t tile1, int r) {
	if (FORMAT == Q6K || FORMAT == Q3K) return U(tile1 + (FORMAT == Q6K ? 1664 : 1152) + (r & ~1) * 2).v[0] >> (16 * (r & 1));
	return U(tile1 + (FORMAT == Q4K ? 1216 : FORMAT == Q5K ? 1472 : 1280) + r * 4).v[0];
}
// Pair p of sub-blocks lies in a half of the tile, and its scales in the same.
void load_codes(inout Raw w, uint64_t h, int p, uint lane) {
	int i = p & 1;
	if (FORMAT == Q8 || FORMAT == Q8M) {
		w.q[2 * p] = U4(h + i * 1024 + lane * 16).v[0];
		w.q[2 * p + 1] = U4(h + i * 1024 + 512 + lane * 16).v[0];
	} else w.q[p] = U4(h + i * 512 + lane * 16).v[0];
	if (FORMAT == Q5K) w.more[2 * p] = U(h + 1024 + lane * 8 + i * 4).v[0];
	if (FORMAT == Q6K) {
		uvec2 f = U2(h + 1024 + lane * 16 + i * 8).v[0];
		w.more[2 * p] = f.x;
		w.more[2 * p + 1] = f.y;
	}
}
void load_scales(inout Raw w, uint64_t h, int p, uint lane) {
	int g = int(lane >> 2), t = int(lane & 3), i = p & 1;
	if (int_scales() && i != 0) return; // a word for both pairs of a half
	[[unroll]] for (int hi = 0; hi < 2; hi++) {
		int r = g + 8 * hi;
		if (FORMAT == Q4K || FORMAT == Q5K) w.scale[2 * p + hi] = U(h + (FORMAT == Q4K ? 1024 : 1280) + r * 4).v[0];
		else if (int_scales()) {
			uint64_t at = h + (FORMAT == Q6K ? 1536 : 1024) + r * 8;
#ifdef BOTH_HALVES
			uvec2 f = U2(at).v[0];
			w.scale[2 * p + hi] = f.x;
			w.wide[2 * p + hi] = f.y;
#else
			w.scale[2 * p + hi] = U(at + (t >> 1) * 4).v[0];
#endif
		}
		else if (FORMAT == N4) {
			uvec2 f = U2(h + 1024 + r * 16 + i * 8).v[0];
			w.scale[2 * p + hi] = f.x;
			w.wide[2 * p + hi] = f.y;
		} else if (FORMAT == NV4) w.scale[2 * p + hi] = U(h + 1024 + r * 16 + (t >> 1) * 8 + i * 4).v[0];
		else w.scale[2 * p + hi] = U(h + 2048 + r * 8 + i * 4).v[0];
	}
}
void load_mins(inout Raw w, uint64_t tile0, uint64_t tile1, uint lane) {
	int t = int(lane & 3);
	[[unroll]] for (int hi = 0; hi < 2; hi++) {
		int r = int(lane >> 2) + 8 * hi;
		if (FORMAT == Q4K || FORMAT == Q5K) w.low[2 * hi] = U(tile1 + (FORMAT == Q4K ? 1088 : 1344) + r * 8 + (t >> 1) * 4).v[0];
		if (FORMAT == Q2K) {
			uint64_t h = t < 2 ? tile0 : tile1;
			w.low[2 * hi] = U(h + 1152 + r * 8).v[0];
			w.low[2 * hi + 1] = U(h + 1156 + r * 8).v[0];
		}
		if (FORMAT == Q8M) w.low[2 * hi] = U(tile1 + 2176 + r * 16 + t * 4).v[0];
	}
}
void load(out Raw w, uint64_t tile0, uint64_t tile1, uint lane) {
	[[unroll]] for (int p = 0; p < 4; p++) {
		load_codes(w, p < 2 ? tile0 : tile1, p, lane);
		load_scales(w, p < 2 ? tile0 : tile1, p, lane);
	}
	load_mins(w, tile0, tile1, lane);
	if (int_scales())
		[[unroll]] for (int hi = 0; hi < 2; hi++) w.d[hi] = d_of(tile1, int(lane >> 2) + 8 * hi);
}

// The codes of pair p of sub-blocks, as bytes: x and z are row g's columns 0-3 and 4-7, y and w those of row g+8.
void codes(Raw w, int p, out uvec4 even, out uvec4 odd) {
	uvec4 q = w.q[p];
	even = q & 0x0f0f0f0fu;
	odd = q >> 4 & 0x0f0f0f0fu;
	if (FORMAT == Q5K) {
		uint f = w.more[2 * p];
		uvec4 x = uvec4(f, f >> 1, f >> 4, f >> 5), y = x >> 8;
		even |= (x & 0x00010001u) << 4 | (x & 0x00040004u) << 10;
		odd |= (y & 0x00010001u) << 4 | (y & 0x00040004u) << 10;
	}
	if (FORMAT == Q6K) {
		uvec2 f = uvec2(w.more[2 * p], w.more[2 * p + 1]);
		uvec4 x = uvec4(f.x, f.y, f.x >> 8, f.y >> 8), y = x >> 4;
		even |= (x & 0x00030003u) << 4 | (x & 0x000c000cu) << 10;
		odd |= (y & 0x00030003u) << 4 | (y & 0x000c000cu) << 10;
	}
}
// What the codes stand for, as signed bytes.
void decode(Raw w, int p, uvec4 tab, out uvec4 even, out uvec4 odd) {
	if (FORMAT == Q8 || FORMAT == Q8M) {
		even = octets(w.q[2 * p]);
		odd = octets(w.q[2 * p + 1]);
		return;
	}
	if (FORMAT == N4 || FORMAT == NV4) {
		uvec4 q = w.q[p];
		[[unroll]] for (int i = 0; i < 4; i++) {
			even[i] = looked_up(q[i], tab);
			odd[i] = looked_up(q[i] >> 16, tab);
		}
		return;
	}
	codes(w, p, even, odd);
	if (FORMAT == Q6K || FORMAT == Q3K) {
		even = less(even, FORMAT == Q6K ? 32 : 4);
		odd = less(odd, FORMAT == Q6K ? 32 : 4);
	}
}
// The scales of pair p for rows g and g+8 (hi), as they are stored: of the even and of the odd sub-block.
ivec2 scales_of(Raw w, int p, int hi) {
	return byte2(w.scale[2 * (p & 2) + hi], (p & 1) * 2);
}
bool has_mins() { return FORMAT == Q4K || FORMAT == Q5K || FORMAT == Q2K; }
// The mins of the 64 columns from 64t on of row g or g+8, one byte for 16 columns.
uint mins_of(Raw w, int hi, int t) {
	uvec2 m = uvec2(w.low[2 * hi], w.low[2 * hi + 1]) >> (16 * (t & 1));
	if (FORMAT == Q2K) return m.x & 255 | (m.y & 255) << 8 | (m.x & 0xff00) << 8 | (m.y & 0xff00) << 16;
	return (m.x & 255) * 0x0101u | (m.x >> 8 & 255) * 0x01010000u;
}
// The sum of 256 columns, from exact integers: of codes times scales and activations, and of mins and activations.
// Every kernel ends in this.
float scaled(float acc, vec2 d, int whole, int low, float scale) {
	precise float v = d.x * float(whole);
	if (has_mins()) v = fma(-d.y, float(low), v);
	precise float z = fma(scale, v, acc);
	return z;
}
