#version 460
#extension GL_GOOGLE_include_directive : require
#define PUSHED
#include "pack.glsl"
// x * sigmoid(gate), head by head: heads of x lie side by side, gates a step apart.
ARGS(Act act; In x; In gate; int rows; int cols; int late; int dim; int step;)

void job_of(int row, int kb, int at, uint tid) {
	vec2 u = in2(a.x, row, at, a.cols);
	int h = at / a.dim;
	vec2 g = in2(a.gate, row, h * a.step + at - h * a.dim, a.cols / a.dim * a.step);
	precise vec2 y = vec2(u.x * sigmoid(g.x), u.y * sigmoid(g.y));
	pack_row(a.act, kb, row, y, tid);
}
void main() { JOBS(a.rows, a.act.kb) }
