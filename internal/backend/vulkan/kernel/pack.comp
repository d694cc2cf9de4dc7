#version 460
#extension GL_GOOGLE_include_directive : require
#include "pack.glsl"
// Row r of the activations is row r/div of x.
ARGS(Act act; In x; int rows; int cols; int div; int late;)

void job_of(int row, int kb, int at, int lane, uint tid, bool live) {
	float v[8];
	in8(v, a.x, row / a.div, at, a.cols);
	pack_row(a.act, kb, row, v, lane, tid, live);
}
void main() { JOBS(a.rows, a.act.kb) }
