// "solo": products of up to 64 tokens at a time for Hopper and later. More tokens are further chunks (BIDY).
#pragma once
#include "pack.h"

// A product that makes its activations itself.
struct MadeArgs { ProductArgs p; Make m; };
struct MergedArgs { ProductArgs p; MakeMerged m; };
// One whose results are added to a residual stream and packed for the next product, as add_pack does: a cluster of
// blocks has a group of rows, and reads the pieces of it in shared memory.
struct MadeThenArgs { ProductArgs p; Make m; AddPackArgs t; };
struct MergedThenArgs { ProductArgs p; MakeMerged m; AddPackArgs t; };
struct NoThen {};
struct Packed { static const bool MADE = false, MERGED = false; }; // the other kind

// "solo": blocks of 16 warps with one tile each. A ring of half stages (weights and activations) is filled by bulk
// copies that complete on a barrier (full); warps report on another (empty) when they are done with a slot. Warps
// take turns to refill the slot all have just left: in the middle of their next half (few tokens: fewer waits) or at
// its start (many tokens: the compiler can mix the instructions of the whole half). Copies of weights start before
// the kernel waits for the one before it (programmatic dependent launch). When a block has asked for its last weights
// it asks for the first of the next product, so that memory is not idle while small kernels run.
//
// MADE: the ring has weights alone. A block makes the few columns of activations that it multiplies, of at most eight
// tokens, while its weights are on their way: a kernel less between two products.
template <class F, int NT, class M, class N>
DEV void solo(const ProductArgs& a, const M& m, const N& then, const Job& job, int bid) {
  const bool MADE = M::MADE, THEN = !__is_same(N, NoThen);
  const int W0 = STRIPS * F::H0, W1 = STRIPS * F::H1, SLOT = W1 + (MADE ? 0 : NT * A1);
  int warp = TID >> 5, lane = TID & 31, tok0 = BIDY * (8 * NT), n = a.n - tok0 < 8 * NT ? a.n - tok0 : 8 * NT;
  int T = job.groups * a.kb, G = job.blocks, rows = job.groups * 256;
  int s0 = first_stage(bid, T, G), halves = 2 * (first_stage(bid + 1, T, G) - s0);
  int chunks = halves / 2 < a.kb ? halves / 2 : a.kb; // made: stages of activations that the block has
  u32 base = saddr(smem), full = base, empty = base + 64, factor = base + 128, held = base + 1024; // 8 slots at most
  u32 ring = MADE ? held + (a.most * ACT + 127 & ~127) : held;
  u32 rest = ring; // then: the norm's weights, and the residual stream of two rows
  if (THEN) ring += 3 * 1024;
  const u8* src = job.w + (u64)s0 * (W0 + W1);
  const u8* act = a.act + (u64)BIDY * a.kb * (NT * ACT);
  float* part = job.part + (u64)tok0 * rows + warp * 16;
  auto weights = [&](int i, u32 slot, u32 bar) { // half i of this block
    int h = i & 1;
    bar_expect(bar, (h ? W1 : W0) + (MADE ? 0 : NT * (h ? A1 : A0)));
    bulk_hint(slot, src + (u64)(i >> 1) * (W0 + W1) + h * W0, h ? W1 : W0, bar, evict_first());
  };
  auto activations = [&](int i, int kb, u32 slot, u32 bar) {
    if (MADE) return;
    int h = i & 1;
    while (kb >= a.kb) kb -= a.kb;
    bulk(slot + W1, act + (u64)kb * (NT * ACT) + h * (NT * A0), h ? NT * A1 : NT * A0, bar);
  };
  int grp = s0 / a.kb, kb = s0 - grp * a.kb, b0 = bid - block_of(grp * a.kb, T, G);
  bool loads = TID == 32 * (STRIPS - 1); // the thread that begins: the last warp seldom makes activations or factors
  if (loads) {
    for (int i = 0; i < a.depth; i++) { bar_init(full + i * 8, 1); bar_init(empty + i * 8, 16); }
    fence_async();
    for (int i = 0; i < a.depth && i < halves; i++) weights(i, ring + i * SLOT, full + i * 8);
  }
  Maker maker; // a warp makes 256 columns of a token: those of one of the block's stages
  int row = warp / chunks, c0 = warp - row * chunks;
  if constexpr (MADE) maker.aim(m, row, (kb + c0 < a.kb ? kb + c0 : kb + c0 - a.kb) * 256 + lane * 8);
  if constexpr (M::MERGED)
    if (TID < n) ldg32(m.of.seen + TID); // in the cache when it is wanted
  SYNC();
  pdl_launch();
  pdl_wait();
  if (loads) {
    fence_async();
    for (int i = 0; i < a.depth && i < halves; i++) activations(i, kb + (i >> 1), ring + i * SLOT, full + i * 8);
  }
  int blocks = THEN ? G / job.groups : 1, rank = THEN ? bid % blocks : 0; // of the cluster
  // What the cluster's block of that rank needs: the norm's weights, and its rows of the residual stream.
  auto fetch = [&](int rank) __attribute__((always_inline)) {
    if constexpr (THEN) {
      int at = (TID & 63) * 4, k = TID >> 6, r = rank + (k - 1) * blocks;
      const float* from = k == 0 ? then.w + grp * 256 + at : in_addr(then.x, r, grp * 256 + at);
      if (k == 0 || k < 3 && r < n) cp16(rest + k * 1024 + at * 4, from);
      cp_commit();
    }
  };
  fetch(rank);
  if constexpr (MADE) {
    float v[8];
    if constexpr (M::MERGED) { // all threads add splits, a column each, where the activations go afterwards
      float g[8];
      if (row < n) sum8_two(v, g, nullptr, 0, 0, maker.q, maker.qs, maker.nq);
#pragma unroll 1
      for (int job = TID >> 8; job < n * chunks; job += 2) {
        int r = job / chunks, k = kb + job - r * chunks, c = (k < a.kb ? k : k - a.kb) * 256 + (TID & 255);
        if (c >= m.cols) continue;
        Seen see = m.of.seen[r];
        float o[1];
        int head = c / m.of.dim;
        if (see.part < 0) o[0] = *in_addr(m.x, r, c);
        else add_splits(o, m.of, see, head, c - head * m.of.dim);
        sts_f(held + job * 1024 + (TID & 255) * 4, o[0]);
      }
      SYNC();
      if (row < n)
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = maker.np ? lds_f(held + warp * 1024 + lane * 32 + i * 4) : 0.f;
      SYNC();
      if (row < n) maker.finish(m, v, g);
    } else if (row < n) maker.make(m, v);
    if (row < n) pack_row({smem + (held - base), chunks, 1}, c0, row, v, lane);
  }
  factors(a, job, factor, tok0, n, warp, lane);
  SYNC();
  // Not before: the loads that kernels wait for would be behind it. With more tokens registers are short.
  if (NT <= 4 && halves <= a.depth && TID == 32 * (STRIPS - 2)) ask_ahead(a);
  float acc[NT][4], c[NT][4];
  clear<4 * NT>((float*)acc);
  int slot = 0, par = 0, i = 0;
  int duty = 16 - warp;    // halves until this warp's turn to refill
  int freed = 0, fpar = 0; // the slot finished last
  auto refill = [&]() {
    if (--duty != 0) return;
    duty = 16;
    int k = i - 1 + a.depth;
    if (i > 0 && k < halves) {
      bar_wait(empty + freed * 8, fpar);
      if (lane == 0) {
        u32 bar = full + freed * 8, to = ring + freed * SLOT;
        weights(k, to, bar);
        activations(k, kb + (k >> 1) - (i >> 1), to, bar);
        if (NT <= 4 && k == halves - 1) ask_ahead(a); // not before: these would wait behind it
      }
      syncwarp();
    }
  };
  auto early = [&]() {
    if (NT > 2) refill();
  };
  auto between = [&]() {
    if (NT <= 2) refill();
  };
  auto finish = [&]() {
    syncwarp();
    if (lane == 0) bar_arrive(empty + slot * 8);
    freed = slot;
    fpar = par;
    i++;
    if (++slot == a.depth) { slot = 0; par ^= 1; }
  };
  int chunk = 0;
  while (i < halves) {
    u32 st = ring + slot * SLOT, x = MADE ? held + chunk * ACT : st + W1;
    clear<4 * NT>((float*)c);
    early();
    bar_wait(full + slot * 8, par);
    half_stage<F, NT>(c, st + warp * F::H0, Tiled{x, 0}, job.table, lane, between);
    finish();
    st = ring + slot * SLOT;
    x = MADE ? x + A0 : st + W1;
    early();
    bar_wait(full + slot * 8, par);
    half_stage<F, NT>(c, st + warp * F::H1, Tiled{x, 0}, job.table, lane, between);
    scale<F, NT>(acc, c, st + warp * F::H1, Tiled{0, x + NT * A0}, lane);
    finish();
    if (MADE && ++chunk == chunks) chunk = 0;
    kb++;
    if (!THEN && (kb == a.kb || i == halves)) {
      store<NT>(part + (u64)b0 * a.n * rows + grp * 256, acc, n, rows, factor, lane);
      clear<4 * NT>((float*)acc);
      b0 = 0; // whoever begins a group has its first piece
    }
    if (!THEN && kb == a.kb) { kb = 0; grp++; }
  }
  if constexpr (THEN) {
    u32 sums = rest + 3 * 1024, pieces = sums + 2 * 1024; // in the ring, which nobody needs any more
    cp_wait<0>();
    SYNC();
    // What add_pack does, to the rows of the block of that rank: two at a time, a thread has a column.
    auto finish = [&](int rank) __attribute__((always_inline)) {
      int r = rank + (TID >> 8) * blocks;
      if (r < n) {
        float v[8];
#pragma unroll
        for (int k = 0; k < 8; k++)
          if (k < blocks) {
#ifdef EMULATE
            v[k] = job.part[((u64)k * a.n + r) * rows + grp * 256 + (TID & 255)];
#else
            v[k] = cluster_load(pieces + r * 1024 + (TID & 255) * 4, k);
#endif
          }
#pragma unroll
        for (int k = 1; k < 8; k++)
          if (k < blocks) v[0] = fadd(v[0], v[k]);
        sts_f(sums + TID * 4, v[0]);
      }
      cluster_arrive();
      SYNC();
      r = rank + warp * blocks;
      if (warp < 2 && r < n) {
        float v[8], s = 0;
#pragma unroll
        for (int i = 0; i < 8; i++) {
          int at = lane * 32 + i * 4;
          v[i] = fadd(lds_f(rest + (1 + warp) * 1024 + at), lds_f(sums + warp * 1024 + at));
          s = ffma(v[i], v[i], s);
        }
        store8(then.dst + (u64)r * then.dst_stride + grp * 256 + lane * 8, v);
        s = warp_sum(s);
        if (lane == 0) then.sumsq[(u64)r * then.act.kb + grp] = s;
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = fmul(v[i], lds_f(rest + lane * 32 + i * 4));
        pack_row(then.act, grp, r, v, lane);
      }
    };
#ifdef EMULATE // blocks run one after the other: pieces go through memory, and the last block has all
    store<1>(part + (u64)rank * a.n * rows + grp * 256, acc, n, rows, factor, lane);
    SYNC();
    if (TID == 0) sts32(sums, emu_last(blocks));
    SYNC();
    if (!lds32(sums)) return;
    for (int k = 0; k < blocks; k++) {
      fetch(k);
      cp_wait<0>();
      SYNC();
      finish(k);
      SYNC();
    }
#else
    int g = lane >> 2, tok = 2 * (lane & 3);
#pragma unroll
    for (int k = 0; k < 2; k++)
      if (tok + k < n) {
        float f = lds_f(factor + (tok + k) * 4);
        u32 to = pieces + (tok + k) * 1024 + (warp * 16 + g) * 4;
        sts_f(to, fmul(acc[0][k], f));
        sts_f(to + 32, fmul(acc[0][k + 2], f));
      }
    cluster_arrive();
    cluster_wait();
    finish(rank);
    cluster_wait(); // nobody may read what is gone
#endif
  }
}
template <int SET, int NT, class M, class N = NoThen> DEV void solo(const ProductArgs& a, const M& m, const N& then = {}) {
  int b = BID;
  Job job = find_job(a, b);
  with_format<SET>(job.format,
                   [&](auto f) __attribute__((always_inline)) { solo<decltype(f), NT>(a, m, then, job, b); });
}
#define SOLO(NAME, SET, NT) KERNEL(solo_##NAME##_##NT, ProductArgs, a, 512, 1) { solo<SET, NT>(a, Packed{}); }
#define SOLOS(NAME, SET) \
  SOLO(NAME, SET, 1) \
  SOLO(NAME, SET, 2) \
  SOLO(NAME, SET, 4) \
  SOLO(NAME, SET, 8)
#define SOLOS_BETWEEN(NAME, SET) \
  SOLO(NAME, SET, 3) \
  SOLO(NAME, SET, 6) \
  KERNEL(solo_##NAME##_made, MadeArgs, a, 512, 1) { solo<SET, 1>(a.p, a.m); } \
  KERNEL(solo_##NAME##_made_then, MadeThenArgs, a, 512, 1) { solo<SET, 1>(a.p, a.m, a.t); }
