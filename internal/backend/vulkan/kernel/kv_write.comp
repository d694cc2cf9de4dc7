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
	int row = BID;
	uint64_t page = L(a.at + 16 * row).v[0];
	int slot = I(a.at + 16 * row + 8).v[0];
	for (int key = 1; key >= 0; key--) {
		int dim = key != 0 ? a.to.kdim : a.to.vdim, all = a.heads * dim >> 3;
		for (int first = 0; first < all; first += 128) {
			int c = min(first + int(tid), all - 1) * 8, h = c / dim;
			bool live = first + int(tid) < all;
			float v[8];
			if (key != 0) in8(v, a.k, row, c, all * 8);
			else in8(v, a.v, row, c, all * 8);
			write8(page + a.to.off + uint64_t(h) * a.to.head + (key != 0 ? 0 : a.to.values), a.to, key != 0, slot, c - h * dim, v,
				live, tid);
		}
	}
}
