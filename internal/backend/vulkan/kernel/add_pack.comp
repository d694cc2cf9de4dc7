#version 460
#extension GL_GOOGLE_include_directive : require
#define PUSHED
#include "pack.glsl"
#include "addpack.glsl"
ARGS(AddPack p;)

void job_of(int row, int kb, int at, uint tid) { add_job(a.p, kb, row, at, tid); }
void main() { JOBS(a.p.rows, a.p.act.kb) }
