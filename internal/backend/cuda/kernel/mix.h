// The weighted sum of a row's experts, in the order in which it chose them.
#pragma once
#include "pack.h"

struct Mix {
  In y;                         // row r*used+j is the output of expert j of row r
  const float *weights, *scale; // [row][ws]; of every expert, or none
  const int* ids;
  int used, ws;
};
// Eight columns of it from `at` on. Outputs of four experts are loaded before the first is added, so that their
// latencies overlap.
DEV void mix8(float (&t)[8], const Mix& m, int row, int at, int cols) {
  clear<8>(t);
  auto weight = [&](int j) __attribute__((always_inline)) {
    float f = m.weights[(u64)row * m.ws + j];
    return m.scale ? fmul(f, m.scale[m.ids[row * m.used + j]]) : f;
  };
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
  for (int j = 0; j < m.used; j += 4) {
    float v[4][8], f[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      int n = j + i < m.used ? j + i : j;
      f[i] = j + i < m.used ? weight(n) : 0.f;
      load8(v[i], y + (u64)n * step);
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
      if (j + i < m.used)
#pragma unroll
        for (int k = 0; k < 8; k++) t[k] = ffma(f[i], v[i][k], t[k]);
  }
}
