#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "sparse.glsl"
// Which blocks are kept. The first one and the queries' own always are: attention begins and ends with them.
layout(local_size_x = 128) in;
shared float part[2][128];

float weight(U2 w, int n, float most) {
	vec2 x = uintBitsToFloat(w.v[n]);
	precise float y = x.y * exp2(x.x - most);
	return y;
}

void main() {
	int t = int(gl_LocalInvocationIndex), head = BIDY;
	if (BID >= I(a.count).v[4]) return;
	Queries b = QueryBlocks(a.queries).v[BID];
	int64_t at = int64_t(BID) * (a.kvheads * a.group) + head;
	U2 w = U2(a.weights + uint64_t(512) * a.words * at);
	float most = NOTHING, heavy = 0;
	for (int n = t; n <= b.n; n += 128) most = max(most, uintBitsToFloat(w.v[n].x));
	part[0][t] = most;
	barrier();
	for (int i = 0; i < 128; i++) most = max(most, part[0][i]);
	for (int n = t; n <= b.n; n += 128) heavy = max(heavy, weight(w, n, most));
	part[1][t] = heavy;
	barrier();
	for (int i = 0; i < 128; i++) heavy = max(heavy, part[1][i]);
	precise float least = a.alpha * heavy;
	for (int i = t; i < 2 * a.words; i += 128) {
		uint bits = 0;
		for (int k = 0; k < 32; k++) {
			int n = i * 32 + k;
			if (n > b.n) break;
			bool keep = n == 0 || n == b.n || n < a.sink || b.n - n < a.window || b.n >= b.all - a.last;
			if (keep || weight(w, n, most) >= least) bits |= 1u << k;
		}
		U(a.kept + uint64_t(8) * a.words * at).v[i] = bits;
	}
}
