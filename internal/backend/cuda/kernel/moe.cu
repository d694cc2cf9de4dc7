// Products with stacks of experts, for devices before Hopper; and the grouping of pairs, for all.
// also for sm_90
#include "moe.h"

struct GroupArgs { int* tables; const int* ids; int pairs, experts, tile, most; };

// The sum of the values of all threads before this one, and of all of them. Two values at once: in the low and the
// high half.
DEV u64 scan(u64 v, u64& total, u32 sums) {
  int lane = TID & 31, warp = TID >> 5;
  u64 s = v;
#pragma unroll
  for (int d = 1; d < 32; d <<= 1) {
    u32 lo = shfl((u32)s, lane - d), hi = shfl((u32)(s >> 32), lane - d);
    if (lane >= d) s += (u64)hi << 32 | lo;
  }
  if (lane == 31) sts64(sums + warp * 8, {(u32)s, (u32)(s >> 32)});
  SYNC();
  u64 before = 0;
  total = 0;
  for (int w = 0; w < BDIM / 32; w++) {
    U2 x = lds64(sums + w * 8);
    u64 y = (u64)x.y << 32 | x.x;
    if (w < warp) before += y;
    total += y;
  }
  SYNC();
  return before + s - v;
}

// One block of 1024 threads. Which entry of its expert a pair becomes is left to chance: it changes nothing.
KERNEL(moe_group, GroupArgs, p, 1024, 1) {
  pdl_launch();
  pdl_wait();
  u32 counts = saddr(smem), sums = counts + ((p.experts * 4 + 15) & ~15);
  for (int e = TID; e < p.experts; e += BDIM) sts32(counts + e * 4, 0);
  SYNC();
  auto id_of = [&](int i) { // ids are what Route made, but a wrong one must not hurt
    int e = p.ids[i];
    return e < 0 || e >= p.experts ? 0 : e;
  };
  for (int i = TID; i < p.pairs; i += BDIM) atom_add_shared(counts + id_of(i) * 4, 1);
  SYNC();
  Expert* items = (Expert*)(p.tables + 4);
  u64 base = 0;
  for (int e0 = 0; e0 < p.experts; e0 += BDIM) {
    int e = e0 + TID, n = e < p.experts ? (int)lds32(counts + e * 4) : 0, tiles = (n + p.tile - 1) / p.tile;
    u64 total, at = base + scan((u64)(u32)n << 32 | (u32)tiles, total, sums);
    int first = (int)(at >> 32);
    for (int k = 0; k < tiles; k++) {
      int left = n - k * p.tile;
      items[(u32)at + k] = {e, first + k * p.tile, left < p.tile ? left : p.tile, 0};
    }
    if (e < p.experts) sts32(counts + e * 4, first); // where the next pair goes
    base += total;
  }
  SYNC();
  int* order = p.tables + 4 + 4 * p.most;
  for (int i = TID; i < p.pairs; i += BDIM) order[atom_add_shared(counts + id_of(i) * 4, 1)] = i;
  if (TID == 0) p.tables[0] = (int)(u32)base;
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
