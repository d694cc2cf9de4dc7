// AMD's side of common.h, for HIP: the functions of device.h as clang's builtins, without any headers of ROCm.
// Kernels count on 32 lanes; where a wave has 64 it is two of them.
#pragma once

#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define DEV static __device__ inline __attribute__((always_inline))
#define DEV_M __device__ inline __attribute__((always_inline))
#define TABLE static __constant__ const
#define TID ((int)__builtin_amdgcn_workitem_id_x())
#define BID ((int)__builtin_amdgcn_workgroup_id_x())
#define BIDY ((int)__builtin_amdgcn_workgroup_id_y())
#define BIDZ ((int)__builtin_amdgcn_workgroup_id_z())
#define GDIM ((int)(__builtin_amdgcn_grid_size_x() / __builtin_amdgcn_workgroup_size_x()))
#define GDIMY ((int)(__builtin_amdgcn_grid_size_y() / __builtin_amdgcn_workgroup_size_y()))
#define BDIM ((int)__builtin_amdgcn_workgroup_size_x())
#define SYNC() \
  (__builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup"), __builtin_amdgcn_s_barrier(), \
   __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup"))
#define KERNEL(name, Args, a, threads, blocks) \
  extern "C" __global__ __attribute__((launch_bounds(threads))) void name(const Args a)

extern __shared__ __attribute__((aligned(128))) u8 smem[];

// ---- shared memory, by 32-bit address
#define LDS(T, a) (*(__attribute__((address_space(3))) T*)(a))
typedef u32 V4 __attribute__((ext_vector_type(4)));
typedef u32 V2 __attribute__((ext_vector_type(2)));
DEV u32 saddr(const void* p) { return (u32)(__attribute__((address_space(3))) const u8*)p; }
DEV U4 lds128(u32 a) { V4 v = LDS(V4, a); return {v.x, v.y, v.z, v.w}; }
DEV U2 lds64(u32 a) { V2 v = LDS(V2, a); return {v.x, v.y}; }
DEV u32 lds32(u32 a) { return LDS(u32, a); }
DEV u32 lds16(u32 a) { return LDS(u16, a); }
DEV float lds_f(u32 a) { return LDS(float, a); }
DEV void sts16(u32 a, u32 v) { LDS(u16, a) = (u16)v; }
DEV void sts32(u32 a, u32 v) { LDS(u32, a) = v; }
DEV void sts_f(u32 a, float v) { LDS(float, a) = v; }
DEV void sts64(u32 a, U2 v) { LDS(V2, a) = V2{v.x, v.y}; }
DEV void sts128(u32 a, U4 v) { LDS(V4, a) = V4{v.x, v.y, v.z, v.w}; }

// ---- global memory
DEV U4 ldg128(const void* p) { return *(const U4*)p; }
DEV U2 ldg64(const void* p) { return *(const U2*)p; }
DEV u32 ldg32(const void* p) { return *(const u32*)p; }
DEV u32 ldg16(const void* p) { return *(const u16*)p; }
DEV U4 ldw128(const void* p) { return *(const U4*)p; }
DEV u32 atom_add_shared(u32 a, u32 n) { return __atomic_fetch_add((__attribute__((address_space(3))) u32*)a, n,
	__ATOMIC_RELAXED); }

// ---- bits and halves
typedef _Float16 H2 __attribute__((ext_vector_type(2)));
DEV H2 as_h(u32 v) { return __builtin_bit_cast(H2, v); }
DEV u32 of_h(H2 v) { return __builtin_bit_cast(u32, v); }
DEV u32 lop_or(u32 a, u32 mask, u32 or_) { return (a & mask) | or_; }
DEV u32 prmt(u32 a, u32 b, u32 sel) {
  u64 v = (u64)b << 32 | a;
  u32 d = 0;
#pragma unroll
  for (int i = 0; i < 4; i++) d |= (u32)(v >> (8 * (sel >> (4 * i) & 7)) & 255) << (8 * i);
  return d;
}
DEV u32 hfma2(u32 a, u32 b, u32 c) { return of_h(__builtin_elementwise_fma(as_h(a), as_h(b), as_h(c))); }
DEV u32 hadd2(u32 a, u32 b) { return of_h(as_h(a) + as_h(b)); }
DEV u32 hmul2(u32 a, u32 b) { return of_h(as_h(a) * as_h(b)); }
DEV u32 both_lo(u32 a) { return (a & 0xffff) * 0x10001; }
DEV u32 both_hi(u32 a) { return (a >> 16) * 0x10001; }
DEV float h2f(u32 h) { return (float)__builtin_bit_cast(_Float16, (u16)h); }
DEV u32 f2h(float f) { return __builtin_bit_cast(u16, (_Float16)f); }
DEV u32 f2h2(float lo, float hi) { return f2h(lo) | f2h(hi) << 16; }
DEV u32 f_bits(float f) { return __builtin_bit_cast(u32, f); }
DEV float bits_f(u32 u) { return __builtin_bit_cast(float, u); }
DEV int popc(u32 v) { return __builtin_popcount(v); }
DEV int clz(u32 v) { return v ? __builtin_clz(v) : 32; }

// ---- arithmetic; the compiler contracts nothing (-ffp-contract=off)
DEV float ffma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
DEV float fmul(float a, float b) { return a * b; }
DEV float fadd(float a, float b) { return a + b; }
DEV float fdiv(float a, float b) { return a / b; }
DEV float sqrt_(float a) { return __builtin_sqrtf(a); }
DEV float fabs_(float a) { return __builtin_fabsf(a); }
DEV float fmax_(float a, float b) { return __builtin_fmaxf(a, b); }
DEV float fmin_(float a, float b) { return __builtin_fminf(a, b); }
DEV float ex2(float a) { return __builtin_amdgcn_exp2f(a); }
DEV float ex2z(float a) { return ex2(a); }
DEV float lg2(float a) { return __builtin_amdgcn_logf(a); }
DEV float rcp(float a) { return __builtin_amdgcn_rcpf(a); }
DEV float rsqrt_(float a) { return __builtin_amdgcn_rsqf(a); }
DEV double dfma(double a, double b, double c) { return __builtin_fma(a, b, c); }
DEV double drint(double a) { return __builtin_rint(a); }

// ---- between threads
DEV int lane_of_wave() { return (int)__builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0)); }
DEV u32 shfl(u32 v, int lane) { return (u32)__builtin_amdgcn_ds_bpermute(((lane_of_wave() & ~31) | (lane & 31)) * 4,
	(int)v); }
DEV int shfl(int v, int lane) { return (int)shfl((u32)v, lane); }
DEV float shfl(float v, int lane) { return bits_f(shfl(f_bits(v), lane)); }
DEV u32 shfl_xor(u32 v, int m) { return shfl(v, lane_of_wave() ^ m); }
DEV int shfl_xor(int v, int m) { return (int)shfl_xor((u32)v, m); }
DEV float shfl_xor(float v, int m) { return bits_f(shfl_xor(f_bits(v), m)); }
DEV u32 ballot(bool b) {
#if __AMDGCN_WAVEFRONT_SIZE__ == 64
  return (u32)(__builtin_amdgcn_ballot_w64(b) >> (lane_of_wave() & 32));
#else
  return __builtin_amdgcn_ballot_w32(b);
#endif
}
DEV u32 atom_inc_gpu(u32* p) { return __hip_atomic_fetch_add(p, 1u, __ATOMIC_ACQ_REL, __HIP_MEMORY_SCOPE_AGENT); }
DEV u32 redux_max(u32 v) {
  for (int i = 16; i; i >>= 1) { u32 o = shfl_xor(v, i); v = o > v ? o : v; }
  return v;
}
DEV u32 redux_min(u32 v) {
  for (int i = 16; i; i >>= 1) { u32 o = shfl_xor(v, i); v = o < v ? o : v; }
  return v;
}
DEV void syncwarp() { __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront"); __builtin_amdgcn_wave_barrier(); }

// ---- copies to shared memory, at once
DEV void cp16(u32 dst, const void* src) { sts128(dst, *(const U4*)src); }
DEV void cp4(u32 dst, const void* src) { sts32(dst, *(const u32*)src); }
DEV void cp_commit() {}
template <int N> DEV void cp_wait() {}
DEV void pdl_launch() {}
DEV void pdl_wait() {}

// Tensor cores of NVIDIA: only named by what is not compiled here.
__device__ void mma16816(float* d, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1);
