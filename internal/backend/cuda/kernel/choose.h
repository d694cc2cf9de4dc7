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
// Softmax over all experts, the best ones, renormalised, by a warp. quad(c): four of the row's logits from column c on,
// of which those beyond the last may be anything. Of equal ones the first is better; NaN is never chosen. Returns the
// lane's expert: of the first 32 each has one. Weights are computed, and anything is written, only if `give`. Lane l
// has columns 4l to 4l+3 of every 128. PER: how many a lane has, which stay in registers; 0 for any number, for which
// quad is called again and again.
template <int PER, class Quad> DEV int route(const RouteArgs& p, int row, Quad quad, int lane, bool give) {
  // A number in the order of values; 0 is for NaN and for none.
  auto order = [](float v) __attribute__((always_inline)) {
    if (!(v == v)) return 0u;
    u32 b = f_bits(fadd(v, 0.f)); // -0 counts as 0
    return b & 0x80000000u ? ~b : b | 0x80000000u;
  };
  auto value = [](u32 k) __attribute__((always_inline)) { return bits_f(k & 0x80000000u ? k & 0x7fffffffu : ~k); };
  auto four = [&](int c, auto fn) __attribute__((always_inline)) {
    F4 v = {0, 0, 0, 0};
    if (c < p.experts) v = quad(c);
    fn(c, v.x); fn(c + 1, v.y); fn(c + 2, v.z); fn(c + 3, v.w);
  };
  u32 keys[PER ? PER : 1];
  bool odd = false; // NaN among the logits
  if constexpr (PER > 0) {
#pragma unroll
    for (int i = 0; i < PER; i += 4)
      four(32 * i + 4 * lane, [&](int c, float v) __attribute__((always_inline)) {
        keys[i + (c & 3)] = c < p.experts ? order(v) : 0;
        if (c < p.experts && !(v == v)) odd = true;
      });
  }
  auto each = [&](auto fn) __attribute__((always_inline)) {
    if constexpr (PER > 0) {
#pragma unroll
      for (int i = 0; i < PER; i++) fn(32 * (i & ~3) + 4 * lane + (i & 3), keys[i]);
    } else
      for (int c = 4 * lane; c < p.experts; c += 128)
        four(c, [&](int c, float v) __attribute__((always_inline)) { fn(c, c < p.experts ? order(v) : 0); });
  };
  u32 mine = 0, col = ~0u; // the best of this lane's columns that is left
  auto look = [&](u32 below, u32 after) __attribute__((always_inline)) {
    mine = 0;
    col = ~0u;
    if constexpr (PER > 0) { // those that were chosen are gone. Comparisons form a tree, since they wait for each other
#pragma unroll
      for (int i = 0; i < PER; i++)
        if (32 * (i & ~3) + 4 * lane + (i & 3) == (int)after) keys[i] = 0;
      u32 m[PER];
#pragma unroll
      for (int i = 0; i < PER; i++) m[i] = keys[i];
#pragma unroll
      for (int d = PER / 2; d; d >>= 1)
#pragma unroll
        for (int i = 0; i < d; i++) m[i] = m[i] > m[i + d] ? m[i] : m[i + d];
      mine = m[0];
#pragma unroll
      for (int i = PER - 1; i >= 0; i--)
        if (keys[i] == mine) col = 32 * (i & ~3) + 4 * lane + (i & 3);
    } else
      each([&](int e, u32 k) __attribute__((always_inline)) {
        if ((k < below || (k == below && (u32)e > after)) && k > mine) { mine = k; col = e; }
      });
  };
  look(~0u, ~0u);
  u32 best = redux_max(mine);
  float m = value(best), all = 0;
  if (PER == 0)
    each([&](int e, u32 k) __attribute__((always_inline)) { odd = odd || (e < p.experts && !k); });
  bool lost = ballot(odd) || !(fadd(m, -m) == 0.f); // the sum is NaN, there is no choice: any expert will do
  if (give) {
    float s = 0;
    each([&](int e, u32 k) __attribute__((always_inline)) {
      if (e < p.experts) s = fadd(s, exp_(fadd(value(k), -m)));
    });
    all = warp_sum(s);
  }
  float sum = 0, own = 0;
  int chosen = 0;
  for (int from = 0; from < p.used; from += 32) {
    int n = p.used - from < 32 ? p.used - from : 32, id = 0;
    u32 key = 0;
    for (int j = 0; j < n && !lost; j++) {
      if (from + j) best = redux_max(mine);
      if (!best) break;
      u32 c = redux_min(mine == best ? col : ~0u);
      if (lane == j) {
        key = best;
        id = (int)c;
      }
      if (PER || col == c) look(best, c);
    }
    if (from == 0) chosen = id;
    if (!give) continue;
    float w = key ? fdiv(exp_(fadd(value(key), -m)), all) : lost ? all : 0.f;
    for (int j = 0; j < n; j++) sum = fadd(sum, shfl(w, j));
    if (from == 0) own = w;
    else if (lane < n) {
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
template <class Quad> DEV int route(const RouteArgs& p, int row, Quad quad, int lane, bool give) {
  if (p.experts <= 256) return route<8>(p, row, quad, lane, give);
  return p.experts <= 512 ? route<16>(p, row, quad, lane, give) : route<0>(p, row, quad, lane, give);
}
// The same with x in shared memory, which has room for whole quads.
DEV int route(const RouteArgs& p, int row, const float* x, int lane) {
  return route(p, row, [&](int c) __attribute__((always_inline)) { return *(const F4*)(x + c); }, lane, true);
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
