#version 460
#extension GL_GOOGLE_include_directive : require
#include "pack.glsl"
#include "addpack.glsl"
ARGS(AddPack p;)

void job_of(int row, int kb, int at, int lane, uint tid, bool live) {
	float v[8];
	add_job(a.p, v, kb, row, at, lane, tid, live);
}
void main() { JOBS(a.p.rows, a.p.act.kb) }
