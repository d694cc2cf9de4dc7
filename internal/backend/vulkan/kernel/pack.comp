#version 460
#extension GL_GOOGLE_include_directive : require
#define PUSHED
#include "pack.glsl"
// Row r of the activations is row r/div of x.
ARGS(Act act; In x; int rows; int cols; int div; int late;)

void job_of(int row, int kb, int at, uint tid) { pack_row(a.act, kb, row, in2(a.x, row / a.div, at, a.cols), tid); }
void main() { JOBS(a.rows, a.act.kb) }
