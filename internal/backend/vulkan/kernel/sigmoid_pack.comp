#version 460
#extension GL_GOOGLE_include_directive : require
#include "pack.glsl"
// x * sigmoid(gate), head by head: heads of x lie side by side, gates a step apart.
ARGS(Act act; In x; In gate; int rows; int cols; int late; int dim; int step;)

void job_of(int row, int kb, int at, int lane, uint tid, bool live) {
	float g[8], u[8];
	in8(u, a.x, row, at, a.cols);
	int h = at / a.dim;
	in8(g, a.gate, row, h * a.step + at - h * a.dim, a.cols / a.dim * a.step);
	[[unroll]] for (int i = 0; i < 8; i++) {
		precise float y = u[i] * sigmoid(g[i]);
		u[i] = y;
	}
	pack_row(a.act, kb, row, u, lane, tid, live);
}
void main() { JOBS(a.rows, a.act.kb) }
