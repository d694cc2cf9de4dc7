// Kernels that use each part of the emulation, rightly and wrongly.
#include "common.h"

struct OutArgs { float* out; const float* in; int n; };

// Sums of rows of 64 values by two warps, over shared memory.
KERNEL(test_sum, OutArgs, a, 64, 1) {
  float* s = (float*)smem;
  float v = warp_sum(a.in[BID * 64 + TID]);
  if ((TID & 31) == 0) s[TID >> 5] = v;
  SYNC();
  if (TID == 0) a.out[BID] = s[0] + s[1];
}

struct MmaArgs { float* d; const u16 *a, *b; int bf; };
// d[16][8] += a[16][16] b[8][16]
KERNEL(test_mma, MmaArgs, a, 32, 1) {
  int g = TID >> 2, t = TID & 3;
  const u32 *A = (const u32*)a.a, *B = (const u32*)a.b;
  u32 x[6] = {A[g * 8 + t], A[(g + 8) * 8 + t], A[g * 8 + t + 4], A[(g + 8) * 8 + t + 4], B[g * 8 + t], B[g * 8 + t + 4]};
  float d[4];
  for (int i = 0; i < 4; i++) d[i] = a.d[(g + 8 * (i >> 1)) * 8 + 2 * t + (i & 1)];
  if (a.bf) mma16816bf(d, x[0], x[1], x[2], x[3], x[4], x[5]);
  else mma16816(d, x[0], x[1], x[2], x[3], x[4], x[5]);
  for (int i = 0; i < 4; i++) a.d[(g + 8 * (i >> 1)) * 8 + 2 * t + (i & 1)] = d[i];
}
// The same through shared memory: A by ldmatrix, B from its transpose [16][8].
KERNEL(test_ldmatrix, MmaArgs, a, 32, 1) {
  u32 base = saddr(smem);
  for (int i = TID; i < 128; i += 32) sts32(base + 4 * i, ((const u32*)a.a)[i]);
  for (int i = TID; i < 128; i += 32) sts16(base + 512 + (i % 16 * 8 + i / 16) * 2, a.b[i]);
  syncwarp();
  u32 x[4], y[2];
  ldmatrix4(x, base + (TID & 15) * 32 + (TID >> 4) * 16);
  ldmatrix2t(y, base + 512 + (TID & 15) * 16);
  int g = TID >> 2, t = TID & 3;
  float d[4];
  for (int i = 0; i < 4; i++) d[i] = a.d[(g + 8 * (i >> 1)) * 8 + 2 * t + (i & 1)];
  mma16816(d, x[0], x[1], x[2], x[3], y[0], y[1]);
  for (int i = 0; i < 4; i++) a.d[(g + 8 * (i >> 1)) * 8 + 2 * t + (i & 1)] = d[i];
}
struct MmaS8Args { int* d; const u8 *a, *b; };
// d[16][8] += a[16][32] b[8][32]
KERNEL(test_mma_s8, MmaS8Args, a, 32, 1) {
  int g = TID >> 2, t = TID & 3;
  const u32 *A = (const u32*)a.a, *B = (const u32*)a.b;
  int d[4] = {0, 0, 0, 0};
  mma16832s8(d, A[g * 8 + t], A[(g + 8) * 8 + t], A[g * 8 + t + 4], A[(g + 8) * 8 + t + 4], B[g * 8 + t], B[g * 8 + t + 4]);
  for (int i = 0; i < 4; i++) a.d[(g + 8 * (i >> 1)) * 8 + 2 * t + (i & 1)] = d[i];
}

// Out: 4 values by an asynchronous copy, before and after waiting for it.
KERNEL(test_copy, OutArgs, a, 32, 1) {
  u32 s = saddr(smem) + TID * 16;
  cp16(s, a.in + 4 * TID);
  cp_commit();
  cp16z(s + 512, a.in + 4 * TID, 8);
  cp_commit();
  a.out[TID] = lds_f(s);
  cp_wait<1>();
  a.out[32 + TID] = lds_f(s + 4);
  a.out[64 + TID] = lds_f(s + 512);
  cp_wait<0>();
  a.out[96 + TID] = lds_f(s + 512 + 4);
  a.out[128 + TID] = lds_f(s + 512 + 8);
}

// The second warp hands values to the first by named barriers.
KERNEL(test_named, OutArgs, a, 96, 1) {
  float* s = (float*)smem;
  int lane = TID & 31;
  if (TID < 32) {
    bar_named<1, 64>();
    a.out[lane] = s[lane];
  } else if (TID < 64) {
    s[lane] = 2 * a.in[lane];
    bar_named_arrive<1, 64>();
  }
  SYNC();
  if (TID >= 64) a.out[32 + lane] = s[31 - lane];
}

struct HalfArgs { u32* out; const u32 *a, *b, *c; int n; };
KERNEL(test_halves, HalfArgs, p, 32, 1) {
  for (int i = TID; i < p.n; i += 32) {
    p.out[4 * i] = hfma2(p.a[i], p.b[i], p.c[i]);
    p.out[4 * i + 1] = hadd2(p.a[i], p.b[i]);
    p.out[4 * i + 2] = hmul2(p.a[i], p.b[i]);
    p.out[4 * i + 3] = f2h2(h2f(p.a[i]) * 1.5f, h2f(p.b[i] >> 16));
  }
}
KERNEL(test_votes, OutArgs, a, 32, 1) {
  u32 b = ballot(TID % 3 == 0);
  a.out[TID] = (float)(popc(b) * 100 + clz(b)) + shfl((float)TID, 7) + shfl_xor((float)TID, 1) / 64;
}

// ---- wrong on purpose
KERNEL(test_deadlock, OutArgs, a, 64, 1) {
  if (TID < 32) SYNC();
}
KERNEL(test_diverged, OutArgs, a, 32, 1) {
  if (TID == 3) syncwarp();
  else a.out[TID] = shfl_xor(1.f, 1);
}
KERNEL(test_shared, OutArgs, a, 32, 1) { ((float*)smem)[a.n + TID] = 0; }
KERNEL(test_shared_address, OutArgs, a, 32, 1) { sts_f(saddr(smem) + 4 * (a.n + TID), 0); }
KERNEL(test_global, OutArgs, a, 32, 1) { a.out[a.n + TID] = 1; }
KERNEL(test_odd, OutArgs, a, 32, 1) { stg128(a.out + TID, {0, 0, 0, 0}); }
KERNEL(test_uninitialised, OutArgs, a, 32, 1) { a.out[TID] = ((float*)smem)[TID]; }
// The second barrier is missing: a warp may clear its value before the other has read it.
KERNEL(test_race, OutArgs, a, 64, 1) {
  float* s = (float*)smem;
  s[TID] = 1;
  SYNC();
  a.out[TID] = s[TID ^ 32];
  s[TID] = 0;
}
