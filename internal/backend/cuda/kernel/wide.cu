// Products of halves on Hopper's warpgroup products: y = W x (see halves.h).
//
// A block has 128 tokens and 192 rows of W: the widths of image encoders are multiples of it. Two warpgroups have 64
// tokens each. Four warps copy stages of 64 columns, as many ahead as the ring has room for, and hand over a stage when
// its copies are done.
// also for sm_90a
#include "halves.h"
#include "wgmma.h"

#if defined(HOPPER) || defined(EMULATE)
KERNEL(half_wide, HalfArgs, p, 384, 1) {
  const int SLOTS = 5, AHEAD = 3;                           // AHEAD: copies in flight
  const int X = 128 * 128, STAGE = X + 192 * 128;           // bytes of a stage: tokens, then rows of W
  int warp = TID >> 5, lane = TID & 31, row0 = BID * 192, tok0 = BIDY * 128, stages = (p.cols + 63) / 64;
  u32 ring = (saddr(smem) + 1023) & ~1023u, full = ring + SLOTS * STAGE, empty = full + 8 * SLOTS;
  if (TID == 0) {
    for (int i = 0; i < SLOTS; i++) {
      bar_init(full + i * 8, 4);
      bar_init(empty + i * 8, 8);
    }
    fence_async();
  }
  SYNC();
  pdl_launch();
  pdl_wait();
  if (warp >= 8) { // a warp that copies
    fewer_registers<40>();
    int row = (TID - 256) >> 3, c = TID & 7;
    // A thread copies 16 bytes of every sixteenth row. Rows and tokens that are not there are zero.
    const u16 *x = p.x + (u64)(tok0 + row) * p.cols + c * 8, *w = p.w + (u64)(row0 + row) * p.cols + c * 8;
    int xs = p.n - tok0 - row, ws = p.rows - row0 - row, cols = p.cols - c * 8; // what is left of them
    u32 to = ring + row * 128 + ((c ^ (row & 7)) << 4);
    u64 step = 16 * (u64)p.cols;
    auto hand_over = [&](int s) __attribute__((always_inline)) {
      fence_async();
      syncwarp();
      if (lane == 0) bar_arrive(full + s % SLOTS * 8);
    };
#pragma unroll 1
    for (int s = 0; s < stages; s++) {
      if (s >= SLOTS) bar_wait(empty + s % SLOTS * 8, (s / SLOTS - 1) & 1);
      u32 at = to + s % SLOTS * STAGE;
      const u16 *from = x, *weights = w;
#pragma unroll
      for (int i = 0; i < 8; i++, from += step) {
        bool in = 16 * i < xs && cols > 0;
        cp16z(at + i * 2048, in ? from : p.x, in ? 16 : 0);
      }
#pragma unroll
      for (int i = 0; i < 12; i++, weights += step) {
        bool in = 16 * i < ws && cols > 0;
        cp16z(at + X + i * 2048, in ? weights : p.w, in ? 16 : 0);
      }
      cp_commit();
      x += 64;
      w += 64;
      cols -= 64;
      if (s < AHEAD) continue;
      cp_wait<AHEAD>();
      hand_over(s - AHEAD);
    }
    cp_wait<0>();
    for (int s = stages > AHEAD ? stages - AHEAD : 0; s < stages; s++) hand_over(s);
    return;
  }
  more_registers<232>();
  int wg = warp >> 2, g = lane >> 2, t = lane & 3;
  float sum[96];
#pragma unroll
  for (int i = 0; i < 96; i++) sum[i] = 0;
  auto done = [&](int s) __attribute__((always_inline)) {
    syncwarp();
    if (lane == 0) bar_arrive(empty + s % SLOTS * 8);
  };
#pragma unroll 1
  for (int s = 0; s < stages; s++) {
    bar_wait(full + s % SLOTS * 8, s / SLOTS & 1);
    u32 at = ring + s % SLOTS * STAGE;
    u64 dx = desc128(at + wg * 8192, 16, 1024), dw = desc128(at + X, 16, 1024);
    wg_keep(sum);
    wg_fence();
#pragma unroll
    for (int k = 0; k < 4; k++) wg_ss(sum, dx + k * 2, dw + k * 2, 1);
    wg_commit();
    wg_wait<1>(); // of the stage before
    if (s > 0) done(s - 1);
  }
  wg_wait<0>();
  wg_keep(sum);
#pragma unroll
  for (int r = 0; r < 2; r++)
    store_results<24>(p, tok0 + wg * 64 + (warp & 3) * 16 + g + r * 8, row0 + 2 * t,
                      [&](int j, int e) __attribute__((always_inline)) { return sum[4 * j + 2 * r + e]; });
}
#endif
