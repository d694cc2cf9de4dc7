// What every kernel shares: how a kernel is declared, plain types, and reading activations. device.h has the
// instructions of the GPU, emulate.h the same functions for the processor (-DEMULATE), so that kernels are tested
// without a GPU.
//
// A kernel has one parameter, a structure: 8-byte addresses first, then 4-byte numbers, so that a plain Go struct has
// the same layout. It is written as
//
//   struct AddArgs { float* dst; const float* a; int n; };
//   KERNEL(add, AddArgs, p, 256, 1) { ... p.dst ... TID, BID ... }
//
// with the threads of a block and the blocks that must fit on a multiprocessor (a bound for registers). Shared memory
// is the array smem, as large as the launch asks for; static __shared__ variables do not exist. Blocks are whole warps.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
struct __attribute__((aligned(16))) U4 { u32 x, y, z, w; };
struct __attribute__((aligned(16))) F4 { float x, y, z, w; };
struct __attribute__((aligned(8))) U2 { u32 x, y; };

#ifdef EMULATE
#include "emulate.h"
#elif defined(__HIP__)
#include "../hip/device.h"
#else
#include "device.h"
#endif

// ---- a product's results: pieces p[piece][token][row] of groups of 256 rows with kb stages each, cut over `grid`
// blocks.

// Which of G blocks has stage t of T (see product.h). 32 bits are enough (T*G < 2^31), and 64-bit division is slow.
DEV int block_of(int t, int T, int G) { return (int)(((u32)(t + 1) * (u32)G - 1) / (u32)T); }
DEV int first_stage(int b, int T, int G) { return (int)((u32)b * (u32)T / (u32)G); }

// In is where a kernel reads rows of activations: plain rows, or the pieces that a product left.
struct In {
  const float* p;
  int stride;              // plain rows: values from one to the next
  int groups, kb, grid, n; // pieces, if groups > 0: how the matrix is cut, and the tokens of the product
  int first;               // pieces: the row of the product that is column 0
};

// How many pieces column c has. All columns of a group of 256 (of the product's rows) have the same number.
DEV int in_pieces(const In& s, int c) {
  if (!s.groups) return 1;
  int T = s.groups * s.kb, first = ((s.first + c) >> 8) * s.kb;
  return block_of(first + s.kb - 1, T, s.grid) - block_of(first, T, s.grid) + 1;
}
// Where column c of a token begins, and how far it is to the next piece.
DEV const float* in_addr(const In& s, int tok, int c) {
  if (!s.groups) return s.p + (u64)tok * s.stride + c;
  return s.p + (u64)tok * (s.groups * 256) + s.first + c;
}
DEV u64 in_step(const In& s) { return (u64)s.n * (s.groups * 256); }

// One value, pieces added in order.
DEV float in1(const In& s, int tok, int c, int pieces) {
  const float* p = in_addr(s, tok, c);
  float v = *p;
  u64 step = in_step(s);
#pragma unroll 1
  for (int k = 1; k < pieces; k++) v = fadd(v, p[k * step]);
  return v;
}
DEV float in1(const In& s, int tok, int c) { return in1(s, tok, c, in_pieces(s, c)); }

DEV void load8(float (&v)[8], const float* p) {
  F4 a = *(const F4*)p, b = *(const F4*)(p + 4);
  v[0] = a.x; v[1] = a.y; v[2] = a.z; v[3] = a.w; v[4] = b.x; v[5] = b.y; v[6] = b.z; v[7] = b.w;
}
DEV void store8(float* p, const float (&v)[8]) {
  F4 a = {v[0], v[1], v[2], v[3]}, b = {v[4], v[5], v[6], v[7]};
  *(F4*)p = a;
  *(F4*)(p + 4) = b;
}
DEV F4 add4(const F4& a, const F4& b) { return {fadd(a.x, b.x), fadd(a.y, b.y), fadd(a.z, b.z), fadd(a.w, b.w)}; }
// The sum of pieces, in order. Several are loaded before the first is added, so that their latencies overlap.
DEV F4 sum4(const float* p, u64 step, int pieces) {
  F4 v = *(const F4*)p, w[4];
#pragma unroll 1
  for (int k = 1; k < pieces; k += 4) {
#pragma unroll
    for (int j = 0; j < 4; j++)
      if (k + j < pieces) w[j] = *(const F4*)(p + (k + j) * step);
#pragma unroll
    for (int j = 0; j < 4; j++)
      if (k + j < pieces) v = add4(v, w[j]);
  }
  return v;
}
// Four or eight consecutive values. Their address must be a multiple of 16 bytes (see in_aligned), and they lie in one
// group.
DEV F4 in4(const In& s, int tok, int c, int pieces) { return sum4(in_addr(s, tok, c), in_step(s), pieces); }
template <int BATCH = 4> DEV void in8(float (&v)[8], const In& s, int tok, int c, int pieces) {
  const float* p = in_addr(s, tok, c);
  load8(v, p);
  u64 step = in_step(s);
#pragma unroll 1
  for (int k = 1; k < pieces; k += BATCH) {
    float w[BATCH][8];
#pragma unroll
    for (int j = 0; j < BATCH; j++)
      if (k + j < pieces) load8(w[j], p + (k + j) * step);
#pragma unroll
    for (int j = 0; j < BATCH; j++)
      if (k + j < pieces)
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = fadd(v[i], w[j][i]);
  }
}
DEV void in8(float (&v)[8], const In& s, int tok, int c) { in8(v, s, tok, c, in_pieces(s, c)); }
// Whether columns that are multiples of `width` (4 or 8) can be read with in4 or in8.
DEV bool in_aligned(const In& s, int width) {
  return ((u64)s.p & 15) == 0 && (s.groups ? s.first % width == 0 : (s.stride & 3) == 0);
}

// ---- functions of one value. Every kernel uses these, so that equal inputs have equal results everywhere.
#define LOG2E 1.44269504f
#define LN2 0.69314718f
DEV float exp_(float x) { return ex2(fmul(x, LOG2E)); }
DEV float sigmoid(float x) { return rcp(fadd(1.f, ex2(fmul(x, -LOG2E)))); }
DEV float silu(float x) { return fmul(x, sigmoid(x)); }
// tanh by the exponential of -2|x|, which cannot overflow; near 0, where 1-e would lose digits, by a quotient of
// polynomials.
DEV float tanh_(float x) {
  float z = fmul(x, x);
  if (z < 0.25f) return fmul(x, fdiv(ffma(z, fadd(z, 105.f), 945.f), ffma(z, ffma(z, 15.f, 420.f), 945.f)));
  float e = ex2(fmul(fabs_(x), -2.f * LOG2E));
  float t = fdiv(fadd(1.f, -e), fadd(1.f, e));
  return x < 0.f ? -t : t;
}
// The form with tanh: (1+tanh(u))/2 is sigmoid(2u), which loses nothing for negative u.
DEV float gelu(float x) {
  float u = fmul(0.7978845608f, ffma(fmul(fmul(0.044715f, x), x), x, x));
  return fmul(x, sigmoid(fadd(u, u)));
}
// The exact form, x times half of erfc(-x/sqrt(2)), which keeps its precision for negative x. erfc(z) is t*exp(p(t)-z*z)
// with t = 1/(1+z/2), within 1.2e-7 of itself (Numerical Recipes, erfcc).
DEV float gelu_erf(float x) {
  float z = fmul(fabs_(x), 0.70710678f), t = rcp(ffma(z, 0.5f, 1.f));
  float p = ffma(t, 0.17087277f, -0.82215223f);
  p = ffma(t, ffma(t, p, 1.48851587f), -1.13520398f);
  p = ffma(t, ffma(t, p, 0.27886807f), -0.18628806f);
  p = ffma(t, ffma(t, p, 0.09678418f), 0.37409196f);
  p = ffma(t, ffma(t, p, 1.00002368f), -1.26551223f);
  float half = fmul(fmul(fmul(0.5f, t), exp_(ffma(z, -z, p))), x);
  return x < 0.f ? half : fadd(x, -half);
}
DEV float quick_gelu(float x) { return fmul(x, sigmoid(fmul(x, 1.702f))); }

// Sums and maxima over a warp, in an order that every lane shares.
DEV float warp_sum(float v) {
#pragma unroll
  for (int i = 16; i; i >>= 1) v = fadd(v, shfl_xor(v, i));
  return v;
}
// The same for 32 values at once, each with the bits that warp_sum gives it: lane l has the sum of the l-th. In every
// step a lane sends half of its values to another one, and gets as many of those that it keeps.
template <int N = 16> DEV float warp_sums(float* v, int lane) {
#pragma unroll
  for (int k = 0; k < N; k++) {
    float low = v[k], high = v[k + N];
    v[k] = fadd(lane & N ? high : low, shfl_xor(lane & N ? low : high, N));
  }
  if constexpr (N > 1) return warp_sums<N / 2>(v, lane);
  return v[0];
}
DEV float warp_max(float v) {
#pragma unroll
  for (int i = 16; i; i >>= 1) v = fmax_(v, shfl_xor(v, i));
  return v;
}
