// Products of halves by tensor cores: y = W x, W [rows][cols] halves, activations rounded to halves on the way.
//
// A block has 128 rows of W and 128 tokens; of its eight warps each has 64 rows and 32 tokens. Columns come in stages of
// 32: those of W are copied two stages ahead, activations are loaded one stage ahead and rounded. Sums run over stages in
// order, so a token has the same bits in any batch.
// also for sm_90
#include "common.h"

struct HalfArgs {
  float* y;
  const u16* w;
  const float* x;
  int n, rows, cols, xs, ys; // cols is a multiple of 8
  int quads;                 // rows of x begin at multiples of 16 bytes
  float all;                 // scale of everything
};

// Large values stay finite; NaN stays NaN.
DEV float in_half(float v) { return v > 65504.f ? 65504.f : v < -65504.f ? -65504.f : v; }

KERNEL(half_product, HalfArgs, p, 256, 2) {
  const int STAGE = 16384, X = 8192; // bytes of a stage: 128 rows of W, then 128 tokens, of 32 halves each
  int warp = TID >> 5, lane = TID & 31, g = lane >> 2, t = lane & 3, quad = lane >> 3, ln = lane & 7;
  int row0 = BID * 128, tok0 = BIDY * 128, wm = (warp & 1) * 64, wn = (warp >> 1) * 32, stages = (p.cols + 31) / 32;
  u32 ring = saddr(smem);
  // Chunk c of a row's 64 bytes: neighbouring rows have it at other places, so that eight of them are read at once.
  auto at = [&](int row, int c) __attribute__((always_inline)) { return (u32)(row * 64 + ((c ^ (row >> 1 & 3)) << 4)); };
  auto bring = [&](int s) __attribute__((always_inline)) {
    if (s < stages)
#pragma unroll
      for (int i = 0; i < 2; i++) {
        int j = TID + i * 256, row = j >> 2, c = j & 3, col = s * 32 + c * 8;
        int r = row0 + row < p.rows ? row0 + row : p.rows - 1; // rows that are not there are computed and thrown away
        bool in = col < p.cols;
        cp16z(ring + s % 3 * STAGE + at(row, c), p.w + (u64)r * p.cols + (in ? col : 0), in ? 16 : 0);
      }
    cp_commit();
  };
  int tok = TID >> 1, first = (TID & 1) * 16; // the token that this thread loads, and its columns of a stage
  const float* x = p.x + (u64)(tok0 + tok < p.n ? tok0 + tok : p.n - 1) * p.xs;
  float v[16];
  auto fetch = [&](int s) __attribute__((always_inline)) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      int col = s * 32 + first + 4 * i;
      F4 f = {0, 0, 0, 0};
      if (col < p.cols) {
        if (p.quads) f = *(const F4*)(x + col);
        else f = {x[col], x[col + 1], x[col + 2], x[col + 3]};
      }
      v[4 * i] = in_half(f.x); v[4 * i + 1] = in_half(f.y); v[4 * i + 2] = in_half(f.z); v[4 * i + 3] = in_half(f.w);
    }
  };
  auto store = [&](int s) __attribute__((always_inline)) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
      float* f = v + 8 * i;
      U4 h = {f2h2(f[0], f[1]), f2h2(f[2], f[3]), f2h2(f[4], f[5]), f2h2(f[6], f[7])};
      sts128(ring + s % 3 * STAGE + X + at(tok, (TID & 1) * 2 + i), h);
    }
  };
  float sum[4][4][4];
#pragma unroll
  for (int i = 0; i < 4; i++)
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) sum[i][j][e] = 0;
  bring(0); // weights, which no kernel before writes
  bring(1);
  pdl_wait();
  pdl_launch();
  fetch(0);
  store(0);
  fetch(1);
#pragma unroll 1
  for (int s = 0; s < stages; s++) {
    cp_wait<1>();
    SYNC(); // the stage is there, and all warps are done with the one before it
    bring(s + 2);
    if (s + 1 < stages) store(s + 1);
    fetch(s + 2);
    u32 ws = ring + s % 3 * STAGE, xs = ws + X, b[4][4];
#pragma unroll
    for (int j = 0; j < 4; j++) ldmatrix4(b[j], xs + at(wn + j * 8 + ln, quad));
#pragma unroll
    for (int k = 0; k < 2; k++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        u32 a[4];
        ldmatrix4(a, ws + at(wm + i * 16 + (quad & 1) * 8 + ln, k * 2 + (quad >> 1)));
#pragma unroll
        for (int j = 0; j < 4; j++) mma16816(sum[i][j], a[0], a[1], a[2], a[3], b[j][2 * k], b[j][2 * k + 1]);
      }
  }
#pragma unroll
  for (int i = 0; i < 4; i++)
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        int row = row0 + wm + i * 16 + g + (e >> 1) * 8, to = tok0 + wn + j * 8 + 2 * t + (e & 1);
        if (row < p.rows && to < p.n) p.y[(u64)to * p.ys + row] = fmul(sum[i][j][e], p.all);
      }
}
