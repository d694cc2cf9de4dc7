#version 460
#extension GL_GOOGLE_include_directive : require
#include "pack.glsl"
#include "headpack.glsl"
ARGS(HeadPack p;)

void job_of(int row, int kb, int at, int lane, uint tid, bool live) { head_job(a.p, row, kb, at, lane, tid, live); }
void main() { JOBS(a.p.rows, a.p.act.kb) }
