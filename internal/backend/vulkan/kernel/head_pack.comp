#version 460
#extension GL_GOOGLE_include_directive : require
#define PUSHED
#include "pack.glsl"
// RMSNorm of each head's values (a power of two of them, from 16 to 256), times w and silu(gate), packed.
ARGS(Act act; In x; In gate; uint64_t w; int rows; int cols; int dim; int late; float eps; float mean;)
shared float root_mem[32];

void job_of(int row, int kb, int at, uint tid) {
	vec2 w = vec2(F(a.w).v[at & (a.dim - 1)], F(a.w).v[at + 1 & (a.dim - 1)]);
	vec2 v = in2(a.x, row, at, a.cols), g = in2(a.gate, row, at, a.cols);
	precise float s = squares(v, tid);
	for (uint step = a.dim >> 4; step > 0; step >>= 1) s = s + at_lane(s, tid, tid ^ step); // dim/8 lanes are a head
	if (tid < 32) root_mem[tid] = root(s, float(a.dim), a.eps);                              // as in norm.comp
	barrier();
	float r = root_mem[tid >> 2];
	precise vec2 y = vec2(v.x * r * w.x * silu(g.x), v.y * r * w.y * silu(g.y));
	pack_row(a.act, kb, row, y, tid);
}
void main() { JOBS(a.rows, a.act.kb) }
