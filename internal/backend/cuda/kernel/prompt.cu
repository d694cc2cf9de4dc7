// Products for prompts on Hopper's warpgroup tensor cores: the weights, the cuts and the order of sums of product.h, so
// that a row has the same bits as in small products. Warps turn their tile into fragments in registers (A), activations
// come from shared memory (B; pack.h describes them).
// also for sm_90a
// emulated as for sm_90
#include "pack.h"
#ifdef HOPPER
#include "wgmma.h"

// rms_factor by one thread: the same additions.
template <int STEP> DEV float tree(const float* s, int kb, int l) {
  if constexpr (STEP == 32) {
    float v = 0;
    for (int k = l; k < kb; k += 32) v = fadd(v, s[k]);
    return v;
  } else return fadd(tree<2 * STEP>(s, kb, l), tree<2 * STEP>(s, kb, l + STEP));
}
// The factors of n tokens from tok0 on, a thread for each. Whoever reads the ones before is done.
DEV void tile_factors(const ProductArgs& a, const Job& job, u32 to, int tok0, int n) {
  SYNC();
  int tok = tok0 + TID;
  if (TID < n && tok < a.n) {
    float f = job.scale;
    if (a.sumsq) f = fmul(f, rsqrt_(ffma(tree<1>(a.sumsq + (u64)tok * a.kb, a.kb, 0), a.mean, a.eps)));
    sts_f(to + TID * 4, f);
  }
  SYNC();
}

// A ring of half stages; a block goes through its stages `rounds` times. WARPS warps compute.
struct Ring {
  u32 full, empty, first;
  int size, depth, halves;
  int slot, par, i;
  DEV_M void init(u32 base, int size_, int depth_, int halves_, int warps) {
    full = base;
    empty = base + 64;
    first = base + 1024;
    size = size_;
    depth = depth_;
    halves = halves_;
    slot = par = i = 0;
    if (TID == 0) {
      for (int k = 0; k < depth; k++) { bar_init(full + k * 8, 1); bar_init(empty + k * 8, warps); }
      fence_async();
    }
  }
  DEV_M u32 at(int s) { return first + s * size; }
  DEV_M void wait() { bar_wait(full + slot * 8, par); }
  DEV_M int before() { return slot == 0 ? depth - 1 : slot - 1; }
  DEV_M void leave(int s) {
    syncwarp();
    if ((TID & 31) == 0) bar_arrive(empty + s * 8);
  }
  DEV_M void next() {
    i++;
    if (++slot == depth) { slot = 0; par ^= 1; }
  }
  // Fills the slot of two halves ago; warps take turns.
  template <class L> DEV_M void refill(int warp, int warps, L load) {
    int k = i - 2 + depth;
    if ((i & (warps - 1)) == warp && i > 1 && k < halves) {
      if ((TID & 31) == 0) {
        int last = slot - 2;
        if (last < 0) last += depth;
        bar_wait(empty + last * 8, slot < 2 ? par ^ 1 : par);
        load(k, last);
      }
      syncwarp();
    }
  }
};

// A block has 4 warpgroups of 64 rows each and 64 tokens.
static const int PW = PA + PTAIL; // weights lie behind activations in a slot
template <class F> DEV void prompt(const ProductArgs& a) {
  const int W0 = 16 * F::H0, W1 = 16 * F::H1, SLOT = (PW + W1 + 1023) & ~1023;
  int warp = TID >> 5, lane = TID & 31, g = lane >> 2, t = lane & 3, bid = BID, tiles = (a.n + 63) / 64;
  Job job = find_job(a, bid);
  int T = job.groups * a.kb, G = job.blocks, rows = job.groups * 256;
  int s0 = first_stage(bid, T, G), ns = first_stage(bid + 1, T, G) - s0;
  u32 base = (saddr(smem) + 1023) & ~1023u, factor = base + 128;
  const u8* src = job.w + (u64)s0 * (W0 + W1);
  int grp0 = s0 / a.kb, kb0 = s0 - grp0 * a.kb;
  Ring ring;
  ring.init(base, SLOT, a.depth, 2 * ns * tiles, 16);
  auto load = [&](int i, int slot) __attribute__((always_inline)) { // half i of this block
    int h = i & 1, tile = (i >> 1) / ns, st = (i >> 1) - tile * ns, kb = kb0 + st;
    while (kb >= a.kb) kb -= a.kb;
    u32 to = ring.at(slot), bar = ring.full + slot * 8;
    bar_expect(bar, h ? W1 + PA + PTAIL : W0 + PA);
    bulk_hint(to + PW, src + (u64)st * (W0 + W1) + h * W0, h ? W1 : W0, bar, evict_first());
    bulk(to, a.act + ((u64)tile * a.kb + kb) * PACT + h * PA, h ? PA + PTAIL : PA, bar);
  };
  SYNC();
  pdl_launch();
  pdl_wait();
  if (TID == 0)
    for (int i = 0; i < a.depth && i < ring.halves; i++) load(i, i);
  float acc[32], c[32];
  auto half = [&](u32 st, u32 tile, int first) __attribute__((always_inline)) {
    F w;
    w.begin(tile, lane, job.table);
    u64 b = desc128(st, 16, 1024);
#pragma unroll
    for (int sb = 0; sb < 4; sb++) {
      Frag f;
      w.load(tile, lane, sb);
      w.frag(f, sb);
      wg_fence();
      int at = (sb >> 1) * (8192 >> 4) + (sb & 1) * 4;
      wg_rs(c, f.a[0][0], f.a[0][1], f.a[0][2], f.a[0][3], b + at, !(first && sb == 0));
      wg_rs(c, f.a[1][0], f.a[1][1], f.a[1][2], f.a[1][3], b + at + 2, 1);
      wg_commit();
      if (sb < 3) wg_wait<1>();
      if (sb == 0 && !first) ring.leave(ring.before()); // the half before is done with
      if (sb == 1) ring.refill(warp, 16, load);
    }
  };
  for (int tile = 0; tile < tiles; tile++) {
    tile_factors(a, job, factor, tile * 64, 64);
    int grp = grp0, kb = kb0, b0 = bid - block_of(grp * a.kb, T, G);
    clear<32>(acc);
    for (int s = 0; s < ns; s++) {
      u32 st = ring.at(ring.slot);
      ring.wait();
      half(st, st + PW + warp * F::H0, 1);
      ring.next();
      st = ring.at(ring.slot);
      u32 wt = st + PW + warp * F::H1;
      ring.wait();
      half(st, wt, 0);
      // mins and scales, for 32 tokens at a time: registers are short
      float k[16], dg, mg, dh, mh;
      u32 ng = 0, nh = 0;
      if (F::MINS) { ng = F::mins(wt, g, t); nh = F::mins(wt, g + 8, t); }
      F::d(wt, g, dg, mg);
      F::d(wt, g + 8, dh, mh);
#pragma unroll
      for (int part = 0; part < 2; part++) {
        if (F::MINS) {
          wg_keep(k);
          wg_fence();
          wg_rs(k, ng, nh, ng, nh, desc0(st + PA + part * 1024, 128, 256), 0);
          wg_commit();
        }
        wg_wait<0>();
        if (part == 0) wg_keep(c);
        if (F::MINS) wg_keep(k);
#pragma unroll
        for (int j = 0; j < 4; j++) {
          int nt = part * 4 + j;
          float v[4] = {fmul(dg, c[4 * nt]), fmul(dg, c[4 * nt + 1]), fmul(dh, c[4 * nt + 2]), fmul(dh, c[4 * nt + 3])};
          if (F::MINS) {
            v[0] = ffma(-mg, k[4 * j], v[0]);
            v[1] = ffma(-mg, k[4 * j + 1], v[1]);
            v[2] = ffma(-mh, k[4 * j + 2], v[2]);
            v[3] = ffma(-mh, k[4 * j + 3], v[3]);
          }
          U2 sc = lds64(st + PA + 2048 + nt * 32 + t * 8);
          acc[4 * nt] = ffma(bits_f(sc.x), v[0], acc[4 * nt]);
          acc[4 * nt + 1] = ffma(bits_f(sc.y), v[1], acc[4 * nt + 1]);
          acc[4 * nt + 2] = ffma(bits_f(sc.x), v[2], acc[4 * nt + 2]);
          acc[4 * nt + 3] = ffma(bits_f(sc.y), v[3], acc[4 * nt + 3]);
        }
      }
      ring.leave(ring.slot);
      ring.next();
      kb++;
      if (kb == a.kb || s == ns - 1) {
        float* y = job.part + ((u64)b0 * a.n + tile * 64) * rows + grp * 256 + warp * 16;
        store<8>(y, *(float(*)[8][4])acc, a.n - tile * 64, rows, factor, lane);
        clear<32>(acc);
        b0 = 0;
      }
      if (kb == a.kb) { kb = 0; grp++; }
    }
  }
}

// The same with 128 tokens: 2 warpgroups of 64 rows, so half the work of making fragments, and more of loading
// activations. A block goes through its stages twice, for the first and the second 128 rows of a group. Matrices of few
// blocks have several of them (BIDY) for each, with some of the tokens.
template <class F> DEV void wide(const ProductArgs& a) {
  const int W0 = 16 * F::H0, W1 = 16 * F::H1, WA = 2 * PA, WW = WA + 2 * PTAIL, SLOT = (WW + W1 / 2 + 1023) & ~1023;
  int warp = TID >> 5, lane = TID & 31, g = lane >> 2, t = lane & 3, bid = BID;
  int tiles64 = (a.n + 63) / 64, all = (tiles64 + 1) / 2, tile0 = all * BIDY / GDIMY;
  int tiles = all * (BIDY + 1) / GDIMY - tile0;
  Job job = find_job(a, bid);
  int T = job.groups * a.kb, G = job.blocks, rows = job.groups * 256;
  int s0 = first_stage(bid, T, G), ns = first_stage(bid + 1, T, G) - s0;
  u32 base = (saddr(smem) + 1023) & ~1023u, factor = base + 128;
  const u8* src = job.w + (u64)s0 * (W0 + W1);
  int grp0 = s0 / a.kb, kb0 = s0 - grp0 * a.kb;
  Ring ring;
  ring.init(base, SLOT, a.depth, 4 * ns * tiles, 8);
  auto load = [&](int i, int slot) __attribute__((always_inline)) { // half i of this block
    int h = i & 1, u = (i >> 1) / ns, st = (i >> 1) - u * ns, kb = kb0 + st;
    while (kb >= a.kb) kb -= a.kb;
    u32 to = ring.at(slot), bar = ring.full + slot * 8;
    bar_expect(bar, h ? W1 / 2 + WA + 2 * PTAIL : W0 / 2 + WA);
    const u8* w = src + (u64)st * (W0 + W1) + (h ? W0 + (u & 1) * (W1 / 2) : (u & 1) * (W0 / 2));
    bulk_hint(to + WW, w, h ? W1 / 2 : W0 / 2, bar, evict_first());
    for (int k = 0; k < 2; k++) {
      int tile = (tile0 + (u >> 1)) * 2 + k;
      if (tile >= tiles64) tile = tiles64 - 1; // its results go nowhere
      const u8* from = a.act + ((u64)tile * a.kb + kb) * PACT + h * PA;
      bulk(to + k * 8192, from, 8192, bar);
      bulk(to + 16384 + k * 8192, from + 8192, 8192, bar);
      if (h) bulk(to + WA + k * PTAIL, from + PA, PTAIL, bar);
    }
  };
  SYNC();
  pdl_launch();
  pdl_wait();
  if (TID == 0)
    for (int i = 0; i < a.depth && i < ring.halves; i++) load(i, i);
  float acc[64], c[64];
  auto half = [&](u32 st, u32 tile, int first) __attribute__((always_inline)) {
    F w;
    w.begin(tile, lane, job.table);
    u64 b = desc128(st, 16, 1024);
#pragma unroll
    for (int sb = 0; sb < 4; sb++) {
      Frag f;
      w.load(tile, lane, sb);
      w.frag(f, sb);
      wg_fence();
      int at = (sb >> 1) * (16384 >> 4) + (sb & 1) * 4;
      wg_rs(c, f.a[0][0], f.a[0][1], f.a[0][2], f.a[0][3], b + at, !(first && sb == 0));
      wg_rs(c, f.a[1][0], f.a[1][1], f.a[1][2], f.a[1][3], b + at + 2, 1);
      wg_commit();
      if (sb < 3) wg_wait<2>();
      if (sb == 1 && !first) ring.leave(ring.before()); // the half before is done with
      if (sb == 1) ring.refill(warp, 8, load);
    }
  };
  for (int u = 0; u < 2 * tiles; u++) {
    int tok0 = (tile0 + (u >> 1)) * 128;
    if (!(u & 1)) tile_factors(a, job, factor, tok0, 128);
    int grp = grp0, kb = kb0, b0 = bid - block_of(grp * a.kb, T, G);
    clear<64>(acc);
    for (int s = 0; s < ns; s++) {
      u32 st = ring.at(ring.slot);
      ring.wait();
      half(st, st + WW + warp * F::H0, 1);
      ring.next();
      st = ring.at(ring.slot);
      u32 wt = st + WW + warp * F::H1, tail = st + WA;
      ring.wait();
      half(st, wt, 0);
      // mins and scales, for 32 tokens at a time: registers are short
      float k[2][16], dg, mg, dh, mh;
      u32 ng = 0, nh = 0;
      if (F::MINS) { ng = F::mins(wt, g, t); nh = F::mins(wt, g + 8, t); }
      F::d(wt, g, dg, mg);
      F::d(wt, g + 8, dh, mh);
      auto mins = [&](int part) __attribute__((always_inline)) {
        if (!F::MINS) return;
#pragma unroll
        for (int j = 0; j < 4; j++) {
          u32 at = tail + (part >> 1) * PTAIL + ((part & 1) * 4 + j) * 256 + g * 16 + t * 4;
          float* q = k[part & 1] + 4 * j;
          q[0] = q[1] = q[2] = q[3] = 0;
          mma16816(q, ng, nh, ng, nh, lds32(at), lds32(at + 128));
        }
      };
      mins(0);
#pragma unroll
      for (int part = 0; part < 4; part++) {
        if (part < 3) mins(part + 1);
        if (part == 0) wg_wait<0>();
        if (part == 0) wg_keep(c);
#pragma unroll
        for (int j = 0; j < 4; j++) {
          int nt = part * 4 + j;
          float v[4] = {fmul(dg, c[4 * nt]), fmul(dg, c[4 * nt + 1]), fmul(dh, c[4 * nt + 2]), fmul(dh, c[4 * nt + 3])};
          if (F::MINS) {
            v[0] = ffma(-mg, k[part & 1][4 * j], v[0]);
            v[1] = ffma(-mg, k[part & 1][4 * j + 1], v[1]);
            v[2] = ffma(-mh, k[part & 1][4 * j + 2], v[2]);
            v[3] = ffma(-mh, k[part & 1][4 * j + 3], v[3]);
          }
          U2 sc = lds64(tail + (part >> 1) * PTAIL + 2048 + (nt & 7) * 32 + t * 8);
          acc[4 * nt] = ffma(bits_f(sc.x), v[0], acc[4 * nt]);
          acc[4 * nt + 1] = ffma(bits_f(sc.y), v[1], acc[4 * nt + 1]);
          acc[4 * nt + 2] = ffma(bits_f(sc.x), v[2], acc[4 * nt + 2]);
          acc[4 * nt + 3] = ffma(bits_f(sc.y), v[3], acc[4 * nt + 3]);
        }
      }
      ring.leave(ring.slot);
      ring.next();
      kb++;
      if (kb == a.kb || s == ns - 1) {
        float* y = job.part + ((u64)b0 * a.n + tok0) * rows + grp * 256 + (u & 1) * 128 + warp * 16;
        store<16>(y, *(float(*)[16][4])acc, a.n - tok0, rows, factor, lane);
        clear<64>(acc);
        b0 = 0;
      }
      if (kb == a.kb) { kb = 0; grp++; }
    }
  }
}
#define PROMPT(NAME, F) \
  KERNEL(prompt_##NAME, ProductArgs, a, 512, 1) { prompt<F>(a); } \
  KERNEL(wide_##NAME, ProductArgs, a, 256, 1) { wide<F>(a); }
PROMPT(q4k, Q4K)
PROMPT(q6k, Q6K)
#ifndef EMULATE // two are enough there
PROMPT(q5k, Q5K)
PROMPT(q3k, Q3K)
PROMPT(nv4, NV4)
#endif
#endif
