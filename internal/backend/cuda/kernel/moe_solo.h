// Products with stacks of experts for Hopper and later: the ring of solo.h, filled row by row.
#pragma once
#include "moe.h"

template <class F, int NT> DEV void moe_solo(const MoeArgs& a) {
  const int W0 = STRIPS * F::H0, W1 = STRIPS * F::H1, SLOT = W1 + NT * 8 * R1;
  int warp = TID >> 5, lane = TID & 31;
  u32 base = saddr(smem), full = base, empty = base + 64, ring = base + 1024; // 8 slots at most
  if (TID == 0) {
    for (int i = 0; i < a.depth; i++) { bar_init(full + i * 8, 1); bar_init(empty + i * 8, 16); }
    fence_async();
  }
  SYNC();
  pdl_launch();
  pdl_wait();
  Walk<F> at(a), ahead(a); // what is computed, and what this warp loads next
  int there = 0;           // the stage of this block that ahead is at
  auto load = [&](int k, int s) __attribute__((always_inline)) { // half k into slot s, by a warp
    for (; there < k >> 1 && ahead.more(); there++) ahead.next();
    if (!ahead.more()) return;
    int h = k & 1, bytes = h ? R1 : R0;
    u32 to = ring + s * SLOT, bar = full + s * 8;
    if (lane == 0) {
      bar_expect(bar, (h ? W1 : W0) + ahead.x.count * bytes);
      bulk_hint(to, ahead.w + h * W0, h ? W1 : W0, bar, evict_first());
    }
    syncwarp();
    for (int r = lane; r < ahead.x.count; r += 32) bulk(to + W1 + r * R1, ahead.row(r) + h * R0, bytes, bar);
  };
  if (warp == 0) {
    fence_async();
    for (int i = 0; i < a.depth; i++) load(i, i);
  }
  float acc[NT][4], c[NT][4];
  clear<4 * NT>((float*)acc);
  int slot = 0, par = 0, i = 0;
  int duty = 16 - warp;    // halves until this warp's turn to refill
  int freed = 0, fpar = 0; // the slot finished last
  auto refill = [&]() __attribute__((always_inline)) {
    if (--duty != 0) return;
    duty = 16;
    if (i > 0) {
      bar_wait(empty + freed * 8, fpar);
      load(i - 1 + a.depth, freed);
      syncwarp();
    }
  };
  auto none = []() {};
  auto finish = [&]() __attribute__((always_inline)) {
    syncwarp();
    if (lane == 0) bar_arrive(empty + slot * 8);
    freed = slot;
    fpar = par;
    i++;
    if (++slot == a.depth) { slot = 0; par ^= 1; }
  };
  while (at.more()) {
    int table = at.job ? a.job[1].table : a.job[0].table;
    u32 st = ring + slot * SLOT;
    clear<4 * NT>((float*)c);
    refill();
    bar_wait(full + slot * 8, par);
    half_stage<F, NT>(c, st + warp * F::H0, ByRow{st + W1}, table, lane, none);
    finish();
    st = ring + slot * SLOT;
    refill();
    bar_wait(full + slot * 8, par);
    half_stage<F, NT>(c, st + warp * F::H1, ByRow{st + W1}, table, lane, none);
    scale<F, NT>(acc, c, st + warp * F::H1, ByRow{st + W1}, lane);
    finish();
    if (at.last()) {
      at.template store<NT>(acc, warp, lane);
      clear<4 * NT>((float*)acc);
    }
    at.next();
  }
}
template <int SET, int NT> DEV void moe_solo(const MoeArgs& a) {
  with_format<SET>(a.format, [&](auto f) __attribute__((always_inline)) { moe_solo<decltype(f), NT>(a); });
}
#define MOE(NAME, SET) \
  KERNEL(moe_##NAME##_1, MoeArgs, a, 512, 1) { moe_solo<SET, 1>(a); } \
  KERNEL(moe_##NAME##_4, MoeArgs, a, 512, 1) { moe_solo<SET, 4>(a); }
