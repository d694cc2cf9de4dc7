// A router: its product with float32 weights; for more than one row also the choice of experts and the grouping of
// pairs, in one launch. For one row those who multiply with the experts choose, each for itself: that takes less time
// than waiting for all blocks here.
// also for sm_90
#include "choose.h"
#include "float.h"
#include "product.h"

// What rows are multiplied with on the way, if sumsq is there: x*w / rms(x) * scale, as pack.cu computes it.
struct NormArgs {
  const float *w, *sumsq; // [row][kb] sums of squares of x
  int kb, cols;
  float eps, mean, scale;
  int pad;
};
template <int T> struct Normed {
  const NormArgs& p;
  F4 w[2];
  float f[T];
  DEV_M Normed(const NormArgs& p) : p(p) {}
  DEV_M void fetch(int c) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      U4 u = {0, 0, 0, 0}; // beyond the row: 0 times it must be 0
      if (p.sumsq && c + h * 128 < p.cols) u = ldg128(p.w + c + h * 128);
      w[h] = {bits_f(u.x), bits_f(u.y), bits_f(u.z), bits_f(u.w)};
    }
  }
  // For several tokens a warp has one each, of the eight.
  DEV_M void begin(int tok, int n) {
    if (!p.sumsq) return;
    int lane = TID & 31, warp = TID >> 5;
    if (T == 1) {
      f[0] = rms_factor(p.sumsq + (u64)tok * p.kb, p.kb, p.mean, p.eps, lane);
      return;
    }
    float* all = (float*)smem;
    float own = warp < n ? rms_factor(p.sumsq + (u64)(tok + warp) * p.kb, p.kb, p.mean, p.eps, lane) : 0;
    if (lane == 0) all[warp] = own;
    SYNC();
#pragma unroll
    for (int t = 0; t < T; t++) f[t] = all[t];
    SYNC();
  }
  DEV_M F4 operator()(F4 v, int t, int h) {
    if (!p.sumsq) return v;
    auto one = [&](float x, float w) __attribute__((always_inline)) { return fmul(fmul(fmul(x, w), f[t]), p.scale); };
    return {one(v.x, w[h].x), one(v.y, w[h].y), one(v.z, w[h].z), one(v.w, w[h].w)};
  }
};

struct RouterArgs {
  FloatArgs router; // y: the logits
  FloatArgs gate;   // one more row with the same input, or no weights
  RouteArgs route;
  GroupArgs group;
  NormArgs norm;
  u32* counters;    // zero between launches: blocks that are done for each T rows, behind how many such rows are
};
// Of the blocks that have T rows, the one that is done last chooses for them, a warp for each; the last of those groups
// pairs.
template <int T> DEV void router(const RouterArgs& p) {
  int blocks = (p.router.rows + 3) / 4;
  if (BID < blocks) narrow<F32, T, true>(p.router, BID * 4, Normed<T>(p.norm));
  else narrow<F32, T, true>(p.gate, 0, Normed<T>(p.norm));
  if constexpr (T == 1) return;
  auto last = [](u32* counter, u32 all) __attribute__((always_inline)) {
    u32* done = (u32*)smem;
    SYNC();
    if (TID == 0) {
      fence_gpu();
      *done = atom_inc_gpu(counter);
    }
    SYNC();
    bool yes = *done == all - 1;
    SYNC();
    if (!yes) return false;
    fence_gpu();
    if (TID == 0) *counter = 0;
    return true;
  };
  if (!last(p.counters + 1 + BIDY, GDIM)) return;
  int warp = TID >> 5, lane = TID & 31, row = BIDY * T + warp;
  float* x = (float*)smem + warp * (p.router.rows + 3 & ~3);
  if (warp < T && row < p.route.rows) {
    for (int e = lane; e < p.router.rows; e += 32) x[e] = p.router.y[(u64)row * p.router.ys + e];
    syncwarp();
    route(p.route, row, x, lane);
  }
  if (last(p.counters, GDIMY)) group(p.group, saddr(smem));
}
KERNEL(router_1, RouterArgs, p, 256, 1) { router<1>(p); }
KERNEL(router_8, RouterArgs, p, 256, 1) { router<8>(p); }
