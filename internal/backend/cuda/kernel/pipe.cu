// Products of up to 64 tokens at a time for devices before Hopper (sm_80 and up): y = W x. More tokens are further
// chunks (BIDY). 16 warps have a tile of each stage.
#include "product.h"

static const int FACTORS = 256; // bytes of 64 factors

// Waits until at most depth-2 groups of copies are under way.
DEV void ring_wait(int depth) {
  switch (depth) {
  case 2: cp_wait<0>(); break;
  case 3: cp_wait<1>(); break;
  case 4: cp_wait<2>(); break;
  case 5: cp_wait<3>(); break;
  case 6: cp_wait<4>(); break;
  case 7: cp_wait<5>(); break;
  default: cp_wait<6>();
  }
}

// For few tokens: every warp copies its own tiles, depth-1 halves ahead, and waits for nobody else. The activations,
// which all warps read, are copied by all threads, a.most stages at a time, into one of two places; only there the
// block has a barrier. Warps at different places hide each other's waiting: an H200 that
// pretended to be a card of 8.6 took 27.9 us on average for a product of a 27B model with one row, and 31.1 with a
// barrier for each half stage; with 16 rows 35.5 and 36.2.
template <class F, int NT> DEV void own_pipe(const ProductArgs& a, const Job& job, int bid) {
  const int H = F::H0 > F::H1 ? F::H0 : F::H1, W0 = STRIPS * F::H0, W1 = STRIPS * F::H1;
  int warp = TID >> 5, lane = TID & 31, tok0 = BIDY * (8 * NT), n = a.n - tok0 < 8 * NT ? a.n - tok0 : 8 * NT;
  int T = job.groups * a.kb, G = job.blocks, rows = job.groups * 256;
  int s0 = first_stage(bid, T, G), stages = first_stage(bid + 1, T, G) - s0, halves = 2 * stages;
  u32 factor = saddr(smem), acts = factor + FACTORS, ring = acts + 2 * a.most * (NT * ACT) + warp * a.depth * H;
  const u8* act = a.act + (u64)BIDY * a.kb * (NT * ACT);
  const u8* w = job.w + (u64)s0 * (W0 + W1);
  float* part = job.part + (u64)tok0 * rows + warp * 16;
  int to = 0; // the slot to fill next
  auto load = [&](int i) { // half i
    if (i < halves) {
      int h = i & 1, bytes = h ? F::H1 : F::H0;
      const u8* from = w + (u64)(i >> 1) * (W0 + W1) + (h ? W0 + warp * F::H1 : warp * F::H0);
      for (int o = lane * 16; o < bytes; o += 512) cp16(ring + to * H + o, from + o);
    }
    cp_commit();
    if (++to == a.depth) to = 0;
  };
  auto load_acts = [&](int j) { // of a.most stages from j on
    u32 at = acts + (j / a.most & 1) * a.most * (NT * ACT);
    int end = j + a.most < stages ? j + a.most : stages;
    for (; j < end; j++, at += NT * ACT) {
      const u8* x = act + (u64)((s0 + j) % a.kb) * (NT * ACT);
      for (int o = TID * 16; o < NT * ACT; o += 512 * 16) cp16(at + o, x + o);
    }
  };
  load_acts(0);
  for (int i = 0; i < a.depth - 1; i++) load(i);
  factors(a, job, factor, tok0, n, warp, lane);
  float acc[NT][4], c[NT][4];
  clear<4 * NT>((float*)acc);
  int grp = s0 / a.kb, kb = s0 % a.kb, slot = 0, i = 0, in = 0, side = 0; // in: stages of the activations at hand
  auto next = [&](bool first) { // half i is there, the slot of the one before is free
    ring_wait(a.depth);
    if (first) {
      SYNC(); // all have their part of the activations, and are done with those before
      load_acts((i >> 1) + a.most);
    } else
      syncwarp();
    load(i + a.depth - 1);
    u32 st = ring + slot * H;
    if (++slot == a.depth) slot = 0;
    i++;
    return st;
  };
  auto none = []() {};
  while (i < halves) {
    clear<4 * NT>((float*)c);
    u32 st = next(in == 0), x = acts + (side * a.most + in) * (NT * ACT);
    half_stage<F, NT>(c, st, Tiled{x, 0}, job.table, lane, none);
    st = next(false);
    half_stage<F, NT>(c, st, Tiled{x + NT * A0, 0}, job.table, lane, none);
    scale<F, NT>(acc, c, st, Tiled{0, x + 2 * NT * A0}, lane);
    if (++in == a.most) { in = 0; side ^= 1; }
    kb++;
    if (kb == a.kb || i == halves) {
      int piece = bid - block_of(grp * a.kb, T, G);
      store<NT>(part + (u64)piece * a.n * rows + grp * 256, acc, n, rows, factor, lane);
      clear<4 * NT>((float*)acc);
    }
    if (kb == a.kb) { kb = 0; grp++; }
  }
}

// For many tokens: all threads copy half stages with their activations, depth-1 ahead, and there is a barrier of the
// block for each.
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
    ring_wait(a.depth);
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
template <int NT, bool OWN> DEV void pipe(const ProductArgs& a) {
  int b = BID;
  Job job = find_job(a, b);
  with_format<ALL_FORMATS>(job.format, [&](auto f) __attribute__((always_inline)) {
    if constexpr (OWN) own_pipe<decltype(f), NT>(a, job, b);
    else pipe<decltype(f), NT>(a, job, b);
  });
}
KERNEL(own_1, ProductArgs, a, 512, 1) { pipe<1, true>(a); }
KERNEL(own_2, ProductArgs, a, 512, 1) { pipe<2, true>(a); }
KERNEL(own_4, ProductArgs, a, 512, 1) { pipe<4, true>(a); }
KERNEL(pipe_4, ProductArgs, a, 512, 1) { pipe<4, false>(a); }
KERNEL(pipe_8, ProductArgs, a, 512, 1) { pipe<8, false>(a); }
