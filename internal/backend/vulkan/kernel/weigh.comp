#version 460
#extension GL_GOOGLE_include_directive : require
// How much attention the last tokens of a prompt pay to each of it, in three stages: all products of queries and keys,
// the softmax of each query and head, and the largest weight of any head.
#define THREADS 256
#include "common.glsl"
layout(local_size_x = 256) in;
layout(constant_id = 1) const int STAGE = 0;
// q: [rows][heads][dim]; k: [n][kvheads][dim]; dst: [rows][n], raised; x: [rows][heads][n], logits; sums: [rows][heads][2],
// the largest logit and the sum of exponentials. qs, ks, ds: values from one row to the next. scale: of logits to base 2.
ARGS(uint64_t q; uint64_t k; uint64_t dst; uint64_t x; uint64_t sums;
	int n; int rows; int heads; int kvheads; int dim; int qs; int ks; int ds; float scale;)
shared float part[8];

// How many of the tokens a row sees: rows are the last ones.
int visible(int row) { return a.n - a.rows + row + 1; }
F logits(int pair) { return F(a.x + uint64_t(4) * int64_t(pair) * a.n); }

// 32 lanes have a token and a KV head; a lane has every 32nd value of the key.
void products(uint tid) {
	int kv = BIDY, group = a.heads / a.kvheads, lane = int(tid & 31);
	for (int first = BID * 8; first < a.n; first += GDIM * 8) {
		int tok = min(first + int(tid >> 5), a.n - 1);
		F k = F(a.k + uint64_t(4) * (int64_t(tok) * a.ks + kv * a.dim));
		for (int i = 0; i < a.rows * group; i++) {
			int row = i / group, h = kv * group + i % group;
			F q = F(a.q + uint64_t(4) * (int64_t(row) * a.qs + h * a.dim));
			precise float s = 0;
			for (int c = lane; c < a.dim; c += 32) s = fma(q.v[c], k.v[c], s);
			precise float z = sum32(s, tid) * a.scale;
			if (lane == 0) logits(row * a.heads + h).v[tok] = z;
		}
	}
}

// Over a workgroup, which has a row and a head.
float most_of(float v, uint tid) {
	float x = max32(v, tid);
	if ((tid & 31) == 0) part[tid >> 5] = x;
	barrier();
	for (int i = 0; i < 8; i++) x = max(x, part[i]);
	barrier();
	return x;
}
void softmax(uint tid) {
	int n = visible(BID / a.heads);
	F x = logits(BID);
	float top = uintBitsToFloat(0xff800000u);
	for (int j = int(tid); j < n; j += 256) top = max(top, x.v[j]);
	top = most_of(top, tid);
	precise float s = 0;
	for (int j = int(tid); j < n; j += 256) s = s + exp2(x.v[j] - top);
	s = sum32(s, tid);
	if ((tid & 31) == 0) part[tid >> 5] = s;
	barrier();
	if (tid == 0) {
		s = part[0];
		for (int i = 1; i < 8; i++) s = s + part[i];
		F to = F(a.sums + uint64_t(8) * BID);
		to.v[0] = top;
		to.v[1] = s;
	}
}

// A thread has a token, a workgroup a row.
void raise(uint tid) {
	int j = BID * 256 + int(tid), row = BIDY;
	if (j >= visible(row)) return;
	F dst = F(a.dst + uint64_t(4) * (int64_t(row) * a.ds + j));
	float most = dst.v[0];
	for (int h = 0; h < a.heads; h++) {
		int pair = row * a.heads + h;
		F sum = F(a.sums + uint64_t(8) * pair);
		precise float w = exp2(logits(pair).v[j] - sum.v[0]) / sum.v[1];
		most = max(most, w);
	}
	dst.v[0] = most;
}

void main() {
	uint tid = thread();
	if (STAGE == 0) products(tid);
	else if (STAGE == 1) softmax(tid);
	else raise(tid);
}
