#define THREADS 128
#include "common.glsl"
#include "delta.glsl"
layout(local_size_x = 128) in;
ARGS(uint64_t dst; uint64_t gates; uint64_t w; uint64_t decay; uint64_t dt; uint64_t table; In u; In alpha;
	In beta; int rows; int layer; int ds; int ready; int run;
	DeltaShape d; float eps;)

// The decay and beta of one head of a row.
void gate(I s, int row, int h) {
	precise float al = in1(a.alpha, row, h) + F(a.dt).v[h];
	float e = exp_(al);
	precise float one = 1.0 + e;
	precise float sp = al > 20.0 ? al : log2(one) * LN2; // log(1+e^x)
	if (e < 0.0625) // 1+e^x would lose the digits of e^x
		sp = e * fma(-e, fma(-e, fma(-e, fma(-e, 0.2, 0.25), 1.0 / 3.0), 0.5), 1.0);
	precise float x = F(a.decay).v[h] * sp;
	float g = exp_(x);
	F(a.gates).v[(row * 2) * a.d.vheads + h] = g;
	F(a.gates).v[(row * 2 + 1) * a.d.vheads + h] = sigmoid(in1(a.beta, row, h));
	if ((s.v[SEG_FLAGS] & FLAG_PROMPT) == 0)
		F(seg_write(s, a.d, a.layer, row - s.v[SEG_ROW])).v[channels(a.d) +
			a.d.kheads * a.d.kdim + a.d.vheads * a.d.vdim + h] = g;
}
// The factor of a head of queries or keys, from its sum of squares.
float head_scale(float squares, bool query) {
	precise float f = 1.0 / sqrt(squares + a.eps);
	if (query) f = f * (1.0 / sqrt(float(a.d.kdim)));
	return f;
}
shared float sum_mem[4];
float sum128(float v, uint tid) {
	float s = sum32(v, tid);
	barrier(); // the sums before are read
	if ((tid & 31) == 0) sum_mem[tid >> 5] = s;
	barrier();
	precise float all = sum_mem[0];
	[[unroll]] for (int i = 1; i < 4; i++) all = all + sum_mem[i];
	return all;
}
