// A router: its product with float32 weights, the choice of experts and the grouping of pairs, in one launch.
// also for sm_90
#include "choose.h"
#include "float.h"

struct RouterArgs {
  FloatArgs router; // y: the logits
  FloatArgs gate;   // one more row with the same input, or no weights
  RouteArgs route;
  GroupArgs group;
  u32* counters;    // zero between launches: blocks that are done for each T rows, behind how many such rows are
};
// Of the blocks that have T rows, the one that is done last chooses for them, a warp for each; the last of those groups
// pairs.
template <int T> DEV void router(const RouterArgs& p) {
  int blocks = (p.router.rows + 3) / 4;
  if (BID < blocks) narrow<F32, T, true>(p.router, BID * 4);
  else narrow<F32, T, true>(p.gate, 0);
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
  int warp = TID >> 5, lane = TID & 31, row = BIDY * T + warp, chosen = 0;
  float* x = (float*)smem + warp * p.router.rows;
  if (warp < T && row < p.route.rows) {
    for (int e = lane; e < p.router.rows; e += 32) x[e] = p.router.y[(u64)row * p.router.ys + e];
    syncwarp();
    chosen = route(p.route, row, x, lane);
  }
  if (p.route.rows == 1 && p.group.pairs <= 32) { // experts of a row are different ones: they are groups already
    if (warp > 0) return;
    if (lane < p.group.pairs) {
      ((Expert*)(p.group.tables + 4))[lane] = {chosen, lane, 1, 0};
      p.group.tables[4 + 4 * p.group.most + lane] = lane;
    }
    if (lane == 0) p.group.tables[0] = p.group.pairs;
    return;
  }
  if (last(p.counters, GDIMY)) group(p.group, saddr(smem));
}
KERNEL(router_1, RouterArgs, p, 256, 1) { router<1>(p); }
KERNEL(router_8, RouterArgs, p, 256, 1) { router<8>(p); }
