// Warpgroup products (sm_90a) with A in registers: D[64 x N] (+)= A[64 x 16] B[16 x N], halves in, f32 out. B lies in
// shared memory, token by token.
#pragma once
#include "common.h"

// An operand with 128-byte swizzle; lead and stride in bytes.
DEV u64 desc128(u32 addr, u32 lead, u32 stride) {
  return (u64)((addr & 0x3ffff) >> 4) | (u64)(lead >> 4) << 16 | (u64)(stride >> 4) << 32 | (u64)1 << 62;
}
// The same without swizzle: 8 rows x 16 bytes are 128 consecutive bytes.
DEV u64 desc0(u32 addr, u32 lead, u32 stride) {
  return (u64)((addr & 0x3ffff) >> 4) | (u64)(lead >> 4) << 16 | (u64)(stride >> 4) << 32;
}
#ifdef EMULATE
// The same at once, warp by warp: each has its 16 rows of A and D. With swizzle, bits 7 to 9 of an address are added
// to bits 4 to 6.
DEV u32 emu_operand(u64 desc, int token, int chunk) {
  u32 at = ((u32)desc & 0x3fff) << 4, lead = ((u32)(desc >> 16) & 0x3fff) << 4, stride = ((u32)(desc >> 32) & 0x3fff) << 4;
  if (!(desc >> 62)) return at + token / 8 * stride + chunk * lead + token % 8 * 16;
  at += token / 8 * stride + token % 8 * 128 + chunk * 16;
  return at ^ (at >> 7 & 7) << 4;
}
DEV void wg_fence() {}
DEV void wg_commit() {}
template <int N> DEV void wg_wait() {}
template <int N> DEV void wg_keep(float (&d)[N]) {}
template <int N> DEV void wg_rs(float (&d)[N], u32 a0, u32 a1, u32 a2, u32 a3, u64 b, int add) {
  int g = (TID & 31) >> 2, t = TID & 3;
  for (int nt = 0; nt < N / 4; nt++) {
    float* p = d + 4 * nt;
    if (!add) p[0] = p[1] = p[2] = p[3] = 0;
    mma16816(p, a0, a1, a2, a3, lds32(emu_operand(b, nt * 8 + g, 0) + 4 * t), lds32(emu_operand(b, nt * 8 + g, 1) + 4 * t));
  }
}
#else
DEV void wg_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEV void wg_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> DEV void wg_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }
template <int N> DEV void wg_keep(float (&d)[N]) { // the compiler must not move uses across
#pragma unroll
  for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}

#define WG_16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define WG_32 WG_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define WG_64 \
  WG_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47" \
        ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define WG_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define WG_D16(i) WG_D4(i), WG_D4(i + 4), WG_D4(i + 8), WG_D4(i + 12)
#define WG_IN "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(add)
DEV void wg_rs(float (&d)[16], u32 a0, u32 a1, u32 a2, u32 a3, u64 b, int add) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %21, 0; wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {" WG_16
               "}, {%16,%17,%18,%19}, %20, p, 1, 1, 0; }" : WG_D16(0) : WG_IN);
}
DEV void wg_rs(float (&d)[32], u32 a0, u32 a1, u32 a2, u32 a3, u64 b, int add) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %37, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" WG_32
               "}, {%32,%33,%34,%35}, %36, p, 1, 1, 0; }" : WG_D16(0), WG_D16(16) : WG_IN);
}
DEV void wg_rs(float (&d)[64], u32 a0, u32 a1, u32 a2, u32 a3, u64 b, int add) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %69, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" WG_64
               "}, {%64,%65,%66,%67}, %68, p, 1, 1, 0; }" : WG_D16(0), WG_D16(16), WG_D16(32), WG_D16(48) : WG_IN);
}
#endif
