#version 460
#extension GL_GOOGLE_include_directive : require
#include "pack.glsl"
// RMSNorm of each head's values (a power of two of them, from 16 to 256), times w and silu(gate).
ARGS(Act act; In x; In gate; uint64_t w; int rows; int cols; int dim; int late; float eps; float mean;)
shared float head_mem[THREADS];

void job_of(int row, int kb, int at, int lane, uint tid, bool live) {
	float v[8], g[8];
	in8(v, a.x, row, at, a.cols);
	in8(g, a.gate, row, at, a.cols);
	precise float s = 0;
	[[unroll]] for (int i = 0; i < 8; i++) s = fma(v[i], v[i], s);
	barrier();
	head_mem[tid] = s;
	barrier();
	int lanes = a.dim >> 3; // of a head
	uint first = tid & ~uint(lanes - 1);
	s = head_mem[first];
	for (int i = 1; i < lanes; i++) s = s + head_mem[first + i];
	precise float r = 1.0 / sqrt(fma(s, a.mean, a.eps));
	[[unroll]] for (int i = 0; i < 8; i++) {
		precise float y = v[i] * r * F(a.w).v[(at + i) & (a.dim - 1)] * silu(g[i]);
		v[i] = y;
	}
	pack_row(a.act, kb, row, v, lane, tid, live);
}
void main() { JOBS(a.rows, a.act.kb) }
