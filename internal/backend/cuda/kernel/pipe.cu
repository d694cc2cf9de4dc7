// Products of up to 64 tokens at a time for devices before Hopper: y = W x. More tokens are further chunks (BIDY).
#include "product.h"

static const int FACTORS = 256; // bytes of 64 factors

// "pipe": the same for devices before Hopper (sm_80 and up): 16 warps with one tile each, all threads copy half
// stages, depth-1 ahead, one barrier of the block for each.
template <class F, int NT> DEV void pipe(const ProductArgs& a, const Job& job, int bid) {
  const int W0 = STRIPS * F::H0, W1 = STRIPS * F::H1, SLOT = W1 + NT * A1;
  int warp = TID >> 5, lane = TID & 31, tok0 = BIDY * (8 * NT), n = a.n - tok0 < 8 * NT ? a.n - tok0 : 8 * NT;
  int T = job.groups * a.kb, G = job.blocks, rows = job.groups * 256;
  int s0 = first_stage(bid, T, G), halves = 2 * (first_stage(bid + 1, T, G) - s0);
  u32 factor = saddr(smem), ring = factor + FACTORS;
  const u8* act = a.act + (u64)BIDY * a.kb * (NT * ACT);
  float* part = job.part + (u64)tok0 * rows + warp * 16;
  int to = 0; // the slot to fill next
  auto load = [&](int i) {
    if (i < halves) {
      int h = i & 1, s = s0 + (i >> 1);
      u32 slot = ring + to * SLOT;
      const u8* w = job.w + (u64)s * (W0 + W1) + h * W0;
      const u8* x = act + (u64)(s % a.kb) * (NT * ACT) + h * (NT * A0);
      for (int o = TID * 16; o < (h ? W1 : W0); o += 512 * 16) cp16(slot + o, w + o);
      for (int o = TID * 16; o < NT * (h ? A1 : A0); o += 512 * 16) cp16(slot + W1 + o, x + o);
    }
    cp_commit();
    if (++to == a.depth) to = 0;
  };
  for (int i = 0; i < a.depth - 1; i++) load(i);
  factors(a, job, factor, tok0, n, warp, lane);
  float acc[NT][4], c[NT][4];
  clear<4 * NT>((float*)acc);
  int grp = s0 / a.kb, kb = s0 % a.kb, slot = 0, i = 0;
  auto next = [&]() { // half i is there for all, the slot of the one before is free
    if (a.depth == 2) cp_wait<0>();
    else if (a.depth == 3) cp_wait<1>();
    else cp_wait<2>();
    SYNC();
    load(i + a.depth - 1);
    u32 st = ring + slot * SLOT;
    if (++slot == a.depth) slot = 0;
    i++;
    return st;
  };
  auto none = []() {};
  while (i < halves) {
    clear<4 * NT>((float*)c);
    u32 st = next();
    half_stage<F, NT>(c, st + warp * F::H0, Tiled{st + W1, 0}, job.table, lane, none);
    st = next();
    half_stage<F, NT>(c, st + warp * F::H1, Tiled{st + W1, 0}, job.table, lane, none);
    scale<F, NT>(acc, c, st + warp * F::H1, Tiled{0, st + W1 + NT * A0}, lane);
    kb++;
    if (kb == a.kb || i == halves) {
      int piece = bid - block_of(grp * a.kb, T, G);
      store<NT>(part + (u64)piece * a.n * rows + grp * 256, acc, n, rows, factor, lane);
      clear<4 * NT>((float*)acc);
    }
    if (kb == a.kb) { kb = 0; grp++; }
  }
}
template <int NT> DEV void pipe(const ProductArgs& a) {
  int b = BID;
  Job job = find_job(a, b);
  with_format<ALL_FORMATS>(job.format, [&](auto f) __attribute__((always_inline)) { pipe<decltype(f), NT>(a, job, b); });
}
KERNEL(pipe_1, ProductArgs, a, 512, 1) { pipe<1>(a); }
KERNEL(pipe_2, ProductArgs, a, 512, 1) { pipe<2>(a); }
KERNEL(pipe_4, ProductArgs, a, 512, 1) { pipe<4>(a); }
KERNEL(pipe_8, ProductArgs, a, 512, 1) { pipe<8>(a); }
