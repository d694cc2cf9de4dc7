// How much attention the last tokens of a prompt pay to each of it, in three steps: all products of queries and keys, the
// softmax of each query and head, and the largest weight of any head.
#include "common.h"

struct WeighArgs {
  const float* q; // [rows][heads][dim]
  const float* k; // [n][kvheads][dim]
  float* dst;     // [rows][n], raised
  float* x;       // [rows][heads][n]: logits
  float* sums;    // [rows][heads][2]: the largest logit and the sum of exponentials
  int n, rows, heads, kvheads, dim;
  int qs, ks, ds; // values from one row to the next
  float scale;    // of logits to base 2
};

// How many of the tokens a row sees: rows are the last ones.
DEV int visible(const WeighArgs& p, int row) { return p.n - p.rows + row + 1; }

// A warp has a token and a KV head; a lane has every 32nd value of the key.
KERNEL(weigh_logits, WeighArgs, p, 128, 1) {
  int tok = BID * 4 + (TID >> 5), lane = TID & 31, kv = BIDY, group = p.heads / p.kvheads;
  if (tok >= p.n) return;
  const float* k = p.k + (u64)tok * p.ks + kv * p.dim;
  for (int i = 0; i < p.rows * group; i++) {
    int row = i / group, h = kv * group + i % group;
    const float* q = p.q + (u64)row * p.qs + h * p.dim;
    float s = 0.f;
    for (int c = lane; c < p.dim; c += 32) s = ffma(q[c], k[c], s);
    s = warp_sum(s);
    if (lane == 0) p.x[((u64)row * p.heads + h) * p.n + tok] = fmul(s, p.scale);
  }
}

// A block has a row and a head.
KERNEL(weigh_sums, WeighArgs, p, 256, 1) {
  int row = BID / p.heads, n = visible(p, row);
  const float* x = p.x + (u64)BID * p.n;
  float* s = (float*)smem; // 8
  float top = -__builtin_inff(), sum = 0.f;
  for (int j = TID; j < n; j += 256) top = fmax_(top, x[j]);
  top = warp_max(top);
  if ((TID & 31) == 0) s[TID >> 5] = top;
  SYNC();
  for (int i = 0; i < 8; i++) top = fmax_(top, s[i]);
  SYNC();
  for (int j = TID; j < n; j += 256) sum = fadd(sum, ex2(fadd(x[j], -top)));
  sum = warp_sum(sum);
  if ((TID & 31) == 0) s[TID >> 5] = sum;
  SYNC();
  if (TID == 0) {
    sum = s[0];
    for (int i = 1; i < 8; i++) sum = fadd(sum, s[i]);
    p.sums[2 * BID] = top;
    p.sums[2 * BID + 1] = sum;
  }
}

// A thread has a token, a block a row.
KERNEL(weigh_most, WeighArgs, p, 256, 1) {
  int j = BID * 256 + TID, row = BIDY;
  if (j >= visible(p, row)) return;
  float* dst = p.dst + (u64)row * p.ds + j;
  float most = *dst;
  for (int h = 0; h < p.heads; h++) {
    int at = row * p.heads + h;
    most = fmax_(most, fdiv(ex2(fadd(p.x[(u64)at * p.n + j], -p.sums[2 * at])), p.sums[2 * at + 1]));
  }
  *dst = most;
}
