#version 460
#extension GL_GOOGLE_include_directive : require
#include "pack.glsl"
// RMSNorm of each head's values (a power of two of them, from 16 to 256), times w and silu(gate), packed.
ARGS(Act act; In x; In gate; uint64_t w; int rows; int cols; int dim; int late; float eps; float mean;)

void job_of(int row, int kb, int at, int lane, uint tid, bool live) {
	float v[8], g[8];
	in8(v, a.x, row, at, a.cols);
	in8(g, a.gate, row, at, a.cols);
	precise float s = 0;
	[[unroll]] for (int i = 0; i < 8; i++) s = fma(v[i], v[i], s);
	for (uint step = a.dim >> 4; step > 0; step >>= 1) s = s + at_lane(s, tid, tid ^ step); // dim/8 lanes are a head
	float r = root(s, float(a.dim), a.eps);                                                  // as in norm.comp
	[[unroll]] for (int i = 0; i < 8; i++) {
		precise float y = v[i] * r * F(a.w).v[(at + i) & (a.dim - 1)] * silu(g[i]);
		v[i] = y;
	}
	pack_row(a.act, kb, row, v, lane, tid, live);
}
void main() { JOBS(a.rows, a.act.kb) }
