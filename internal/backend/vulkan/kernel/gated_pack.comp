#version 460
#extension GL_GOOGLE_include_directive : require
#include "pack.glsl"
// act(gate) * up
ARGS(Act act; In gate; In up; int rows; int cols; int gelu; int late;)

void job_of(int row, int kb, int at, int lane, uint tid, bool live) {
	float g[8], u[8];
	in8(g, a.gate, row, at, a.cols);
	in8(u, a.up, row, at, a.cols);
	gate8(g, u, a.gelu != 0);
	pack_row(a.act, kb, row, g, lane, tid, live);
}
void main() { JOBS(a.rows, a.act.kb) }
