#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "weights.glsl"
// Rows of a matrix by their number, in float32: exactly the values that were stored, times a factor. A workgroup has
// 256 columns of a row, a thread one of them.
layout(local_size_x = 256) in;
ARGS(uint64_t dst; uint64_t w; uint64_t ids; int stride; int rows; int cols; int n; int format; int table; float scale;)

// Row r, column c of a tile whose halves begin at `first` and `second`.
float tile_value(uint64_t first, uint64_t second, int r, int c) {
	uint64_t h = c < 128 ? first : second;
	int sb = c >> 5 & 3, t = c >> 3 & 3, j = c >> 2 & 1, i = c & 3, lane = 4 * (r & 7) + t, hi = r >> 3, part = c >> 7;
	int of16 = r * 8 + (c >> 4 & 1) * 4 + sb; // of what belongs to 16 columns
	if (a.format == Q8 || a.format == Q8M) {
		int q = int(byte_at(h + sb * 512 + lane * 16 + (2 * j + hi) * 4 + i)) - 128;
		precise float v = float(q) * half_at(h + 2048 + r * 8 + sb * 2);
		if (a.format == Q8M) v = v + half_at(second + 2176 + r * 16 + c / 32 * 2);
		return v;
	}
	uint word = U(h + (sb >> 1) * 512 + lane * 16 + (2 * j + hi) * 4).v[0];
	if (a.format == N4 || a.format == NV4) {
		int v = entry(table_of(a.format == NV4 ? 2 : a.table), word >> (4 * (i + 4 * (sb & 1))) & 15);
		precise float y = float(v) * (a.format == NV4 ? half_at(h + 1024 + 2 * of16) : F(h + 1024 + r * 16 + sb * 4).v[0]);
		return y;
	}
	int nibble = (i >> 1) * 2 + (i & 1) * 4 + (sb & 1), q = int(word >> (4 * nibble) & 15);
	precise float d, m, y;
	switch (a.format) {
	case Q4K:
	case Q5K: {
		int at = 1024;
		if (a.format == Q5K) {
			at = 1280;
			q |= int(U(h + 1024 + lane * 8 + (sb >> 1) * 4).v[0] >> (4 * j +
				(i >> 1) * 2 + hi + 8 * (sb & 1) + 16 * (i & 1)) & 1) << 4;
		}
		d = half_at(second + at + 192 + r * 4) * float(byte_at(h + at + r * 4 + sb));
		m = half_at(second + at + 194 + r * 4) * float(byte_at(second + at + 64 + r * 8 + 4 * part + sb));
		y = d * float(q) - m;
		return y;
	}
	case Q6K: {
		int pair = 2 * j + (i >> 1), field = (pair & 1) + (pair >> 1) * 4 + 2 * (sb & 1);
		q |= int(U(h + 1024 + lane * 16 + (2 * (sb >> 1) + hi) * 4).v[0] >> (2 * field + 16 * (i & 1)) & 3) << 4;
		y = half_at(second + 1664 + r * 2) * float(int(byte_at(h + 1536 + of16)) - 128) * float(q - 32);
		return y;
	}
	case Q2K:
		d = half_at(h + 1280 + r * 4) * float(byte_at(h + 1024 + of16));
		m = half_at(h + 1282 + r * 4) * float(byte_at(h + 1152 + of16));
		y = d * float(q) - m;
		return y;
	}
	y = half_at(second + 1152 + r * 2) * float(int(byte_at(h + 1024 + of16)) - 128) * float(q - 4); // Q3_K
	return y;
}

void main() {
	int t = int(gl_LocalInvocationIndex), c = BID * 256 + t, id = max(0, I(a.ids).v[BIDY]); // -1: no best token
	if (c >= a.cols) return;
	precise float v = 0;
	if (id < a.rows) {
		uint64_t at = uint64_t(id) * a.cols + c;
		if (a.format == 100) v = F(a.w + 4 * at).v[0];
		else if (a.format == 101) v = half_at(a.w + 2 * at);
		else if (a.format == 102) v = uintBitsToFloat((byte_at(a.w + 2 * at) | byte_at(a.w + 2 * at + 1) << 8) << 16);
		else {
			int h0 = half_size(a.format, 0), h1 = half_size(a.format, 1), strip = (id & 255) >> 4;
			uint64_t stage = a.w + (uint64_t(id >> 8) * GDIM + BID) * (16 * (h0 + h1));
			v = tile_value(stage + strip * h0, stage + 16 * h0 + strip * h1, id & 15, t);
		}
	}
	if (a.scale != 1) v = v * a.scale;
	F(a.dst + uint64_t(4) * (int64_t(BIDY) * a.stride)).v[c] = v;
}
