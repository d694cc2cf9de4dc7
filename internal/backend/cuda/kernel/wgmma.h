// Warpgroup products (sm_90a): D[64 x N] (+)= A[64 x 16] B[16 x N], halves in, f32 out. A lies in registers and B in
// shared memory, its 16 columns contiguous, unless said otherwise.
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
#include "emulate_hopper.h"
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
#define WG_40 WG_32 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define WG_64 \
  WG_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47" \
        ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define WG_96 \
  WG_64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79" \
        ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define WG_128 \
  WG_96 ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111" \
        ",%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
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
// A in shared memory, too, its 16 columns contiguous.
DEV void wg_ss(float (&d)[32], u64 a, u64 b, int add) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %34, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" WG_32
               "}, %32, %33, p, 1, 1, 0, 0; }" : WG_D16(0), WG_D16(16) : "l"(a), "l"(b), "r"(add));
}
DEV void wg_ss(float (&d)[96], u64 a, u64 b, int add) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %98, 0; wgmma.mma_async.sync.aligned.m64n192k16.f32.f16.f16 {" WG_96
               "}, %96, %97, p, 1, 1, 0, 0; }"
               : WG_D16(0), WG_D16(16), WG_D16(32), WG_D16(48), WG_D16(64), WG_D16(80) : "l"(a), "l"(b), "r"(add));
}
// B lies with its N dimension contiguous; adds to D.
#define WG_INT "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b)
DEV void wg_rst(float (&d)[32], u32 a0, u32 a1, u32 a2, u32 a3, u64 b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" WG_32 "}, {%32,%33,%34,%35}, %36, 1, 1, 1, 1;"
               : WG_D16(0), WG_D16(16) : WG_INT);
}
DEV void wg_rst(float (&d)[40], u32 a0, u32 a1, u32 a2, u32 a3, u64 b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n80k16.f32.f16.f16 {" WG_40 "}, {%40,%41,%42,%43}, %44, 1, 1, 1, 1;"
               : WG_D16(0), WG_D16(16), WG_D4(32), WG_D4(36) : WG_INT);
}
DEV void wg_rst(float (&d)[64], u32 a0, u32 a1, u32 a2, u32 a3, u64 b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" WG_64 "}, {%64,%65,%66,%67}, %68, 1, 1, 1, 1;"
               : WG_D16(0), WG_D16(16), WG_D16(32), WG_D16(48) : WG_INT);
}
DEV void wg_rst(float (&d)[128], u32 a0, u32 a1, u32 a2, u32 a3, u64 b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {" WG_128
               "}, {%128,%129,%130,%131}, %132, 1, 1, 1, 1;"
               : WG_D16(0), WG_D16(16), WG_D16(32), WG_D16(48), WG_D16(64), WG_D16(80), WG_D16(96), WG_D16(112)
               : WG_INT);
}
// Registers that a warpgroup gives back or asks for; all its warps do it.
template <int N> DEV void fewer_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N)); }
template <int N> DEV void more_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N)); }
#endif
