#version 460
#extension GL_GOOGLE_include_directive : require
// Products with float weights and float32 activations: y = W x, W [rows][cols] as it is stored. Columns come in
// chunks of 128; lane l has columns 4l to 4l+3 of a chunk. 32 lanes have four rows of W and up to T tokens.
//   wide: the lanes sum their rows over all chunks in order; for matrices with many rows.
//   narrow: the eight groups of lanes share the chunks of four rows (group w has chunks w, w+8, ...), added in order.
// Which one it is belongs to the matrix, so a token has the same bits in any batch.
#define THREADS 256
#include "common.glsl"
layout(local_size_x = 256) in;
layout(constant_id = 1) const int TYPE = 0; // F32, F16, BF16
layout(constant_id = 2) const int T = 1;
layout(constant_id = 3) const int QUADS_ = 0; // rows of W and x begin at multiples of four values, and have whole ones
layout(constant_id = 4) const int NARROW = 0;
const int MOST = 16;
ARGS(uint64_t y; uint64_t w; uint64_t x; uint64_t ids; uint64_t scale; int n; int rows; int cols; int xs; int ys;
	int used; float all;)
shared float parts[8 * 4 * MOST];

float weight(uint64_t at) {
	if (TYPE == 0) return F(a.w + 4 * at).v[0];
	uint w = U(a.w + (2 * at & ~uint64_t(3))).v[0] >> (16 * uint(at & 1));
	return TYPE == 1 ? unpackHalf2x16(w).x : uintBitsToFloat(w << 16);
}
vec4 weights(uint64_t row, int c) {
	vec4 f = vec4(0);
	if (c >= a.cols) return f;
	uint64_t at = row + c;
	if (QUADS_ == 0) {
		[[unroll]] for (int i = 0; i < 4; i++)
			if (c + i < a.cols) f[i] = weight(at + i);
		return f;
	}
	if (TYPE == 0) return V4(a.w + 4 * at).v[0];
	uvec2 u = U2(a.w + 2 * at).v[0];
	if (TYPE == 1) return vec4(unpackHalf2x16(u.x), unpackHalf2x16(u.y));
	return uintBitsToFloat(uvec4(u.x << 16, u.x & 0xffff0000u, u.y << 16, u.y & 0xffff0000u));
}
vec4 inputs(uint64_t x, int c) {
	vec4 f = vec4(0);
	if (c >= a.cols) return f;
	if (QUADS_ != 0) return V4(x + 4 * c).v[0];
	[[unroll]] for (int i = 0; i < 4; i++)
		if (c + i < a.cols) f[i] = F(x).v[c + i];
	return f;
}

void main() {
	uint tid = thread();
	int lane = int(tid & 31), warp = int(tid >> 5), row = (NARROW != 0 ? BID : BID * 8 + warp) * 4, tok0 = BIDY * T,
		n = min(T, a.n - tok0);
	uint64_t first = 0;
	precise float f = a.all;
	if (a.ids != 0) { // T is 1
		int e = I(a.ids).v[tok0];
		first = uint64_t(e) * (int64_t(a.rows) * a.cols);
		if (a.scale != 0) f = f * F(a.scale).v[e];
	}
	precise float s[4 * MOST];
	[[unroll]] for (int i = 0; i < 4 * T; i++) s[i] = 0;
	for (int c0 = NARROW != 0 ? warp * 128 : 0; c0 < a.cols; c0 += NARROW != 0 ? 8 * 128 : 128) {
		int c = c0 + lane * 4;
		vec4 w[4];
		[[unroll]] for (int i = 0; i < 4; i++) w[i] = weights(first + uint64_t(min(row + i, a.rows - 1)) * a.cols, c);
		[[unroll]] for (int t = 0; t < T; t++) {
			if (t >= n) continue;
			int r = tok0 + t;
			if (a.ids != 0) r /= a.used;
			vec4 x = inputs(a.x + uint64_t(4) * (int64_t(r) * a.xs), c);
			[[unroll]] for (int i = 0; i < 4; i++)
				s[i * T + t] = fma(w[i].w, x.w, fma(w[i].z, x.z, fma(w[i].y, x.y, fma(w[i].x, x.x, s[i * T + t]))));
		}
	}
	[[unroll]] for (int i = 0; i < 4; i++)
		[[unroll]] for (int t = 0; t < T; t++) {
			precise float v = sum32(s[i * T + t], tid);
			if (NARROW == 0) {
				v = v * f;
				if (lane == 0 && row + i < a.rows && t < n) F(a.y + uint64_t(4) * (int64_t(tok0 + t) * a.ys)).v[row + i] = v;
			} else if (lane == 0) parts[(warp * 4 + i) * T + t] = v;
		}
	if (NARROW == 0) return;
	barrier();
	for (int j = int(tid); j < 4 * T; j += 256) {
		int i = j / T, t = j % T;
		precise float v = parts[j];
		for (int w = 1; w < 8; w++) v = v + parts[w * 4 * T + j];
		v = v * f;
		if (row + i < a.rows && t < n) F(a.y + uint64_t(4) * (int64_t(tok0 + t) * a.ys)).v[row + i] = v;
	}
}
