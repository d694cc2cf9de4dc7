// Kernels with races, each beside one that is right: n is 0 for the wrong one. The results are right either way here.
#include "common.h"

struct RaceArgs { float* out; const float* in; u32* counter; int n; };

KERNEL(race_sync, RaceArgs, a, 64, 1) {
  float* s = (float*)smem;
  s[TID] = 1;
  if (a.n) SYNC();
  a.out[TID] = s[TID ^ 32];
}
// A read that nothing orders before the next write.
KERNEL(race_read, RaceArgs, a, 64, 1) {
  float* s = (float*)smem;
  s[TID] = 1;
  SYNC();
  a.out[TID] = s[TID ^ 32];
  if (a.n) SYNC();
  s[TID] = 2;
}
// A shuffle is no barrier.
KERNEL(race_warp, RaceArgs, a, 32, 1) {
  u32 s = saddr(smem);
  sts_f(s + TID * 4, 1);
  if (a.n) syncwarp();
  else shfl_xor(1.f, 1);
  a.out[TID] = lds_f(s + (TID ^ 1) * 4);
}
// Halves of a word are two places.
KERNEL(race_halves, RaceArgs, a, 64, 1) {
  u32 s = saddr(smem);
  sts16(s + (a.n ? TID : TID & ~1) * 2, 1);
}
KERNEL(race_named, RaceArgs, a, 64, 1) {
  float* s = (float*)smem;
  if (TID < 32) {
    s[TID] = 1;
    if (a.n) bar_named_arrive<1, 64>();
    else bar_named_arrive<2, 64>();
  } else {
    if (a.n) bar_named<1, 64>();
    a.out[TID] = s[TID - 32];
  }
}
// A copy is there for the thread that waited for it, and for others after a barrier.
KERNEL(race_copy, RaceArgs, a, 32, 1) {
  u32 s = saddr(smem);
  cp16(s + TID * 16, a.in + TID * 4);
  cp_commit();
  cp_wait<0>();
  a.out[TID] = lds_f(s + TID * 16);
  if (a.n) syncwarp();
  a.out[TID] = lds_f(s + (TID ^ 1) * 16);
}
KERNEL(race_copy_wait, RaceArgs, a, 32, 1) {
  u32 s = saddr(smem) + TID * 16;
  cp16(s, a.in + TID * 4);
  cp_commit();
  if (a.n) cp_wait<0>();
  else cp_wait<1>();
  a.out[TID] = lds_f(s);
}
KERNEL(race_atomic, RaceArgs, a, 64, 1) {
  u32 s = saddr(smem);
  if (TID == 0) sts32(s, 0);
  SYNC();
  if (a.n || TID) atom_add_shared(s, 1);
  else sts32(s, lds32(s) + 1);
  SYNC();
}

// ---- copies that complete on a barrier
DEV void bars(int fenced) {
  if (TID == 0) {
    bar_init(saddr(smem), 1);
    bar_init(saddr(smem) + 8, 2);
    if (fenced) fence_async();
  }
  SYNC();
}
KERNEL(race_bar_fence, RaceArgs, a, 64, 1) {
  bars(a.n);
  if (TID == 0) {
    bar_expect(saddr(smem), 128);
    bulk(saddr(smem) + 128, a.in, 128, saddr(smem));
  }
  bar_wait(saddr(smem), 0);
}
KERNEL(race_bulk_wait, RaceArgs, a, 64, 1) {
  u32 s = saddr(smem);
  bars(1);
  if (TID == 0) {
    bar_expect(s, 256);
    bulk(s + 128, a.in, 256, s);
  }
  if (a.n || TID < 32) bar_wait(s, 0);
  a.out[TID] = lds_f(s + 128 + TID * 4);
}
// A slot is filled again: all warps must have said that they have read it, each for all its lanes.
KERNEL(race_bulk_again, RaceArgs, a, 64, 1) {
  u32 s = saddr(smem);
  bars(1);
  for (int i = 0; i < 2; i++) {
    if (TID == 0) {
      if (i) bar_wait(s + 8, 0);
      bar_expect(s, 256);
      bulk(s + 128, a.in + 64 * i, 256, s);
    }
    bar_wait(s, i);
    a.out[TID] = lds_f(s + 128 + TID * 4);
    if (a.n) syncwarp();
    if ((TID & 31) == 0) bar_arrive(s + 8);
  }
}
// Plain stores to global memory, and then a copy of them.
KERNEL(race_proxy_global, RaceArgs, a, 64, 1) {
  u32 s = saddr(smem);
  bars(1);
  a.out[TID] = 1;
  if (a.n) fence_async();
  SYNC();
  if (TID == 0) {
    bar_expect(s, 256);
    bulk(s + 128, a.out, 256, s);
  }
  bar_wait(s, 0);
}

// ---- between blocks and launches
KERNEL(race_blocks, RaceArgs, a, 32, 1) {
  if (TID == 0) a.out[a.n ? BID : 0] = 1;
}
// The last block reads what the others wrote. An atomic of another number says nothing about them.
KERNEL(race_last, RaceArgs, a, 32, 1) {
  float* s = (float*)smem;
  a.out[BID * 32 + TID] = 1;
  SYNC();
  if (TID == 0) {
    u32 before = atom_inc_gpu(a.counter);
    s[0] = (float)(a.n ? before : atom_inc_gpu(a.counter + 1 + BID) + GDIM - 1);
  }
  if (a.n) SYNC();
  else syncwarp();
  if (s[0] == (float)(GDIM - 1)) a.out[TID] = a.out[(BID ^ 1) * 32 + TID];
}
KERNEL(race_before, RaceArgs, a, 32, 1) {
  pdl_launch();
  pdl_wait();
  a.out[TID] = 1;
}
KERNEL(race_after, RaceArgs, a, 32, 1) {
  if (a.n) pdl_wait();
  a.out[TID] = 2;
}
