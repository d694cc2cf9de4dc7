#version 460
#extension GL_GOOGLE_include_directive : require
#define PUSHED
#include "pack.glsl"
// act(gate) * up
ARGS(Act act; In gate; In up; int rows; int cols; int gelu; int late;)

void job_of(int row, int kb, int at, uint tid) {
	vec2 g = in2(a.gate, row, at, a.cols), u = in2(a.up, row, at, a.cols);
	pack_row(a.act, kb, row, gated(g, u, a.gelu != 0), tid);
}
void main() { JOBS(a.rows, a.act.kb) }
