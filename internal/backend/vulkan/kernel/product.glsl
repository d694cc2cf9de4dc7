// What products with tiles share, up to T tokens at a time.
//
// A workgroup has 64 rows of a stage (256 rows x 256 columns): 32 lanes have a tile of 16. Bytes are multiplied and
// added as integers, exactly. Formats whose scales are integers have one integer for 256 columns, which is scaled in
// float32 and added in the order of columns: however integers are added, by these kernels or by those of matrix.comp, a
// token has the same bits, whatever T and the other tokens are. The others are scaled by lane and added over the four
// lanes of a row at the end.
#include "tile.glsl"

const int LOADS = (T * 19 + THREADS - 1) / THREADS; // a thread's part of the activations of a stage
shared uvec4 act_mem[2 * T * 19];
shared int quad_mem[THREADS];
// Integer scales: [token], of row g (lanes with even t) or g+8. Otherwise [row g or g+8][token], of this lane's columns.
float acc[2 * T];

int from_lane(int v, uint tid, uint step) {
	if (REDUCE != 0) return subgroupShuffleXor(v, step);
	barrier();
	quad_mem[tid] = v;
	barrier();
	return quad_mem[tid ^ step];
}
// Adds the integers of row g and row g+8 over four lanes; the result is that of the lane's row.
int quad_sum(int g, int h, uint tid) {
	bool odd = (tid & 1) != 0;
	int v = (odd ? h : g) + from_lane(odd ? g : h, tid, 1);
	return v + from_lane(v, tid, 2);
}
// One stage of this lane's tile: acc += its products with T tokens, whose activations lie in buffer buf.
void stage(Raw w, int buf, int table, uint tid) {
	int t = int(tid & 3), at = buf * (T * 19);
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
		ivec2 s[2];
		vec2 f[2];
		[[unroll]] for (int hi = 0; hi < 2; hi++) {
			if (int_scales()) s[hi] = scales_of(w, p, hi) - (FORMAT == Q6K || FORMAT == Q3K ? 128 : 0);
			else if (FORMAT == N4) f[hi] = uintBitsToFloat(uvec2(w.scale[2 * p + hi], w.wide[2 * p + hi]));
			else f[hi] = unpackHalf2x16(w.scale[2 * p + hi]);
		}
		[[unroll]] for (int k = 0; k < T; k++) {
			uvec4 x = act_mem[at + k * 19 + p * 4 + t];
			int e0 = DOT(even.x, x.x) + DOT(even.z, x.y), e1 = DOT(even.y, x.x) + DOT(even.w, x.y);
			int o0 = DOT(odd.x, x.z) + DOT(odd.z, x.w), o1 = DOT(odd.y, x.z) + DOT(odd.w, x.w);
			if (int_scales()) {
				whole[k] += s[0].x * e0 + s[0].y * o0;
				whole[T + k] += s[1].x * e1 + s[1].y * o1;
			} else {
				parts[k] = fma(float(o0), f[0].y, fma(float(e0), f[0].x, parts[k]));
				parts[T + k] = fma(float(o1), f[1].y, fma(float(e1), f[1].x, parts[T + k]));
			}
		}
	}
	vec2 d = unpackHalf2x16((t & 1) != 0 ? w.d[1] : w.d[0]);
	uint mg = mins_of(w, 0, t), mh = mins_of(w, 1, t);
	[[unroll]] for (int k = 0; k < T; k++) {
		float scale = uintBitsToFloat(act_mem[at + k * 19 + 18].x);
		// Sums of 64 activations, by 16.
		uint lo = act_mem[at + k * 19 + 16][t], hi = act_mem[at + k * 19 + 17][t];
		if (int_scales()) {
			int low = 0;
			if (has_mins()) low = quad_sum(DOT(mg, lo) + 128 * DOT(mg, hi), DOT(mh, lo) + 128 * DOT(mh, hi), tid);
			acc[k] = scaled(acc[k], d, quad_sum(whole[k], whole[T + k], tid), low, scale);
		} else
			[[unroll]] for (int r = 0; r < 2; r++) {
				precise float v = parts[r * T + k];
				vec2 add = unpackHalf2x16(w.low[2 * r]);
				if (FORMAT == Q8M)
					v = fma(add.y, float(DOT(lo, 0x01010000u) + 128 * DOT(hi, 0x01010000u)),
						fma(add.x, float(DOT(lo, 0x00000101u) + 128 * DOT(hi, 0x00000101u)), v));
				precise float z = fma(scale, v, acc[r * T + k]);
				acc[r * T + k] = z;
			}
	}
}
void clear_acc() {
	[[unroll]] for (int i = 0; i < 2 * T; i++) acc[i] = 0;
}
// The sum for token k of row g or g+8, by the lowest bit of the lane; the next one says which of two lanes stores it.
float total(int k, uint tid) {
	if (int_scales()) return acc[k];
	float g = sum4(acc[k], tid), h = sum4(acc[T + k], tid);
	return (tid & 1) == 0 ? g : h;
}
bool stores(int k, uint tid) { return (tid >> 1 & 1) == (k & 1); }
int row_of_lane(uint tid) { return int(tid >> 2 & 7) + 8 * int(tid & 1); }
