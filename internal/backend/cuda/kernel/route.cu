// A router: its product with float32 weights, the choice of experts and the grouping of pairs, in one launch.
// also for sm_90
#include "choose.h"
#include "float.h"

struct RouterArgs {
  FloatArgs router; // y: the logits
  FloatArgs gate;   // one more row with the same input, or no weights
  RouteArgs route;
  GroupArgs group;
  u32* counter;     // zero between launches
};
// The block that is done last chooses for all rows; it has 8 warps.
template <int T> DEV void router(const RouterArgs& p) {
  int blocks = (p.router.rows + 3) / 4;
  if (BID < blocks) narrow<F32, T, true>(p.router, BID * 4);
  else narrow<F32, T, true>(p.gate, 0);
  SYNC();
  u32* done = (u32*)smem;
  if (TID == 0) {
    fence_gpu();
    *done = atom_inc_gpu(p.counter);
  }
  SYNC();
  bool last = *done == (u32)(GDIM * GDIMY - 1);
  SYNC();
  if (!last) return;
  fence_gpu();
  int warp = TID >> 5, lane = TID & 31;
  float* x = (float*)smem + warp * p.router.rows;
  for (int row = warp; row < p.route.rows; row += 8) {
    for (int e = lane; e < p.router.rows; e += 32) x[e] = p.router.y[(u64)row * p.router.ys + e];
    syncwarp();
    route(p.route, row, x, lane);
    syncwarp();
  }
  if (TID == 0) *p.counter = 0;
  SYNC();
  if (p.route.rows > 1) group(p.group, saddr(smem));
  else { // experts of a row are different ones; in the order of its choice they are groups already
    int n = p.group.pairs;
    for (int i = TID; i < n; i += BDIM) {
      int e = p.group.ids[i];
      ((Expert*)(p.group.tables + 4))[i] = {e, i, 1, 0};
      p.group.tables[4 + 4 * p.group.most + i] = i;
    }
    if (TID == 0) p.group.tables[0] = n;
  }
}
KERNEL(router_1, RouterArgs, p, 256, 1) { router<1>(p); }
KERNEL(router_8, RouterArgs, p, 256, 1) { router<8>(p); }
