#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
// Groups pairs of a row and an expert by their experts; see experts.comp. One workgroup. Which entry of its expert a
// pair becomes is left to chance: it changes nothing.
layout(local_size_x = 256) in;
ARGS(uint64_t tables; uint64_t ids; int pairs; int experts; int tile; int most;)
const int MOST = 2048; // experts
shared uint counts[MOST];
shared uvec2 before[256]; // pairs and items of the threads so far

int id_of(int i) { // ids are what was chosen, but a wrong one must not hurt
	int e = I(a.ids).v[i];
	return e < 0 || e >= a.experts ? 0 : e;
}

void main() {
	int t = int(gl_LocalInvocationIndex), per = (a.experts + 255) / 256, e0 = min(t * per, a.experts), e1 = min(e0 + per,
		a.experts);
	I tables = I(a.tables);
	for (int e = t; e < a.experts; e += 256) counts[e] = 0;
	barrier();
	for (int i = t; i < a.pairs; i += 256) atomicAdd(counts[id_of(i)], 1);
	barrier();
	uvec2 mine = uvec2(0);
	for (int e = e0; e < e1; e++) mine += uvec2(counts[e], (counts[e] + a.tile - 1) / a.tile);
	before[t] = mine;
	barrier();
	for (int step = 1; step < 256; step <<= 1) {
		uvec2 v = t >= step ? before[t - step] : uvec2(0);
		barrier();
		before[t] += v;
		barrier();
	}
	uvec2 at = before[t] - mine;
	if (t == 255) tables.v[0] = int(before[255].y);
	for (int e = e0; e < e1; e++) {
		int n = int(counts[e]), first = int(at.x);
		for (int k = 0; k * a.tile < n; k++, at.y++) {
			tables.v[4 + 4 * at.y] = e;
			tables.v[5 + 4 * at.y] = first + k * a.tile;
			tables.v[6 + 4 * at.y] = min(n - k * a.tile, a.tile);
		}
		counts[e] = first; // where the next pair goes
		at.x += n;
	}
	barrier();
	for (int i = t; i < a.pairs; i += 256) tables.v[4 + 4 * a.most + int(atomicAdd(counts[id_of(i)], 1))] = i;
}
