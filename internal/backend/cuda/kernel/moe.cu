// Products with stacks of experts, for devices before Hopper; and the grouping of pairs, for all.
// also for sm_90
#include "moe.h"

KERNEL(moe_group, GroupArgs, p, 1024, 1) {
  pdl_launch();
  pdl_wait();
  group(p, saddr(smem));
}

#ifndef HOPPER
template <class F, int NT> DEV void moe_pipe(const MoeArgs& a) {
  const int W0 = STRIPS * F::H0, W1 = STRIPS * F::H1, SLOT = W1 + NT * 8 * R1;
  int warp = TID >> 5, lane = TID & 31, to = 0, slot = 0;
  u32 ring = saddr(smem);
  Walk<F> at(a), ahead(a); // what is computed and what is loaded
  int h = 0;               // half that is loaded next
  auto load = [&]() {
    if (ahead.more()) {
      u32 s = ring + to * SLOT;
      const u8* w = ahead.w + h * W0;
      for (int o = TID * 16; o < (h ? W1 : W0); o += 512 * 16) cp16(s + o, w + o);
      int per = h ? R1 / 16 : R0 / 16;
      for (int i = TID; i < ahead.x.count * per; i += 512) {
        int r = i / per, o = (i - r * per) * 16;
        cp16(s + W1 + r * R1 + o, ahead.row(r) + h * R0 + o);
      }
      if (h) ahead.next();
      h ^= 1;
    }
    cp_commit();
    if (++to == a.depth) to = 0;
  };
  for (int i = 0; i < a.depth - 1; i++) load();
  auto next = [&]() { // a half is there for all, the slot of the one before is free
    if (a.depth == 2) cp_wait<0>();
    else if (a.depth == 3) cp_wait<1>();
    else cp_wait<2>();
    SYNC();
    load();
    u32 st = ring + slot * SLOT;
    if (++slot == a.depth) slot = 0;
    return st;
  };
  auto none = []() {};
  float acc[NT][4], c[NT][4];
  clear<4 * NT>((float*)acc);
  while (at.more()) {
    int table = at.job ? a.job[1].table : a.job[0].table;
    clear<4 * NT>((float*)c);
    u32 st = next();
    half_stage<F, NT>(c, st + warp * F::H0, ByRow{st + W1}, table, lane, none);
    st = next();
    half_stage<F, NT>(c, st + warp * F::H1, ByRow{st + W1}, table, lane, none);
    scale<F, NT>(acc, c, st + warp * F::H1, ByRow{st + W1}, lane);
    if (at.last()) {
      at.template store<NT>(acc, warp, lane);
      clear<4 * NT>((float*)acc);
    }
    at.next();
  }
}
template <int NT> DEV void moe_pipe(const MoeArgs& a) {
  with_format<ALL_FORMATS>(a.format, [&](auto f) __attribute__((always_inline)) { moe_pipe<decltype(f), NT>(a); });
}
KERNEL(moe_pipe_1, MoeArgs, a, 512, 1) { moe_pipe<1>(a); }
KERNEL(moe_pipe_4, MoeArgs, a, 512, 1) { moe_pipe<4>(a); }
#endif
