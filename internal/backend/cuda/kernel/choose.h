// Choosing experts: the best ones of a row, and pairs of a row and an expert by their experts (see moe.h).
#pragma once
#include "common.h"

struct RouteArgs {
  int* ids;
  float* weights;
  In x; // logits
  int rows, experts, used, ws;
  float scale;
};
// Softmax over all experts, the best ones, renormalised, by a warp; x: the row's logits, in shared memory. Of equal
// ones the first is better; NaN is never chosen. Returns the lane's expert: of the first 32 each has one.
DEV int route(const RouteArgs& p, int row, const float* x, int lane) {
  u32 mine = 0, col = ~0u; // the best of this lane's columns that is left: a number in the order of values, 0 for none
  auto order = [](float v) __attribute__((always_inline)) {
    if (!(v == v)) return 0u;
    u32 b = f_bits(fadd(v, 0.f)); // -0 counts as 0
    return b & 0x80000000u ? ~b : b | 0x80000000u;
  };
  auto look = [&](u32 below, u32 after) __attribute__((always_inline)) {
    mine = 0;
    col = ~0u;
    for (int e = lane; e < p.experts; e += 32) {
      u32 k = order(x[e]);
      if ((k < below || (k == below && (u32)e > after)) && k > mine) { mine = k; col = e; }
    }
  };
  look(~0u, 0);
  u32 best = redux_max(mine);
  float m = bits_f(best & 0x80000000u ? best & 0x7fffffffu : ~best), s = 0;
  for (int e = lane; e < p.experts; e += 32) s = fadd(s, exp_(fadd(x[e], -m)));
  float all = warp_sum(s), sum = 0, own = 0;
  int chosen = 0;
  for (int j = 0; j < p.used; j++) {
    int id = 0;
    float w = all == all ? 0.f : all; // a NaN among the logits leaves no choice: any expert will do, its weight is NaN
    if (j) best = redux_max(mine);
    if (all == all && best) {
      u32 c = redux_min(mine == best ? col : ~0u);
      id = (int)c;
      w = fdiv(exp_(fadd(x[id], -m)), all);
      sum = fadd(sum, w);
      if (col == c) look(best, c);
    }
    if (lane == j) {
      chosen = id;
      own = w;
    } else if (j >= 32 && lane == 0) {
      p.ids[row * p.used + j] = id;
      p.weights[(u64)row * p.ws + j] = w;
    }
  }
  float f = fdiv(p.scale, fmax_(sum, 6.103515625e-5f));
  if (lane < p.used) {
    p.ids[row * p.used + lane] = chosen;
    p.weights[(u64)row * p.ws + lane] = fmul(own, f);
  }
  syncwarp();
  for (int j = lane + 32; j < p.used; j += 32) p.weights[(u64)row * p.ws + j] = fmul(p.weights[(u64)row * p.ws + j], f);
  return chosen;
}

struct Expert { int expert, first, count, pad; };
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

// By all threads of a block. Which entry of its expert a pair becomes is left to chance: it changes nothing. counts:
// shared memory for a number of every expert, and eight bytes of every warp.
DEV void group(const GroupArgs& p, u32 counts) {
  u32 sums = counts + ((p.experts * 4 + 15) & ~15);
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
