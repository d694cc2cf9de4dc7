// Products of halves by tensor cores: y = W x (see halves.h).
//
// A block has 128 rows of W and 128 tokens; of its eight warps each has 64 tokens and 32 rows. Columns come in stages of
// 32, which are copied two stages ahead.
// also for sm_90
#include "halves.h"

KERNEL(half_product, HalfArgs, p, 256, 2) {
  const int STAGE = 16384, X = 8192; // bytes of a stage: 128 rows of W, then 128 tokens, of 32 halves each
  int warp = TID >> 5, lane = TID & 31, g = lane >> 2, t = lane & 3, quad = lane >> 3, ln = lane & 7;
  int row0 = BID * 128, tok0 = BIDY * 128, wm = (warp & 1) * 64, wn = (warp >> 1) * 32, stages = (p.cols + 31) / 32;
  u32 ring = saddr(smem);
  // Chunk c of a row's 64 bytes: neighbouring rows have it at other places, so that eight of them are read at once.
  auto at = [&](int row, int c) __attribute__((always_inline)) { return (u32)(row * 64 + ((c ^ (row >> 1 & 3)) << 4)); };
  // Rows and tokens that are not there are computed and thrown away.
  auto bring = [&](int s, u32 to, const u16* from, int first, int last) __attribute__((always_inline)) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
      int j = TID + i * 256, row = j >> 2, c = j & 3, col = s * 32 + c * 8;
      int r = first + row < last ? first + row : last - 1;
      bool in = col < p.cols;
      cp16z(ring + s % 3 * STAGE + to + at(row, c), from + (u64)r * p.cols + (in ? col : 0), in ? 16 : 0);
    }
  };
  auto stage = [&](int s) __attribute__((always_inline)) {
    if (s < stages) {
      bring(s, 0, p.w, row0, p.rows);
      bring(s, X, p.x, tok0, p.n);
    }
    cp_commit();
  };
  float sum[4][4][4];
#pragma unroll
  for (int i = 0; i < 4; i++)
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) sum[i][j][e] = 0;
  pdl_wait();
  pdl_launch();
  stage(0);
  stage(1);
#pragma unroll 1
  for (int s = 0; s < stages; s++) {
    cp_wait<1>();
    SYNC(); // the stage is there, and all warps are done with the one before it
    stage(s + 2);
    u32 ws = ring + s % 3 * STAGE, xs = ws + X, b[4][4];
#pragma unroll
    for (int j = 0; j < 4; j++) ldmatrix4(b[j], ws + at(wn + j * 8 + ln, quad));
#pragma unroll
    for (int k = 0; k < 2; k++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        u32 a[4];
        ldmatrix4(a, xs + at(wm + i * 16 + (quad & 1) * 8 + ln, k * 2 + (quad >> 1)));
#pragma unroll
        for (int j = 0; j < 4; j++) mma16816(sum[i][j], a[0], a[1], a[2], a[3], b[j][2 * k], b[j][2 * k + 1]);
      }
  }
#pragma unroll
  for (int i = 0; i < 4; i++)
#pragma unroll
    for (int r = 0; r < 2; r++)
      store_results<4>(p, tok0 + wm + i * 16 + g + r * 8, row0 + wn + 2 * t,
                       [&](int j, int e) __attribute__((always_inline)) { return sum[i][j][2 * r + e]; });
}

struct HalfRowsArgs {
  u16* h;         // [n][cols]
  const float* x; // [n][stride]
  int n, cols, stride;
  int quads;      // four columns at a time
};

// Rounds rows to halves.
KERNEL(half_rows, HalfRowsArgs, p, 256, 1) {
  pdl_wait();
  pdl_launch();
  int width = p.quads ? 4 : 1, per = p.cols / width;
  for (int i = BID * BDIM + TID; i < p.n * per; i += GDIM * BDIM) {
    int r = i / per, c = (i - r * per) * width;
    const float* x = p.x + (u64)r * p.stride + c;
    u16* h = p.h + (u64)r * p.cols + c;
    if (p.quads) {
      F4 v = *(const F4*)x;
      *(U2*)h = {f2h2(in_half(v.x), in_half(v.y)), f2h2(in_half(v.z), in_half(v.w))};
    } else *h = (u16)f2h(in_half(*x));
  }
}
