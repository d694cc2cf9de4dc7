// The processor's side of common.h: the same functions as device.h. A block's threads are fibers of one system thread;
// they switch only where threads wait for each other (emulate.cc). The device is like compute capability 8.0: no HOPPER
// code.
//
// Stricter than a GPU, so that mistakes show: shared memory begins as NaN, asynchronous copies happen when they are
// waited for and not before, all lanes of a warp must meet at the same instruction, and a thread that ended never
// arrives anywhere.
#pragma once
#include <math.h>
#include <stddef.h>
#include <string.h>

#define DEV static inline __attribute__((always_inline, unused))
#define OUTLINE static __attribute__((noinline, unused))
#define DEV_M inline __attribute__((always_inline))
#define TABLE static const
#define TID (emu_at.tid)
#define BID (emu_at.block[0])
#define BIDY (emu_at.block[1])
#define BIDZ (emu_at.block[2])
#define GDIM (emu_at.grid[0])
#define GDIMY (emu_at.grid[1])
#define BDIM (emu_at.threads)
#define SYNC() emu_barrier(0, BDIM, true)
#define smem (emu_at.shared)
// A kernel is called with its arguments and the launch; NAME_args is their size.
#define KERNEL(name, Args, a, threads, blocks)                                                         \
  static void name##_body(const Args& a);                                                              \
  static void name##_call(const void* p) { name##_body(*(const Args*)p); }                             \
  extern "C" __attribute__((visibility("default"))) const int name##_args = sizeof(Args);              \
  extern "C" __attribute__((visibility("default"))) int name(const void* p, const EmuLaunch* l) {      \
    return emu_launch(#name, name##_call, p, l, threads);                                              \
  }                                                                                                    \
  static void name##_body(const Args& a)

struct EmuLaunch { int grid[3], threads, shared, reverse, early; };
struct EmuPlace {
  int tid, threads, block[3], grid[3];
  u8* shared;
  int bytes; // of shared memory
};
struct EmuSlot { // what a lane brings to, and takes from, an instruction of the whole warp
  alignas(8) u32 v[8];
};
extern EmuPlace emu_at; // the running thread
int emu_launch(const char* name, void (*body)(const void*), const void* args, const EmuLaunch* l, int most);
void emu_barrier(int id, int n, bool wait);
// All lanes of the warp bring `in` to instruction `op`; the last one calls done; each gets the slots of all.
EmuSlot* emu_meet(const char* op, const u32* in, int words, void (*done)(EmuSlot*));
void emu_copy(u32 dst, const void* src, int bytes, int width);
void emu_copy_commit();
void emu_copy_wait(int left);
u32 emu_atomic(u32* p, u32 n, bool gpu);
// What only the race detector needs to know (races.h): that a warp's accesses are ordered, fences of the asynchronous
// proxy, warpgroup products that read shared memory, and where launches overlap.
void emu_warp_order(EmuSlot*);
void emu_fence_async();
void emu_wgmma(bool on);
void emu_wgmma_commit();
void emu_wgmma_wait(int left);
void emu_pdl_launch();
void emu_pdl_wait();
[[noreturn]] void emu_fail(const char* format, ...) __attribute__((format(printf, 1, 2)));
void emu_mma_f16(EmuSlot*);
void emu_mma_bf16(EmuSlot*);
void emu_mma_s8(EmuSlot*);

#define EMU_SHARED_BASE 1024 // shared addresses begin here, so that 0 is none
DEV u8* emu_shared(u32 a, u32 bytes) {
  u32 off = a - EMU_SHARED_BASE;
  if (off > (u32)emu_at.bytes || bytes > (u32)emu_at.bytes - off || a % bytes)
    emu_fail("%u bytes of shared memory at offset %d of %d", bytes, (int)off, emu_at.bytes);
  return emu_at.shared + off;
}
template <class T> DEV T emu_load(const void* p) { T v; memcpy(&v, p, sizeof v); return v; }
template <class T> DEV T emu_global(const void* p) {
  if ((u64)p % sizeof(T)) emu_fail("%d bytes of global memory at the odd address %p", (int)sizeof(T), p);
  return emu_load<T>(p);
}

DEV u32 saddr(const void* p) { return (u32)((const u8*)p - smem) + EMU_SHARED_BASE; }
DEV U4 lds128(u32 a) { return emu_load<U4>(emu_shared(a, 16)); }
DEV U2 lds64(u32 a) { return emu_load<U2>(emu_shared(a, 8)); }
DEV u32 lds32(u32 a) { return emu_load<u32>(emu_shared(a, 4)); }
DEV u32 lds16(u32 a) { return emu_load<u16>(emu_shared(a, 2)); }
DEV float lds_f(u32 a) { return emu_load<float>(emu_shared(a, 4)); }
DEV void sts16(u32 a, u32 v) { *(u16*)emu_shared(a, 2) = (u16)v; }
DEV void sts32(u32 a, u32 v) { *(u32*)emu_shared(a, 4) = v; }
DEV void sts_f(u32 a, float v) { *(float*)emu_shared(a, 4) = v; }
DEV void sts64(u32 a, U2 v) { *(U2*)emu_shared(a, 8) = v; }
DEV void sts128(u32 a, U4 v) { *(U4*)emu_shared(a, 16) = v; }

DEV U4 ldg128(const void* p) { return emu_global<U4>(p); }
DEV U2 ldg64(const void* p) { return emu_global<U2>(p); }
DEV u32 ldg32(const void* p) { return emu_global<u32>(p); }
DEV u32 ldg16(const void* p) { return emu_global<u16>(p); }
DEV U4 ldw128(const void* p) { return emu_global<U4>(p); }
DEV F4 ldcg128(const void* p) { return emu_global<F4>(p); }
DEV void stg128(void* p, F4 v) {
  if ((u64)p % 16) emu_fail("16 bytes of global memory at the odd address %p", p);
  *(F4*)p = v;
}
DEV void fence_gpu() {}
DEV u32 atom_inc_gpu(u32* p) { return emu_atomic(p, 1, true); }
DEV u32 atom_add_shared(u32 a, u32 n) { return emu_atomic((u32*)emu_shared(a, 4), n, false); }

DEV u32 f_bits(float f) { return emu_load<u32>(&f); }
DEV float bits_f(u32 u) { return emu_load<float>(&u); }
DEV int popc(u32 v) { return __builtin_popcount(v); }
DEV int clz(u32 v) { return v ? __builtin_clz(v) : 32; }
DEV float h2f(u32 h) { u16 s = (u16)h; return (float)emu_load<_Float16>(&s); }
DEV u32 f2h(float f) { _Float16 h = (_Float16)f; return emu_load<u16>(&h); }
DEV u32 f2h2(float lo, float hi) { return f2h(lo) | f2h(hi) << 16; }
// Rounds a double to the nearest half, ties to even.
DEV u32 emu_half(double x) {
  u32 sign = signbit(x) ? 0x8000 : 0;
  x = fabs(x);
  if (x != x) return 0x7fff;
  if (x >= 65520) return sign | 0x7c00;
  if (x < 0x1p-14) return sign | (u32)rint(x * 0x1p24);
  int e;
  frexp(x, &e); // x in [2^(e-1), 2^e)
  return sign | ((u32)(e + 13) << 10) + (u32)rint(ldexp(x, 11 - e));
}
DEV u32 hfma1(u32 a, u32 b, u32 c) { return emu_half((double)h2f(a) * h2f(b) + h2f(c)); }
DEV u32 hfma2(u32 a, u32 b, u32 c) { return hfma1(a, b, c) | hfma1(a >> 16, b >> 16, c >> 16) << 16; }
DEV u32 hadd2(u32 a, u32 b) { return emu_half((double)h2f(a) + h2f(b)) | emu_half((double)h2f(a >> 16) + h2f(b >> 16)) << 16; }
DEV u32 hmul2(u32 a, u32 b) { return emu_half((double)h2f(a) * h2f(b)) | emu_half((double)h2f(a >> 16) * h2f(b >> 16)) << 16; }
DEV u32 lop_or(u32 a, u32 mask, u32 or_) { return (a & mask) | or_; }
DEV u32 prmt(u32 a, u32 b, u32 sel) {
  u64 v = (u64)b << 32 | a;
  u32 d = 0;
  for (int i = 0; i < 4; i++) {
    u32 s = sel >> (4 * i) & 15, byte = (u32)(v >> (8 * (s & 7))) & 255;
    if (s & 8) byte = byte & 128 ? 255 : 0;
    d |= byte << (8 * i);
  }
  return d;
}
DEV u32 both_lo(u32 a) { return (a & 0xffff) * 0x10001u; }
DEV u32 both_hi(u32 a) { return (a >> 16) * 0x10001u; }

DEV float ffma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
DEV float fmul(float a, float b) { return a * b; }
DEV float fadd(float a, float b) { return a + b; }
DEV float fdiv(float a, float b) { return a / b; }
DEV float sqrt_(float a) { return sqrtf(a); }
DEV float fabs_(float a) { return fabsf(a); }
DEV float fmax_(float a, float b) { return fmaxf(a, b); }
DEV float fmin_(float a, float b) { return fminf(a, b); }
DEV float ex2(float a) { return exp2f(a); }
DEV float ex2z(float a) { return a < -126.f ? 0.f : exp2f(a); }
DEV float lg2(float a) { return log2f(a); }
DEV float rcp(float a) { return 1.f / a; }
DEV float rsqrt_(float a) { return (float)(1. / sqrt((double)a)); }
DEV double dfma(double a, double b, double c) { return __builtin_fma(a, b, c); }
DEV double drint(double a) { return rint(a); }

DEV u32 shfl(u32 v, int lane) { return emu_meet("shfl", &v, 1, nullptr)[lane & 31].v[0]; }
DEV u32 shfl_xor(u32 v, int m) { return emu_meet("shfl_xor", &v, 1, nullptr)[(TID ^ m) & 31].v[0]; }
DEV float shfl(float v, int lane) { return bits_f(shfl(f_bits(v), lane)); }
DEV float shfl_xor(float v, int m) { return bits_f(shfl_xor(f_bits(v), m)); }
DEV int shfl(int v, int lane) { return (int)shfl((u32)v, lane); }
DEV int shfl_xor(int v, int m) { return (int)shfl_xor((u32)v, m); }
DEV u32 ballot(bool b) {
  u32 v = b, d = 0;
  EmuSlot* s = emu_meet("ballot", &v, 1, nullptr);
  for (int i = 0; i < 32; i++) d |= s[i].v[0] << i;
  return d;
}
DEV u32 redux_max(u32 v) {
  EmuSlot* s = emu_meet("redux_max", &v, 1, nullptr);
  for (int i = 0; i < 32; i++) v = s[i].v[0] > v ? s[i].v[0] : v;
  return v;
}
DEV u32 redux_min(u32 v) {
  EmuSlot* s = emu_meet("redux_min", &v, 1, nullptr);
  for (int i = 0; i < 32; i++) v = s[i].v[0] < v ? s[i].v[0] : v;
  return v;
}
template <int ID, int N> DEV void bar_named() { emu_barrier(ID, N, true); }
template <int ID, int N> DEV void bar_named_arrive() { emu_barrier(ID, N, false); }
DEV void bar_named(int id, int n) { emu_barrier(id, n, true); }
DEV void syncwarp() { emu_meet("syncwarp", nullptr, 0, emu_warp_order); }

// The last lane computes the products for all: sums over k in order, in float64; the addition to d rounds once.
DEV EmuSlot* emu_mma(const char* op, void (*done)(EmuSlot*), u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  u32 in[6] = {a0, a1, a2, a3, b0, b1};
  return emu_meet(op, in, 6, done) + (TID & 31);
}
DEV void emu_add(float* d, EmuSlot* s) {
  for (int i = 0; i < 4; i++) d[i] = (float)(emu_load<double>(&s->v[2 * i]) + (double)d[i]);
}
DEV void mma16816(float* d, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  emu_add(d, emu_mma("mma f16", emu_mma_f16, a0, a1, a2, a3, b0, b1));
}
DEV void mma16816bf(float* d, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  emu_add(d, emu_mma("mma bf16", emu_mma_bf16, a0, a1, a2, a3, b0, b1));
}
DEV void mma16832s8(int* d, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  EmuSlot* s = emu_mma("mma s8", emu_mma_s8, a0, a1, a2, a3, b0, b1);
  for (int i = 0; i < 4; i++) d[i] += (int)s->v[i];
}

template <int N> DEV void emu_ldmatrix(const char* op, u32 (&r)[N], u32 a, bool transposed) {
  EmuSlot* s = emu_meet(op, &a, 1, nullptr);
  int g = (TID & 31) >> 2, t = TID & 3;
  for (int i = 0; i < N; i++) {
    if (transposed) r[i] = lds16(s[8 * i + 2 * t].v[0] + 2 * g) | lds16(s[8 * i + 2 * t + 1].v[0] + 2 * g) << 16;
    else r[i] = lds32(s[8 * i + g].v[0] + 4 * t);
  }
  // What is read here may be overwritten after the instruction, by any lane.
  emu_meet("ldmatrix read", nullptr, 0, nullptr);
}
DEV void ldmatrix4(u32 (&r)[4], u32 a) { emu_ldmatrix<4>("ldmatrix4", r, a, false); }
DEV void ldmatrix4t(u32 (&r)[4], u32 a) { emu_ldmatrix<4>("ldmatrix4t", r, a, true); }
DEV void ldmatrix2(u32 (&r)[2], u32 a) { emu_ldmatrix<2>("ldmatrix2", r, a, false); }
DEV void ldmatrix2t(u32 (&r)[2], u32 a) { emu_ldmatrix<2>("ldmatrix2t", r, a, true); }

DEV void cp16(u32 dst, const void* src) { emu_copy(dst, src, 16, 16); }
DEV void cp16z(u32 dst, const void* src, u32 bytes) { emu_copy(dst, src, (int)bytes, 16); }
DEV void cp4(u32 dst, const void* src) { emu_copy(dst, src, 4, 4); }
DEV void cp_commit() { emu_copy_commit(); }
template <int N> DEV void cp_wait() { emu_copy_wait(N); }
DEV void pdl_launch() { emu_pdl_launch(); }
DEV void pdl_wait() { emu_pdl_wait(); }

// What kernels of compute capability 9.0 use, except warpgroup products: copies that complete on barriers in shared memory.
void emu_bar_init(u32 bar, u32 n);
void emu_bar_arrive(u32 bar, u32 bytes);
void emu_bar_wait(u32 bar, u32 parity);
void emu_bulk(u32 dst, const void* src, u32 bytes, u32 bar);
DEV void bar_init(u32 bar, u32 n) { emu_bar_init(bar, n); }
DEV void bar_expect(u32 bar, u32 bytes) { emu_bar_arrive(bar, bytes); }
DEV void bar_arrive(u32 bar) { emu_bar_arrive(bar, 0); }
DEV void bar_wait(u32 bar, u32 parity) { emu_bar_wait(bar, parity); }
DEV void bulk(u32 dst, const void* src, u32 bytes, u32 bar) { emu_bulk(dst, src, bytes, bar); }
DEV u64 evict_first() { return 0; }
DEV void bulk_hint(u32 dst, const void* src, u32 bytes, u32 bar, u64) { emu_bulk(dst, src, bytes, bar); }
DEV void prefetch_l2(const void*, u32) {}
DEV void fence_async() { emu_fence_async(); }
DEV void cluster_arrive() {}
bool emu_last(int blocks); // of a cluster, whose blocks run one after the other; a thread of each asks
