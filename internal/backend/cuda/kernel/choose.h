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
// Softmax over all experts, the best ones, renormalised, by a warp; x(e): the row's logits. Of equal ones the first is
// better; NaN is never chosen. Returns the lane's expert: of the first 32 each has one. Nothing is written unless `give`.
// PER: experts of a lane, which stay in registers; 0 for any number: then x is called for them again and again.
template <int PER, class X> DEV int route(const RouteArgs& p, int row, X x, int lane, bool give) {
  // A number in the order of values; 0 is for NaN and for none.
  auto order = [](float v) __attribute__((always_inline)) {
    if (!(v == v)) return 0u;
    u32 b = f_bits(fadd(v, 0.f)); // -0 counts as 0
    return b & 0x80000000u ? ~b : b | 0x80000000u;
  };
  auto value = [](u32 k) __attribute__((always_inline)) { return bits_f(k & 0x80000000u ? k & 0x7fffffffu : ~k); };
  u32 keys[PER ? PER : 1];
  if (PER)
#pragma unroll
    for (int i = 0; i < PER; i++) keys[i] = lane + 32 * i < p.experts ? order(x(lane + 32 * i)) : 0;
  auto each = [&](auto fn) __attribute__((always_inline)) {
    if constexpr (PER > 0) {
#pragma unroll
      for (int i = 0; i < PER; i++) fn(lane + 32 * i, keys[i]);
    } else
      for (int e = lane; e < p.experts; e += 32) fn(e, order(x(e)));
  };
  u32 mine = 0, col = ~0u; // the best of this lane's columns that is left
  auto look = [&](u32 below, u32 after) __attribute__((always_inline)) {
    mine = 0;
    col = ~0u;
    each([&](int e, u32 k) __attribute__((always_inline)) {
      if ((k < below || (k == below && (u32)e > after)) && k > mine) { mine = k; col = e; }
    });
  };
  look(~0u, 0);
  u32 best = redux_max(mine);
  float m = value(best), s = 0;
  each([&](int e, u32 k) __attribute__((always_inline)) {
    if (e < p.experts) s = fadd(s, exp_(fadd(value(k), -m)));
  });
  float all = warp_sum(s), sum = 0, own = 0;
  int chosen = 0;
  for (int from = 0; from < p.used; from += 32) {
    int n = p.used - from < 32 ? p.used - from : 32, id = 0;
    u32 key = 0;
    for (int j = 0; j < n && all == all; j++) { // a NaN among the logits leaves no choice: any expert will do
      if (from + j) best = redux_max(mine);
      if (!best) break;
      u32 c = redux_min(mine == best ? col : ~0u);
      if (lane == j) {
        key = best;
        id = (int)c;
      }
      if (col == c) look(best, c);
    }
    float w = key ? fdiv(exp_(fadd(value(key), -m)), all) : all == all ? 0.f : all;
    for (int j = 0; j < n; j++) sum = fadd(sum, shfl(w, j));
    if (from == 0) {
      chosen = id;
      own = w;
    } else if (give && lane < n) {
      p.ids[row * p.used + from + lane] = id;
      p.weights[(u64)row * p.ws + from + lane] = w;
    }
  }
  if (!give) return chosen;
  float f = fdiv(p.scale, fmax_(sum, 6.103515625e-5f));
  if (lane < p.used) {
    p.ids[row * p.used + lane] = chosen;
    p.weights[(u64)row * p.ws + lane] = fmul(own, f);
  }
  for (int j = lane + 32; j < p.used; j += 32) p.weights[(u64)row * p.ws + j] = fmul(p.weights[(u64)row * p.ws + j], f);
  return chosen;
}
// The same for any number of experts; x is in shared memory.
DEV int route(const RouteArgs& p, int row, const float* x, int lane) {
  auto at = [&](int e) __attribute__((always_inline)) { return x[e]; };
  return p.experts <= 256 ? route<8>(p, row, at, lane, true) : route<0>(p, row, at, lane, true);
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
