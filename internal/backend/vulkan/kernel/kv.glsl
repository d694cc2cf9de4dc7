// How keys and values lie in the pages of the cache, as kv.h of backend/cuda describes it: pages of 64 slots, in them
// the layers with their KV heads, each with its keys and then its values.
const int KV_F32 = 0, KV_F16 = 1, KV_Q8 = 2, KV_Q4_0 = 3, KV_Q4_1 = 4, KV_T4 = 5, KV_T3 = 6;
bool turns_keys(int type) { return type >= KV_Q8; }
bool turns_values(int type) { return type >= KV_T4; }
// Bytes of a slot: its quants and its scales; and where the scale of value d is among these.
int quant_bytes(int type, int dim) { return type == KV_Q8 ? dim : type == KV_T3 ? dim * 3 / 8 : dim / 2; }
int scale_bytes(int type, int dim) { return type >= KV_T4 ? dim / 64 : type == KV_Q4_1 ? dim / 8 : dim / 16; }
int scale_at(int type, int d) { return type >= KV_T4 ? (d >> 7) * 2 : type == KV_Q4_1 ? (d >> 5) * 4 : (d >> 5) * 2; }
// The codebooks are symmetric: codes from the middle on are these, those before the same with a minus.
const float T4[8] = float[](0.011353, 0.034311, 0.058069, 0.083317, 0.111065, 0.143047, 0.182907, 0.241556);
const float T3[4] = float[](0.021460, 0.065717, 0.117832, 0.190685);
const float T4_EDGES[7] = float[](0.022832, 0.04619, 0.070693, 0.097191, 0.127056, 0.162977, 0.2122315);
const float T3_EDGES[3] = float[](0.043589, 0.091775, 0.154259);
struct KvPlace {
	int off;            // of its first head
	int head;           // bytes of a head
	int values;         // from a head's keys to its values
	int ktype, vtype;
	int kdim, vdim;
};
const int PATH = 64; // slots of a path

// Where 8 values of a slot begin, d a multiple of 8.
int at_f16(int dim, int slot, int d) {
	if ((dim & 63) != 0) return (slot * dim + d) * 2;
	return (d >> 6) * 8192 + slot * 128 + ((((d >> 3) & 7) ^ (slot & 7)) << 4);
}
float signed_byte(uint w, int i) { return float(int(w << (24 - 8 * i)) >> 24); }
uint half_bits(uint64_t p) { return U(p & ~uint64_t(3)).v[0] >> (uint(p & 2) * 8) & 0xffff; }
// What a code of 3 or 4 bits stands for; scale: a half, of Q4_1 below the smallest value.
float value_of(int type, uint q, uint scale) {
	vec2 s = unpackHalf2x16(scale);
	if (type == KV_Q4_0) {
		precise float x = s.x * float(int(q) - 8);
		return x;
	}
	if (type == KV_Q4_1) {
		precise float x = s.x * float(q);
		precise float y = x + s.y;
		return y;
	}
	int mid = type == KV_T4 ? 8 : 4, i = int(q) - mid, at = i < 0 ? -1 - i : i;
	float c = type == KV_T4 ? T4[at & 7] : T3[at & 3];
	precise float x = s.x * (i < 0 ? -c : c);
	return x;
}
// The scale of the value d of a slot.
uint scale_of(uint64_t p, int type, int dim, int slot, int d) {
	uint64_t at = p + 64 * quant_bytes(type, dim) + slot * scale_bytes(type, dim) + scale_at(type, d);
	return type == KV_Q4_1 ? U(at).v[0] : half_bits(at);
}
void read8(out float v[8], uint64_t p, int type, int dim, int slot, int d) {
	if (type == KV_F32) {
		[[unroll]] for (int i = 0; i < 8; i++) v[i] = F(p + 4 * (slot * dim + d)).v[i];
	} else if (type == KV_F16) {
		uvec4 h = U4(p + at_f16(dim, slot, d)).v[0];
		[[unroll]] for (int i = 0; i < 4; i++) {
			vec2 f = unpackHalf2x16(h[i]);
			v[2 * i] = f.x;
			v[2 * i + 1] = f.y;
		}
	} else {
		uint scale = scale_of(p, type, dim, slot, d);
		uint64_t row = p + slot * quant_bytes(type, dim);
		if (type == KV_Q8) {
			float s = unpackHalf2x16(scale).x;
			uvec2 q = U2(row + d).v[0];
			[[unroll]] for (int i = 0; i < 4; i++) {
				precise float x = s * signed_byte(q.x, i);
				precise float y = s * signed_byte(q.y, i);
				v[i] = x;
				v[4 + i] = y;
			}
		} else if (type == KV_T3) {
			uint low = half_bits(row + (d >> 2)), high = byte_at(row + (dim >> 2) + (d >> 3));
			[[unroll]] for (int i = 0; i < 8; i++) v[i] = value_of(type, low >> (2 * i) & 3 | (high >> i & 1) << 2, scale);
		} else {
			uint q = U(row + (d >> 1)).v[0];
			[[unroll]] for (int i = 0; i < 8; i++) v[i] = value_of(type, q >> (4 * i) & 15, scale);
		}
	}
}
float read1(uint64_t p, int type, int dim, int slot, int d) {
	if (type == KV_F32) return F(p + 4 * (slot * dim + d)).v[0];
	if (type == KV_F16) return half_at(p + at_f16(dim, slot, d & ~7) + (d & 7) * 2);
	uint scale = scale_of(p, type, dim, slot, d);
	uint64_t row = p + slot * quant_bytes(type, dim);
	if (type == KV_Q8) {
		precise float x = unpackHalf2x16(scale).x * signed_byte(byte_at(row + d), 0);
		return x;
	}
	if (type == KV_T3) {
		uint low = byte_at(row + (d >> 2)) >> (2 * (d & 3)) & 3, high = byte_at(row + (dim >> 2) + (d >> 3)) >> (d & 7) & 1;
		return value_of(type, low | high << 2, scale);
	}
	return value_of(type, byte_at(row + (d >> 1)) >> (4 * (d & 1)) & 15, scale);
}
// Two values from an even dimension on.
vec2 read2(uint64_t p, int type, int dim, int slot, int d) {
	if (type == KV_F16) return unpackHalf2x16(U(p + at_f16(dim, slot, d & ~7) + (d & 7) * 2).v[0]);
	return vec2(read1(p, type, dim, slot, d), read1(p, type, dim, slot, d + 1));
}

#ifndef FLOATS_ONLY
#define FLOATS_ONLY false
#endif
#ifdef THREADS
// Lanes that have neighbouring dimensions exchange values; all threads of a workgroup take part.
float swapped(float v, uint tid, uint step) {
	if (REDUCE != 0 && step < gl_SubgroupSize) return subgroupShuffleXor(v, step);
	return at_lane(v, tid, tid ^ step);
}
// How many values are rotated as one.
int turned(int dim) { return (dim & -dim & 127) != 0 ? dim & -dim : 128; }
// Rotates 8 values from dimension d on (or back), together with the lanes that have the others of the group: neighbours,
// in order of dimensions. Package quant says how.
void rotate8(inout float v[8], int d, int group, bool back, uint tid) {
	// the signs of 128 values before, and after
	const uint signs[8] = uint[](0x2feb6e95u, 0xbdd73226u, 0xb266f103u, 0x28efe333u, 0x130f9f52u, 0x47526757u, 0x0e4ae394u,
		0x581ce1ffu);
	d &= group - 1;
	uint one = signs[d >> 5] >> (d & 24), two = signs[4 + (d >> 5)] >> (d & 24), first = back ? two : one,
		last = back ? one : two;
	float scale = group == 128 ? 0.08838834764831845 : group == 64 ? 0.125 : group == 32 ? 0.17677669529663687 :
		group == 16 ? 0.25 : 0.35355339059327373;
	[[unroll]] for (int i = 0; i < 8; i++)
		if ((first >> i & 1) != 0) v[i] = -v[i];
	[[unroll]] for (int h = 1; h < 8; h *= 2)
		[[unroll]] for (int i = 0; i < 8; i++)
			if ((i & h) == 0) {
				precise float a = v[i] + v[i + h], b = v[i] - v[i + h];
				v[i] = a;
				v[i + h] = b;
			}
	[[unroll]] for (int h = 1; h < 16; h *= 2)
		[[unroll]] for (int i = 0; i < 8; i++) {
			float other = swapped(v[i], tid, h);
			precise float y = (d >> 3 & h) != 0 ? other - v[i] : v[i] + other;
			if (8 * h < group) v[i] = y;
		}
	[[unroll]] for (int i = 0; i < 8; i++) {
		precise float y = v[i] * ((last >> i & 1) != 0 ? -scale : scale);
		v[i] = y;
	}
}
float sum128(float x, uint tid) { // of 16 neighbouring lanes
	precise float s = x;
	[[unroll]] for (int h = 1; h < 16; h *= 2) s = s + swapped(s, tid, h);
	return s;
}

// Codes at the border between two would be others with the division and the root of some drivers, which are off in the
// last bits (Vulkan allows that, and fma in two roundings as well). So these are put right with integers: m is the 24 bits
// of the result, n what m times the divisor, or m squared, should be.
#define NUMBER(x) ((x) - 0x800000u < 0x7f000000u) // neither zero nor subnormal, infinite or NaN
float divided(float a, float b) {
	precise float q = a / b;
	uint x = floatBitsToUint(abs(a)), y = floatBitsToUint(abs(b)), z = floatBitsToUint(abs(q));
	uint u = x & 0x7fffffu | 0x800000u, v = y & 0x7fffffu | 0x800000u;
	int e = int(x >> 23) - int(y >> 23) + (u < v ? 126 : 127);
	if (!NUMBER(x) || !NUMBER(y) || e < 1 || e > 253) return q;
	uint64_t n = uint64_t(u) << (u < v ? 24 : 23);
	uint m = int(z >> 23) < e ? 0x800000u : int(z >> 23) > e ? 0xffffffu : z & 0x7fffffu | 0x800000u;
	[[unroll]] for (int i = 0; i < 4; i++) if (uint64_t(m) * v > n) m--;
	[[unroll]] for (int i = 0; i < 4; i++) if (uint64_t(m + 1) * v <= n) m++;
	uint rest = 2 * uint(n - uint64_t(m) * v);
	if (rest > v || rest == v && (m & 1) != 0) m++;
	return uintBitsToFloat((uint(e) << 23) + (m - 0x800000u) | (floatBitsToUint(a) ^ floatBitsToUint(b)) & 0x80000000u);
}
float rooted(float a) {
	precise float q = sqrt(a);
	uint x = floatBitsToUint(a);
	if (!NUMBER(x)) return q;
	uint e = ((x >> 23) + 127) >> 1, m = floatBitsToUint(q) & 0x7fffffu | 0x800000u;
	if (floatBitsToUint(q) >> 23 != e) m = floatBitsToUint(q) >> 23 < e ? 0x800000u : 0xffffffu;
	uint64_t n = uint64_t(x & 0x7fffffu | 0x800000u) << ((x >> 23 & 1) != 0 ? 23 : 24);
	[[unroll]] for (int i = 0; i < 4; i++) if (uint64_t(m) * m > n) m--;
	[[unroll]] for (int i = 0; i < 4; i++) if (uint64_t(m + 1) * (m + 1) <= n) m++;
	if (n - uint64_t(m) * m > m) m++;
	return uintBitsToFloat((e << 23) + (m - 0x800000u));
}

// Values are bounded when they are written: a slot that nobody sees must hold numbers. NaN becomes the bound.
float bounded(float v, float most) { return is_nan(v) ? most : clamp(v, -most, most); }
uint code(float x, int most) { return x > 0 ? uint(x < float(most) ? int(x) : most) : 0; }
// The code of x in a codebook, and what it stands for. A value between two of them belongs to the larger.
uint choose(int type, float x, out float c) {
	uint n = type == KV_T4 ? 7 : 3, k = 0;
	bool less = x < 0;
	float y = abs(x);
	[[unroll]] for (int e = 0; e < 7; e++) {
		if (e >= n) break;
		float edge = type == KV_T4 ? T4_EDGES[e] : T3_EDGES[e & 3];
		if (less ? y > edge : y >= edge) k = e + 1;
	}
	c = type == KV_T4 ? T4[k & 7] : T3[k & 3];
	if (less) c = -c;
	return less ? n - k : n + 1 + k;
}
// Writes 8 values of a key or a value of a layer (if `live`), together with the lanes that have its others: neighbours,
// in order of dimensions. All threads of a workgroup take part, each with one of both.
void write8(uint64_t p, KvPlace at, bool key, int slot, int d, float v[8], bool live, uint tid) {
	int type = key ? at.ktype : at.vtype, dim = key ? at.kdim : at.vdim;
	if (live && type == KV_F32)
		[[unroll]] for (int i = 0; i < 8; i++) F(p + 4 * (slot * dim + d)).v[i] = v[i];
	if (live && type == KV_F16) {
		uvec4 h;
		[[unroll]] for (int i = 0; i < 4; i++) h[i] = packHalf2x16(vec2(bounded(v[2 * i], 65504.0), bounded(v[2 * i + 1],
			65504.0)));
		U4(p + at_f16(dim, slot, d)).v[0] = h;
	}
	if (FLOATS_ONLY || max(at.ktype, at.vtype) < KV_Q8) return; // nobody else takes part either
	[[unroll]] for (int i = 0; i < 8; i++) v[i] = bounded(v[i], 65024.0);
	if (turns_keys(at.ktype) || turns_values(at.vtype)) {
		float r[8] = v;
		rotate8(r, d, turned(dim), false, tid);
		if (key ? turns_keys(type) : turns_values(type))
			[[unroll]] for (int i = 0; i < 8; i++) v[i] = bounded(r[i], 65024.0);
	}
	// What lanes have in common: the largest of 32 values and the first place of it, the bounds, the length of 128.
	float most = 0, lo = v[0], hi = v[0];
	precise float squares = 0;
	[[unroll]] for (int i = 0; i < 8; i++) {
		most = max(most, abs(v[i]));
		lo = min(lo, v[i]);
		hi = max(hi, v[i]);
		squares = fma(v[i], v[i], squares);
	}
	most = max4(most, tid);
	int first = 99; // where the largest value is, and its sign
	[[unroll]] for (int i = 7; i >= 0; i--)
		if (abs(v[i]) == most) first = (d & 31 | i) * 2 + (v[i] < 0 ? 1 : 0);
	first = -int(max4(-float(first), tid));
	lo = -max4(-lo, tid);
	hi = max4(hi, tid);
	float length_ = rooted(sum128(squares, tid));
	uint64_t row = p + slot * quant_bytes(type, dim),
		scales = p + 64 * quant_bytes(type, dim) + slot * scale_bytes(type, dim) + scale_at(type, d);
	uint q[8];
	squares = 0;
	[[unroll]] for (int i = 0; i < 8; i++) {
		float c;
		float x = length_ > 0 ? divided(v[i], length_) : 0.0;
		q[i] = choose(type, x, c);
		squares = fma(c, c, squares);
	}
	squares = sum128(squares, tid);
	float ratio = divided(length_, rooted(squares));
	uint s = packHalf2x16(vec2(min(ratio, 65504.0), 0)) & 0xffff; // of a codebook
	uint high = 0;
	[[unroll]] for (int i = 0; i < 8; i++) {
		if (s == 0) q[i] = 0;
		high |= (q[i] >> 2 & 1) << i;
	}
	if (at.ktype == KV_T3 || at.vtype == KV_T3) { // four lanes have a word of high bits
		high |= uint(swapped(float(high), tid, 1)) << 8;
		high |= uint(swapped(float(high), tid, 2)) << 16;
	}
	if (!live || type < KV_Q8) return;
	if (type == KV_Q8) {
		float scale = divided(most, 127.0);
		float inv = scale != 0 ? divided(1.0, scale) : 0.0;
		[[unroll]] for (int i = 0; i < 8; i++) { // halves are rounded away from zero
			precise float x = v[i] * inv;
			precise float y = x < 0 ? x - 0.5 : x + 0.5;
			q[i] = uint(int(y)) & 255;
		}
		U2(row + d).v[0] = uvec2(q[0] | q[1] << 8 | q[2] << 16 | q[3] << 24, q[4] | q[5] << 8 | q[6] << 16 | q[7] << 24);
		if ((d & 31) == 0) H(scales).v[0] = uint16_t(packHalf2x16(vec2(scale, 0)));
		return;
	}
	if (type == KV_Q4_0) { // the scale gives the largest value, of several the first, the code 0
		precise float scale = ((first & 1) != 0 ? most : -most) / 8.0;
		s = packHalf2x16(vec2(scale, 0));
		[[unroll]] for (int i = 0; i < 8; i++) {
			float x = divided(v[i], scale);
			precise float y = x + 8.5;
			q[i] = (s & 0x7fff) != 0 ? code(y, 15) : 0;
		}
		if ((s & 0x7fff) == 0) s = 0;
	} else if (type == KV_Q4_1) {
		precise float range = hi - lo;
		float scale = divided(range, 15.0);
		s = packHalf2x16(vec2(scale, lo));
		[[unroll]] for (int i = 0; i < 8; i++) {
			precise float x = v[i] - lo;
			float y = divided(x, scale);
			precise float z = y + 0.5;
			q[i] = (s & 0xffff) != 0 ? code(z, 15) : 0;
		}
		if ((d & 31) == 0) U(scales).v[0] = s;
	}
	if ((d & (type >= KV_T4 ? 127 : 31)) == 0 && type != KV_Q4_1) H(scales).v[0] = uint16_t(s);
	uint all = 0;
	if (type == KV_T3) {
		[[unroll]] for (int i = 0; i < 8; i++) all |= (q[i] & 3) << (2 * i);
		H(row + (d >> 2)).v[0] = uint16_t(all);
		if ((d & 31) == 0) U(row + (dim >> 2) + (d >> 3)).v[0] = high;
	} else {
		[[unroll]] for (int i = 0; i < 8; i++) all |= q[i] << (4 * i);
		U(row + (d >> 1)).v[0] = all;
	}
}
#endif
