#version 460
#extension GL_GOOGLE_include_directive : require
#define THREADS 128
layout(constant_id = 1) const uint FLOATS = 0; // the cache is one of floats, and most of the code is not needed
#define FLOATS_ONLY (FLOATS != 0)
#include "common.glsl"
#include "kv.glsl"
// What stands between the products and attention: 32 lanes per head of a row. Queries, keys: norm, rotation; values:
// norm or nothing. A workgroup has 4 heads of a row; dimensions up to 512.
layout(local_size_x = 128) in;
ARGS(In q; In k; In v; uint64_t at; uint64_t qw; uint64_t kw; uint64_t co; uint64_t si; uint64_t to; KvPlace place;
	int heads; int kvheads;
	int qstep; int kstep; int vstep; int half_; int turn; int ostride; int vnorm; float eps;)
shared float head_mem[4 * 512];

void main() {
	uint tid = thread();
	int warp = int(tid >> 5), lane = int(tid & 31), row = BID, u = BIDY * 4 + warp;
	bool live = u < a.heads + 2 * a.kvheads;
	u = min(u, a.heads + 2 * a.kvheads - 1);
	int what = u < a.heads ? 0 : u < a.heads + a.kvheads ? 1 : 2;
	int h = what == 0 ? u : what == 1 ? u - a.heads : u - a.heads - a.kvheads;
	int dim = what == 2 ? a.place.vdim : a.place.kdim;
	int from = h * (what == 0 ? a.qstep : what == 1 ? a.kstep : a.vstep);
	uint64_t w = what == 0 ? a.qw : what == 1 ? a.kw : uint64_t(0);
	bool norm = what == 2 ? a.vnorm != 0 : w != 0;
	// All that is read is asked for before anything waits.
	uint64_t page = L(a.at + 16 * row).v[0] + a.place.off + uint64_t(h) * a.place.head + (what == 2 ? a.place.values : 0);
	int slot = I(a.at + 16 * row + 8).v[0];
	bool turns = a.co != 0 && what < 2;
	F cs = F(a.co + uint64_t(4) * (int64_t(row) * a.turn)), sn = F(a.si + uint64_t(4) * (int64_t(row) * a.turn));
	float wn[2][8], co[2][8], si[2][8];
	[[unroll]] for (int k = 0; k < 2; k++) {
		int d = (lane + 32 * k) * 8;
		if (d >= dim) continue;
		[[unroll]] for (int i = 0; i < 8; i++) {
			int e = d + i < a.half_ ? d + i : d + i - a.half_;
			if (w != 0 && d + i < dim) wn[k][i] = F(w).v[d + i];
			if (turns && e < a.half_) {
				co[k][i] = cs.v[e];
				si[k][i] = sn.v[e];
			}
		}
	}
	In x = a.q;
	if (what == 1) x = a.k;
	if (what == 2) x = a.v;
	float v[2][8];
	precise float ss = 0;
	[[unroll]] for (int k = 0; k < 2; k++) {
		int d = (lane + 32 * k) * 8;
		[[unroll]] for (int i = 0; i < 8; i++) v[k][i] = 0;
		if (d < dim) in8(v[k], x, row, from + d, from + dim);
		[[unroll]] for (int i = 0; i < 8; i++) ss = fma(v[k][i], v[k][i], ss);
	}
	ss = sum32(ss, tid);
	if (norm) {
		float s = root(ss, float(dim), a.eps);
		[[unroll]] for (int k = 0; k < 2; k++)
			[[unroll]] for (int i = 0; i < 8; i++) {
				int d = (lane + 32 * k) * 8 + i;
				precise float y = v[k][i] * s;
				if (w != 0 && d < dim) y = y * wn[k][i];
				v[k][i] = y;
			}
	}
	if (a.co != 0) { // partners of a pair belong to different lanes
		barrier();
		[[unroll]] for (int k = 0; k < 2; k++)
			[[unroll]] for (int i = 0; i < 8; i++) {
				int d = (lane + 32 * k) * 8 + i;
				if (d < dim) head_mem[warp * 512 + d] = v[k][i];
			}
		barrier();
		if (what < 2)
			[[unroll]] for (int k = 0; k < 2; k++)
				[[unroll]] for (int i = 0; i < 8; i++) {
					int d = (lane + 32 * k) * 8 + i;
					precise float y = v[k][i];
					if (d < a.half_) y = y * co[k][i] - head_mem[warp * 512 + d + a.half_] * si[k][i];
					else if (d < 2 * a.half_) y = head_mem[warp * 512 + d - a.half_] * si[k][i] + y * co[k][i];
					v[k][i] = y;
				}
	}
	[[unroll]] for (int k = 0; k < 2; k++) {
		int d = (lane + 32 * k) * 8;
		if (32 * k * 8 >= max(a.place.kdim, a.place.vdim)) break;
		bool in_ = live && d < dim;
		if (in_ && what == 0) {
			F q = F(a.to + uint64_t(4) * (int64_t(row) * a.ostride + h * dim + d));
			[[unroll]] for (int i = 0; i < 8; i++) q.v[i] = v[k][i];
		}
		write8(page, a.place, what != 2, slot, d, v[k], in_ && what != 0, tid);
	}
}
