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

// Stores results `row` and row+1 of a token. Scale, bias, activation and sum round one by one, as kernels of their own
// would.
DEV void store_results(const HalfArgs& p, int tok, int row, float a, float b) {
  if (tok >= p.n || row >= p.rows) return;
  float v[2] = {fmul(a, p.all), fmul(b, p.all)};
  int n = row + 1 < p.rows ? 2 : 1;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    if (i == n) break;
    if (p.bias) v[i] = fadd(v[i], p.bias[row + i]);
    if (p.gelu) v[i] = gelu(v[i]);
  }
  float *y = p.y + (u64)tok * p.ys + row, *z = p.z + (u64)tok * p.zs + row;
  u16* h = p.h + (u64)tok * p.rows + row;
  if (p.pairs) {
    if (p.y) *(U2*)y = {f_bits(v[0]), f_bits(v[1])};
    if (p.z) {
      U2 s = *(const U2*)z;
      *(U2*)z = {f_bits(fadd(bits_f(s.x), v[0])), f_bits(fadd(bits_f(s.y), v[1]))};
    }
    if (p.h) *(u32*)h = f2h2(in_half(v[0]), in_half(v[1]));
    return;
  }
#pragma unroll
  for (int i = 0; i < 2; i++) {
    if (i == n) break;
    if (p.y) y[i] = v[i];
    if (p.z) z[i] = fadd(z[i], v[i]);
    if (p.h) h[i] = (u16)f2h(in_half(v[i]));
  }
}
