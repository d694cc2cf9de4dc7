#version 460
#extension GL_GOOGLE_include_directive : require
#define PUSHED
#include "pack.glsl"
#include "splits.glsl"
#define VEC vec2
#define VECS V2
#include "merged.glsl"
// merge and sigmoid_pack in one.
ARGS(Act act; In gate; uint64_t x; uint64_t part; uint64_t ml; uint64_t sinks; uint64_t seen; int stride; int rows;
	int cols; int dim; int step;)

void job_of(int row, int kb, int at, uint tid) {
	int h = at / a.dim, d = at - h * a.dim, heads = a.cols / a.dim;
	Seen r = SeenRows(a.seen).v[row];
	vec2 g = in2(a.gate, row, h * a.step + d, heads * a.step), u = vec2(0);
	if (at < a.cols) {
		if (r.part < 0) u = V2(a.x + uint64_t(4) * (int64_t(row) * a.stride + at)).v[0];
		else u = merged(r, a.part, a.ml, a.sinks, heads, h, a.dim, d);
	}
	precise vec2 y = vec2(u.x * sigmoid(g.x), u.y * sigmoid(g.y));
	pack_row(a.act, kb, row, y, tid);
}
void main() { JOBS(a.rows, a.act.kb) }
