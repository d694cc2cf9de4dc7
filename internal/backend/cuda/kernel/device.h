// The GPU's side of common.h: CUDA's keywords (clang is run without any CUDA SDK) and instructions as inline PTX.
// Whatever is added here needs a twin in emulate.h, except what only HOPPER code uses.
#pragma once

#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define DEV static __device__ inline __attribute__((always_inline))
#define OUTLINE static __device__ __attribute__((noinline, unused))
#define DEV_M __device__ inline __attribute__((always_inline))
#define TABLE static __constant__ const
#define TID ((int)__nvvm_read_ptx_sreg_tid_x())
#define BID ((int)__nvvm_read_ptx_sreg_ctaid_x())
#define BIDY ((int)__nvvm_read_ptx_sreg_ctaid_y())
#define BIDZ ((int)__nvvm_read_ptx_sreg_ctaid_z())
#define GDIM ((int)__nvvm_read_ptx_sreg_nctaid_x())
#define GDIMY ((int)__nvvm_read_ptx_sreg_nctaid_y())
#define BDIM ((int)__nvvm_read_ptx_sreg_ntid_x())
#define SYNC() __syncthreads()
#define KERNEL(name, Args, a, threads, blocks) \
  extern "C" __global__ __attribute__((launch_bounds(threads, blocks))) void name(const Args a)

extern __shared__ __attribute__((aligned(128))) u8 smem[];

// ---- shared memory, by 32-bit address
DEV u32 saddr(const void* p) {
  u32 a;
  asm("{ .reg .u64 t; cvta.to.shared.u64 t, %1; cvt.u32.u64 %0, t; }" : "=r"(a) : "l"(p));
  return a;
}
DEV U4 lds128(u32 a) { U4 v; asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(a)); return v; }
DEV U2 lds64(u32 a) { U2 v; asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(a)); return v; }
DEV u32 lds32(u32 a) { u32 v; asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(a)); return v; }
DEV u32 lds16(u32 a) { u16 v; asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(a)); return v; }
DEV float lds_f(u32 a) { float v; asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(a)); return v; }
DEV void sts16(u32 a, u32 v) { asm volatile("st.shared.u16 [%0], %1;" ::"r"(a), "h"((u16)v) : "memory"); }
DEV void sts32(u32 a, u32 v) { asm volatile("st.shared.u32 [%0], %1;" ::"r"(a), "r"(v) : "memory"); }
DEV void sts_f(u32 a, float v) { asm volatile("st.shared.f32 [%0], %1;" ::"r"(a), "f"(v) : "memory"); }
DEV void sts64(u32 a, U2 v) { asm volatile("st.shared.v2.u32 [%0], {%1,%2};" ::"r"(a), "r"(v.x), "r"(v.y) : "memory"); }
DEV void sts128(u32 a, U4 v) { asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(a), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory"); }

// ---- global memory. ldg: data that no running kernel writes.
DEV U4 ldg128(const void* p) { U4 v; asm volatile("ld.global.nc.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p)); return v; }
DEV U2 ldg64(const void* p) { U2 v; asm volatile("ld.global.nc.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p)); return v; }
DEV u32 ldg32(const void* p) { u32 v; asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(v) : "l"(p)); return v; }
DEV u32 ldg16(const void* p) { u16 v; asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(v) : "l"(p)); return v; }
// weights that are read once: they stay out of the L1 cache
DEV U4 ldw128(const void* p) { U4 v; asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p)); return v; }
DEV F4 ldcg128(const void* p) { F4 v; asm volatile("ld.global.cg.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p) : "memory"); return v; }
DEV void stg128(void* p, F4 v) { asm volatile("st.global.v4.f32 [%0], {%1,%2,%3,%4};" ::"l"(p), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory"); }
DEV void fence_gpu() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
DEV u32 atom_inc_gpu(u32* p) { u32 v; asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(v) : "l"(p) : "memory"); return v; }
DEV u32 atom_add_shared(u32 a, u32 n) { u32 v; asm volatile("atom.shared.add.u32 %0, [%1], %2;" : "=r"(v) : "r"(a), "r"(n) : "memory"); return v; }

// ---- bits and halves. A half2 is a u32.
DEV u32 lop_or(u32 a, u32 mask, u32 or_) { u32 d; asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(d) : "r"(a), "r"(mask), "r"(or_)); return d; } // (a & mask) | or_
DEV u32 prmt(u32 a, u32 b, u32 sel) { u32 d; asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(sel)); return d; }
DEV u32 hfma2(u32 a, u32 b, u32 c) { u32 d; asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c)); return d; }
DEV u32 hadd2(u32 a, u32 b) { u32 d; asm("add.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b)); return d; }
DEV u32 hmul2(u32 a, u32 b) { u32 d; asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b)); return d; }
DEV u32 both_lo(u32 a) { u32 d; asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {l, l}; }" : "=r"(d) : "r"(a)); return d; }
DEV u32 both_hi(u32 a) { u32 d; asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {h, h}; }" : "=r"(d) : "r"(a)); return d; }
DEV float h2f(u32 h) { float f; u16 s = (u16)h; asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(s)); return f; }
DEV u32 f2h(float f) { u16 s; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(s) : "f"(f)); return s; }
DEV u32 f2h2(float lo, float hi) { u32 d; asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(hi), "f"(lo)); return d; }
DEV u32 f_bits(float f) { u32 d; asm("mov.b32 %0, %1;" : "=r"(d) : "f"(f)); return d; }
DEV float bits_f(u32 u) { float d; asm("mov.b32 %0, %1;" : "=f"(d) : "r"(u)); return d; }
DEV int popc(u32 v) { int d; asm("popc.b32 %0, %1;" : "=r"(d) : "r"(v)); return d; }
DEV int clz(u32 v) { int d; asm("clz.b32 %0, %1;" : "=r"(d) : "r"(v)); return d; }

// ---- arithmetic that the compiler leaves as it is
DEV float ffma(float a, float b, float c) { float d; asm("fma.rn.f32 %0, %1, %2, %3;" : "=f"(d) : "f"(a), "f"(b), "f"(c)); return d; }
DEV float fmul(float a, float b) { float d; asm("mul.rn.f32 %0, %1, %2;" : "=f"(d) : "f"(a), "f"(b)); return d; }
DEV float fadd(float a, float b) { float d; asm("add.rn.f32 %0, %1, %2;" : "=f"(d) : "f"(a), "f"(b)); return d; }
DEV float fdiv(float a, float b) { float d; asm("div.rn.f32 %0, %1, %2;" : "=f"(d) : "f"(a), "f"(b)); return d; }
DEV float sqrt_(float a) { float d; asm("sqrt.rn.f32 %0, %1;" : "=f"(d) : "f"(a)); return d; }
DEV float fabs_(float a) { float d; asm("abs.f32 %0, %1;" : "=f"(d) : "f"(a)); return d; }
DEV float fmax_(float a, float b) { float d; asm("max.f32 %0, %1, %2;" : "=f"(d) : "f"(a), "f"(b)); return d; } // NaN loses
DEV float fmin_(float a, float b) { float d; asm("min.f32 %0, %1, %2;" : "=f"(d) : "f"(a), "f"(b)); return d; }
DEV float ex2(float a) { float d; asm("ex2.approx.f32 %0, %1;" : "=f"(d) : "f"(a)); return d; }
DEV float ex2z(float a) { float d; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(d) : "f"(a)); return d; } // without subnormal numbers
DEV float lg2(float a) { float d; asm("lg2.approx.f32 %0, %1;" : "=f"(d) : "f"(a)); return d; }
DEV float rcp(float a) { float d; asm("rcp.approx.f32 %0, %1;" : "=f"(d) : "f"(a)); return d; }
DEV float rsqrt_(float a) { float d; asm("rsqrt.approx.f32 %0, %1;" : "=f"(d) : "f"(a)); return d; }
DEV double dfma(double a, double b, double c) { double d; asm("fma.rn.f64 %0, %1, %2, %3;" : "=d"(d) : "d"(a), "d"(b), "d"(c)); return d; }
DEV double drint(double a) { double d; asm("cvt.rni.f64.f64 %0, %1;" : "=d"(d) : "d"(a)); return d; }

// ---- between threads
DEV float shfl_xor(float v, int m) { float d; asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, 0xffffffff;" : "=f"(d) : "f"(v), "r"(m)); return d; }
DEV u32 shfl_xor(u32 v, int m) { u32 d; asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, 0xffffffff;" : "=r"(d) : "r"(v), "r"(m)); return d; }
DEV int shfl_xor(int v, int m) { return (int)shfl_xor((u32)v, m); }
DEV float shfl(float v, int lane) { float d; asm volatile("shfl.sync.idx.b32 %0, %1, %2, 31, 0xffffffff;" : "=f"(d) : "f"(v), "r"(lane)); return d; }
DEV u32 shfl(u32 v, int lane) { u32 d; asm volatile("shfl.sync.idx.b32 %0, %1, %2, 31, 0xffffffff;" : "=r"(d) : "r"(v), "r"(lane)); return d; }
DEV int shfl(int v, int lane) { return (int)shfl((u32)v, lane); }
DEV u32 ballot(bool b) { u32 d; asm volatile("{ .reg .pred p; setp.ne.u32 p, %1, 0; vote.sync.ballot.b32 %0, p, 0xffffffff; }" : "=r"(d) : "r"((u32)b)); return d; }
DEV u32 redux_max(u32 v) { u32 d; asm volatile("redux.sync.max.u32 %0, %1, 0xffffffff;" : "=r"(d) : "r"(v)); return d; }
DEV u32 redux_min(u32 v) { u32 d; asm volatile("redux.sync.min.u32 %0, %1, 0xffffffff;" : "=r"(d) : "r"(v)); return d; }
template <int ID, int N> DEV void bar_named() { asm volatile("bar.sync %0, %1;" ::"n"(ID), "n"(N) : "memory"); }
template <int ID, int N> DEV void bar_named_arrive() { asm volatile("bar.arrive %0, %1;" ::"n"(ID), "n"(N) : "memory"); }
DEV void bar_named(int id, int n) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(n) : "memory"); }
DEV void syncwarp() { asm volatile("bar.warp.sync 0xffffffff;" ::: "memory"); }

// ---- tensor cores. D += A B. A: 16x16 (rows g and g+8 of lane 4g+t), B: 16x8 (column g), D: 16x8.
DEV void mma16816(float* d, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
DEV void mma16816bf(float* d, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
DEV void mma16832s8(int* d, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
// Four (two) 8x8 matrices of halves; lane 8i+j gives the address of row j of matrix i. `t`: transposed.
DEV void ldmatrix4(u32 (&r)[4], u32 a) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(a) : "memory");
}
DEV void ldmatrix4t(u32 (&r)[4], u32 a) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(a) : "memory");
}
DEV void ldmatrix2(u32 (&r)[2], u32 a) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(a) : "memory");
}
DEV void ldmatrix2t(u32 (&r)[2], u32 a) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(a) : "memory");
}

// ---- asynchronous copies. Hopper: one thread starts a copy of any multiple of 16 bytes that
// completes on a barrier. Before Hopper every thread copies 16 (or 4) bytes and waits for its own.
DEV void cp16(u32 dst, const void* src) { asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(dst), "l"(src) : "memory"); }
DEV void cp16z(u32 dst, const void* src, u32 bytes) { asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(bytes) : "memory"); } // the rest is zero
DEV void cp4(u32 dst, const void* src) { asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(dst), "l"(src) : "memory"); }
DEV void cp_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> DEV void cp_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }
#ifdef HOPPER
DEV void bar_init(u32 bar, u32 n) { asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(bar), "r"(n) : "memory"); }
DEV void bar_expect(u32 bar, u32 bytes) { asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory"); }
DEV void bulk(u32 dst, const void* src, u32 bytes, u32 bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(dst), "l"(src), "r"(bytes), "r"(bar) : "memory");
}
DEV u64 evict_first() { u64 p; asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(p)); return p; }
DEV void bulk_hint(u32 dst, const void* src, u32 bytes, u32 bar, u64 pol) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(dst), "l"(src), "r"(bytes), "r"(bar), "l"(pol) : "memory");
}
DEV void bar_wait(u32 bar, u32 parity) {
  u32 ok;
  do {
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }" : "=r"(ok) : "r"(bar), "r"(parity) : "memory");
  } while (!ok);
}
DEV void bar_arrive(u32 bar) { asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(bar) : "memory"); }
DEV void prefetch_l2(const void* p, u32 bytes) { asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes) : "memory"); }
// Clusters: blocks that run side by side and read each other's shared memory.
DEV void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
DEV void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
DEV float cluster_load(u32 a, int block) {
  float v;
  asm volatile("{ .reg .u32 t; mapa.shared::cluster.u32 t, %1, %2; ld.shared::cluster.f32 %0, [t]; }" : "=f"(v) : "r"(a), "r"(block) : "memory");
  return v;
}
DEV void fence_async() { asm volatile("fence.proxy.async.shared::cta; fence.proxy.async.global;" ::: "memory"); }
// Programmatic dependent launch: the next kernel may start; wait until the kernels before are done.
DEV void pdl_launch() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
DEV void pdl_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
#else
DEV void pdl_launch() {}
DEV void pdl_wait() {}
#endif
