#define THREADS 128
#include "common.glsl"
#include "delta.glsl"
layout(local_size_x = 128) in;
ARGS(uint64_t dst; uint64_t gates; uint64_t w; uint64_t decay; uint64_t dt; uint64_t table; In u; In alpha;
	In beta; int rows; int layer; int ds; int ready; int run;
	DeltaShape d; float eps;)

// The decay and beta of one head of a row.
void gate(I s, int row, int h) {
	vec2 g = gates_of(a.alpha, a.beta, a.decay, a.dt, row, h);
	F(a.gates).v[(row * 2) * a.d.vheads + h] = g.x;
	F(a.gates).v[(row * 2 + 1) * a.d.vheads + h] = g.y;
	if ((s.v[SEG_FLAGS] & FLAG_PROMPT) == 0) F(seg_write(s, a.d, a.layer, row - s.v[SEG_ROW])).v[decays(a.d) + h] = g.x;
}
float head_scale(float squares, bool query) { return head_scale(squares, query, a.d.kdim, a.eps); }
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
