// Products of halves by tensor cores, y = W x: what the kernels for all devices (halves.cu) and for Hopper (wide.cu)
// share. Columns are summed in order, sixteen at a time, so a token has the same bits in any batch.
#pragma once
#include "common.h"

struct HalfArgs {
  float* y;          // results [n][ys], or none,
  float* z;          // rows that they are added to [n][zs], or none,
  u16* h;            // and results as halves [n][rows], or none
  const u16 *w, *x;  // [rows][cols], [n][cols]
  const float* bias; // [rows], or none
  int n, rows, cols; // cols is a multiple of 8
  int ys, zs;
  int gelu;          // results go through GELU
  int pairs;         // two results side by side can be stored at once
  float all;         // scale of everything
};

// Large values stay finite; NaN stays NaN.
DEV float in_half(float v) { return v > 65504.f ? 65504.f : v < -65504.f ? -65504.f : v; }

// Stores results of a token: value(j, e) is that of row 8j+e, for e 0 and 1. Scale, bias, GELU and sum round one by one,
// as kernels of their own would. Everything is loaded before anything is stored, so that loads overlap.
template <int N, class F> DEV void store_results(const HalfArgs& p, int tok, int row, F value) {
  if (tok >= p.n || row >= p.rows) return;
  float *y = p.y + (u64)tok * p.ys + row, *z = p.z + (u64)tok * p.zs + row, v[N][2], b[N][2];
  const float* bias = p.bias + row;
  u16* h = p.h + (u64)tok * p.rows + row;
  int rows = p.rows - row; // that are left
  auto each = [&](auto f) __attribute__((always_inline)) {
#pragma unroll
    for (int j = 0; j < N; j++)
#pragma unroll
      for (int e = 0; e < 2; e++) f(j, e);
  };
  auto pairs = [&](auto f) __attribute__((always_inline)) {
#pragma unroll
    for (int j = 0; j < N; j++)
      if (8 * j < rows) f(j);
  };
  auto load = [&](const float* from) __attribute__((always_inline)) {
    if (p.pairs) pairs([&](int j) __attribute__((always_inline)) {
      U2 x = *(const U2*)(from + 8 * j);
      b[j][0] = bits_f(x.x), b[j][1] = bits_f(x.y);
    });
    else each([&](int j, int e) __attribute__((always_inline)) { b[j][e] = 8 * j + e < rows ? from[8 * j + e] : 0.f; });
  };
  auto store = [&](float* to, const float (&x)[N][2]) __attribute__((always_inline)) {
    if (p.pairs) pairs([&](int j) __attribute__((always_inline)) { *(U2*)(to + 8 * j) = {f_bits(x[j][0]), f_bits(x[j][1])}; });
    else each([&](int j, int e) __attribute__((always_inline)) { if (8 * j + e < rows) to[8 * j + e] = x[j][e]; });
  };
  each([&](int j, int e) __attribute__((always_inline)) { b[j][e] = 0, v[j][e] = fmul(value(j, e), p.all); });
  if (p.bias) {
    load(bias);
    each([&](int j, int e) __attribute__((always_inline)) { v[j][e] = fadd(v[j][e], b[j][e]); });
  }
  if (p.gelu) each([&](int j, int e) __attribute__((always_inline)) { v[j][e] = gelu(v[j][e]); });
  if (p.y) store(y, v);
  if (p.z) {
    load(z);
    each([&](int j, int e) __attribute__((always_inline)) { b[j][e] = fadd(b[j][e], v[j][e]); });
    store(z, b);
  }
  if (!p.h) return;
  if (p.pairs) pairs([&](int j) __attribute__((always_inline)) { *(u32*)(h + 8 * j) = f2h2(in_half(v[j][0]), in_half(v[j][1])); });
  else each([&](int j, int e) __attribute__((always_inline)) { if (8 * j + e < rows) h[8 * j + e] = (u16)f2h(in_half(v[j][e])); });
}
