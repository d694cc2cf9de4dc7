// What products with tiles share: half a warp's worth of rows (16) against up to T tokens.
//
// A workgroup has 64 rows of a stage (256 rows x 256 columns): 32 lanes have a tile of 16, and lane 4g+t has 8
// columns of every sub-block of the rows g and g+8. Bytes are multiplied and added as integers, exactly; sums of 256
// columns are scaled in float32 and added in the order of columns, then over the four lanes of a row. So the bits of
// a token do not depend on T, nor on other tokens.
#define THREADS 128
#include "common.glsl"
#include "act.glsl"
#include "weights.glsl"
#extension GL_EXT_spirv_intrinsics : require
layout(local_size_x = 128) in;
layout(constant_id = 1) const int FORMAT = Q4K;
layout(constant_id = 2) const int T = 1;

// OpSDot of four signed bytes.
spirv_instruction(extensions = ["SPV_KHR_integer_dot_product"], capabilities = [6018, 6019], id = 4450)
int sdot(uint a, uint b, spirv_literal int format);
#define DOT(a, b) sdot(a, b, 0)

const int LOADS = (T * 19 + THREADS - 1) / THREADS; // a thread's part of the activations of a stage
shared uvec4 act_mem[2 * T * 19];
float acc[2 * T]; // [row g or g+8][token], of this lane's columns

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
int low16(uint w) { return int(w << 16) >> 16; }
int high16(uint w) { return int(w) >> 16; }
uint looked_up(uint w, uvec4 tab) {
	return uint(entry(tab, w & 15) & 255) | uint(entry(tab, w >> 8 & 15) & 255) << 8 | uint(entry(tab,
		w >> 4 & 15) & 255) << 16 |
		uint(entry(tab, w >> 12 & 15) & 255) << 24;
}
uvec4 octets(uvec4 q) { // as signed bytes, the middle ones swapped
	q ^= 0x80808080u;
	return q & 0xff0000ffu | (q & 0x0000ff00u) << 8 | q >> 8 & 0x0000ff00u;
}

void load(out Raw w, uint64_t tile0, uint64_t tile1, uint lane) {
	int g = int(lane >> 2), t = int(lane & 3);
	[[unroll]] for (int p = 0; p < 4; p++) {
		uint64_t h = p < 2 ? tile0 : tile1;
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
		[[unroll]] for (int hi = 0; hi < 2; hi++) {
			int r = g + 8 * hi;
			if (FORMAT == Q4K || FORMAT == Q5K) { // a word for both pairs of a half
				if (i == 0) w.scale[2 * p + hi] = U(h + (FORMAT == Q4K ? 1024 : 1280) + r * 4).v[0];
			} else if (int_scales()) {
				if (i == 0) w.scale[2 * p + hi] = U(h + (FORMAT == Q6K ? 1536 : 1024) + r * 8 + (t >> 1) * 4).v[0];
			} else if (FORMAT == N4) {
				uvec2 f = U2(h + 1024 + r * 16 + i * 8).v[0];
				w.scale[2 * p + hi] = f.x;
				w.wide[2 * p + hi] = f.y;
			} else if (FORMAT == NV4) w.scale[2 * p + hi] = U(h + 1024 + r * 16 + (t >> 1) * 8 + i * 4).v[0];
			else w.scale[2 * p + hi] = U(h + 2048 + r * 8 + i * 4).v[0];
		}
	}
	[[unroll]] for (int hi = 0; hi < 2; hi++) {
		int r = g + 8 * hi;
		if (FORMAT == Q4K || FORMAT == Q5K) {
			int at = FORMAT == Q4K ? 1024 : 1280;
			w.d[hi] = U(tile1 + at + 192 + r * 4).v[0];
			w.low[2 * hi] = U(tile1 + at + 64 + r * 8 + (t >> 1) * 4).v[0];
		} else if (FORMAT == Q6K || FORMAT == Q3K) {
			w.d[hi] = U(tile1 + (FORMAT == Q6K ? 1664 : 1152) + (r & ~1) * 2).v[0] >> (16 * (r & 1));
		} else if (FORMAT == Q2K) {
			uint64_t h = t < 2 ? tile0 : tile1;
			w.d[hi] = U(h + 1280 + r * 4).v[0];
			w.low[2 * hi] = U(h + 1152 + r * 8).v[0];
			w.low[2 * hi + 1] = U(h + 1156 + r * 8).v[0];
		} else if (FORMAT == Q8M) w.low[2 * hi] = U(tile1 + 2176 + r * 16 + t * 4).v[0];
	}
}

// The bytes of pair p of sub-blocks: x and z are row g's columns 0-3 and 4-7, y and w those of row g+8.
void decode(Raw w, int p, uvec4 tab, out uvec4 even, out uvec4 odd) {
	if (FORMAT == Q8 || FORMAT == Q8M) {
		even = octets(w.q[2 * p]);
		odd = octets(w.q[2 * p + 1]);
		return;
	}
	uvec4 q = w.q[p];
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
		even = less(even, 32);
		odd = less(odd, 32);
	}
	if (FORMAT == Q3K) {
		even = less(even, 4);
		odd = less(odd, 4);
	}
}

// One stage of this lane's tile: acc += its products with T tokens, whose activations lie in buffer buf.
void stage(Raw w, int buf, int table, uint lane) {
	int t = int(lane & 3), at = buf * (T * 19);
	uvec4 tab = table_of(FORMAT == NV4 ? 2 : table);
	int whole[2 * T];
	precise float parts[2 * T];
	[[unroll]] for (int i = 0; i < 2 * T; i++) {
		whole[i] = 0;
		parts[i] = 0;
	}
	[[unroll]] for (int p = 0; p < 4; p++) {
		uvec4 even, odd;
		decode(w, p, tab, even, odd);
		int se[2], so[2];
		float fe[2], fo[2];
		[[unroll]] for (int hi = 0; hi < 2; hi++) {
			if (int_scales()) {
				uint s = w.scale[2 * (p & 2) + hi];
				int less = FORMAT == Q6K || FORMAT == Q3K ? 128 : 0;
				se[hi] = byte_of(s, (p & 1) * 2) - less;
				so[hi] = byte_of(s, (p & 1) * 2 + 1) - less;
			} else if (FORMAT == N4) {
				fe[hi] = uintBitsToFloat(w.scale[2 * p + hi]);
				fo[hi] = uintBitsToFloat(w.wide[2 * p + hi]);
			} else {
				vec2 f = unpackHalf2x16(w.scale[2 * p + hi]);
				fe[hi] = f.x;
				fo[hi] = f.y;
			}
		}
		[[unroll]] for (int k = 0; k < T; k++) {
			uvec4 x = act_mem[at + k * 19 + p * 4 + t];
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
	[[unroll]] for (int k = 0; k < T; k++) {
		float scale = uintBitsToFloat(act_mem[at + k * 19 + 18].x);
		uvec4 four = act_mem[at + k * 19 + 16 + (t >> 1)];
		uvec2 s = (t & 1) == 0 ? four.xy : four.zw;
		[[unroll]] for (int hi = 0; hi < 2; hi++) {
			int i = hi * T + k;
			precise float v;
			if (int_scales()) {
				vec2 d = unpackHalf2x16(w.d[hi]);
				v = d.x * float(whole[i]);
				uvec2 m = uvec2(w.low[2 * hi], w.low[2 * hi + 1]) >> (16 * (t & 1));
				int low = 0;
				if (FORMAT == Q4K || FORMAT == Q5K)
					low = byte_of(m.x, 0) * (low16(s.x) + high16(s.x)) + byte_of(m.x, 1) * (low16(s.y) + high16(s.y));
				if (FORMAT == Q2K)
					low = byte_of(m.x, 0) * low16(s.x) + byte_of(m.y, 0) * high16(s.x) + byte_of(m.x, 1) * low16(s.y) + byte_of(m.y,
						1) * high16(s.y);
				if (FORMAT != Q6K && FORMAT != Q3K) v = fma(-d.y, float(low), v);
			} else {
				v = parts[i];
				vec2 add = unpackHalf2x16(w.low[2 * hi]);
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
