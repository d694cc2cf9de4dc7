// The weighted sum of a row's experts, in the order in which it chose them.
#pragma once
#include "pack.h"

struct Mix {
  In y;                         // row r*used+j is the output of expert j of row r
  const float *weights, *scale; // [row][ws]; of every expert, or none
  const int* ids;
  int used, ws;
};
DEV float mix_weight(const Mix& m, int row, int j) {
  float f = m.weights[(u64)row * m.ws + j];
  return m.scale ? fmul(f, m.scale[m.ids[row * m.used + j]]) : f;
}
// Four columns of it from `at` on, which is a multiple of 4 in rows that are read by fours. Pieces of four experts are
// loaded at a time.
DEV F4 mix4(const Mix& m, int row, int at) {
  F4 t = {0, 0, 0, 0};
  int pieces = in_pieces(m.y, at), step = m.y.groups ? m.y.groups * 256 : m.y.stride;
  const float* y = in_addr(m.y, row * m.used, at);
  u64 next = in_step(m.y);
#pragma unroll 1
  for (int j = 0; j < m.used; j += 4) {
    F4 v[4], w[4];
    float f[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
      if (j + i < m.used) {
        f[i] = mix_weight(m, row, j + i);
        v[i] = *(const F4*)(y + (u64)(j + i) * step);
      }
#pragma unroll 1
    for (int k = 1; k < pieces; k++) {
#pragma unroll
      for (int i = 0; i < 4; i++)
        if (j + i < m.used) w[i] = *(const F4*)(y + (u64)(j + i) * step + k * next);
#pragma unroll
      for (int i = 0; i < 4; i++)
        if (j + i < m.used) v[i] = add4(v[i], w[i]);
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
      if (j + i < m.used) {
        t.x = ffma(f[i], v[i].x, t.x); t.y = ffma(f[i], v[i].y, t.y);
        t.z = ffma(f[i], v[i].z, t.z); t.w = ffma(f[i], v[i].w, t.w);
      }
  }
  return t;
}
// Eight columns of it from `at` on. Outputs of eight experts are loaded before the first is added, so that their
// latencies overlap.
DEV void mix8(float (&t)[8], const Mix& m, int row, int at, int cols) {
  clear<8>(t);
  auto weight = [&](int j) __attribute__((always_inline)) { return mix_weight(m, row, j); };
  if (at >= cols) return;
  if (cols % 8 || !in_aligned(m.y, 8) || in_pieces(m.y, at) > 1) {
#pragma unroll 1
    for (int j = 0; j < m.used; j++) {
      float v[8], f = weight(j);
      take8(v, m.y, row * m.used + j, at, cols);
#pragma unroll
      for (int k = 0; k < 8; k++) t[k] = ffma(f, v[k], t[k]);
    }
    return;
  }
  const float* y = in_addr(m.y, row * m.used, at);
  int step = m.y.groups ? m.y.groups * 256 : m.y.stride;
#pragma unroll 1
  for (int j = 0; j < m.used; j += 8) {
    float v[8][8], f[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
      int n = j + i < m.used ? j + i : j;
      f[i] = j + i < m.used ? weight(n) : 0.f;
      load8(v[i], y + (u64)n * step);
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
      if (j + i < m.used)
#pragma unroll
        for (int k = 0; k < 8; k++) t[k] = ffma(f[i], v[i][k], t[k]);
  }
}
