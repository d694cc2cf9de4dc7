// How keys and values lie in the pages of the cache, as kv.h of backend/cuda describes it: pages of 64 slots, in them
// the layers with their KV heads, each with its keys and then its values.
const int KV_F32 = 0, KV_F16 = 1, KV_Q8 = 2;
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
float scale_q8(uint64_t p, int dim, int slot, int d) { return half_at(p +
	64 * dim + (slot * (dim >> 5) + (d >> 5)) * 2); }
float signed_byte(uint w, int i) { return float(int(w << (24 - 8 * i)) >> 24); }
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
		float s = scale_q8(p, dim, slot, d);
		uvec2 q = U2(p + slot * dim + d).v[0];
		[[unroll]] for (int i = 0; i < 4; i++) {
			precise float x = s * signed_byte(q.x, i);
			precise float y = s * signed_byte(q.y, i);
			v[i] = x;
			v[4 + i] = y;
		}
	}
}
float read1(uint64_t p, int type, int dim, int slot, int d) {
	if (type == KV_F32) return F(p + 4 * (slot * dim + d)).v[0];
	if (type == KV_F16) return half_at(p + at_f16(dim, slot, d & ~7) + (d & 7) * 2);
	precise float x = scale_q8(p, dim, slot, d) * signed_byte(U(p + (slot * dim + (d & ~3))).v[0], d & 3);
	return x;
}

// Values are bounded when they are written: a slot that nobody sees must hold numbers. NaN becomes the bound.
float bounded(float v, float most) { return is_nan(v) ? most : clamp(v, -most, most); }
void write8(uint64_t p, int type, int dim, int slot, int d, float v[8], float most_of_32) {
	if (type == KV_F32) {
		[[unroll]] for (int i = 0; i < 8; i++) F(p + 4 * (slot * dim + d)).v[i] = v[i];
	} else if (type == KV_F16) {
		uvec4 h;
		[[unroll]] for (int i = 0; i < 4; i++) h[i] = packHalf2x16(vec2(bounded(v[2 * i], 65504.0), bounded(v[2 * i + 1],
			65504.0)));
		U4(p + at_f16(dim, slot, d)).v[0] = h;
	} else {
		precise float scale = most_of_32 / 127.0;
		precise float inv = scale != 0 ? 1.0 / scale : 0.0;
		uint q[8];
		[[unroll]] for (int i = 0; i < 8; i++) { // halves are rounded away from zero
			precise float x = bounded(v[i], 65024.0) * inv;
			precise float y = x < 0 ? x - 0.5 : x + 0.5;
			q[i] = uint(int(y)) & 255;
		}
		U2(p + slot * dim + d).v[0] = uvec2(q[0] | q[1] << 8 | q[2] << 16 | q[3] << 24,
			q[4] | q[5] << 8 | q[6] << 16 | q[7] << 24);
		if ((d & 31) == 0) H(p + 64 * dim + (slot * (dim >> 5) + (d >> 5)) * 2).v[0] = uint16_t(packHalf2x16(vec2(scale, 0)));
	}
}
#ifdef THREADS
// The largest of 32 values, 8 in each of four neighbouring lanes: what the scale of a block is made from.
float most32(float v[8], uint tid) {
	float m = 0;
	[[unroll]] for (int i = 0; i < 8; i++) m = max(m, abs(bounded(v[i], 65024.0)));
	return max4(m, tid);
}
#endif
