#version 460
#extension GL_GOOGLE_include_directive : require
#define THREADS 128
#include "common.glsl"
#include "kv.glsl"
// Writes keys and values to their slots, a workgroup per row.
layout(local_size_x = 128) in;
ARGS(In k; In v; uint64_t at; KvPlace to; int heads;)

void main() {
	uint tid = thread();
	int row = BID, kc = a.heads * a.to.kdim >> 3, all = kc + (a.heads * a.to.vdim >> 3);
	uint64_t page = L(a.at + 16 * row).v[0];
	int slot = I(a.at + 16 * row + 8).v[0];
	for (int first = 0; first < all; first += 128) {
		int i = min(first + int(tid), all - 1);
		bool key = i < kc;
		int c = (key ? i : i - kc) * 8, dim = key ? a.to.kdim : a.to.vdim, h = c / dim;
		float v[8];
		if (key) in8(v, a.k, row, c, kc * 8);
		else in8(v, a.v, row, c, (all - kc) * 8);
		float most = most32(v, tid);
		uint64_t p = page + a.to.off + uint64_t(h) * a.to.head + (key ? 0 : a.to.values);
		if (first + int(tid) < all) write8(p, key ? a.to.ktype : a.to.vtype, dim, slot, c - h * dim, v, most);
	}
}
