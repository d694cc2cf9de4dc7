// Adding the splits of attention (see attention.h): always the same operations in the same order, whoever does it.
#pragma once
#include "kv.h"

#define NOTHING -1e30f // the maximum of nothing

// What the unnormalised output is multiplied with in the end.
DEV float last_factor(float m, float l, const float* sinks, int head) {
  if (!sinks) return l > 0.f ? rcp(l) : 0.f;
  float s = fmul(sinks[head], LOG2E), n = fmax_(m, s), f = ex2(fadd(m, -n));
  return fmul(f, rcp(ffma(l, f, ex2(fadd(s, -n)))));
}
// One more split: (m, l) takes in (sm, sl). Outputs become o*f + so*g.
DEV void take_in(float& m, float& l, float sm, float sl, float& f, float& g) {
  float n = fmax_(m, sm);
  f = ex2(fadd(m, -n));
  g = ex2(fadd(sm, -n));
  l = ffma(l, f, fmul(sl, g));
  m = n;
}

// Partial results: [partial result][heads][dim], and the maximum and the sum of each [partial result][heads][2].
struct Splits {
  const float *part, *ml;
  const float* sinks; // [heads] or null
  const Seen* seen;   // [row]
  int heads, dim;
};
// N values of a head of a row that has partial results, from dimension d on.
template <int N> DEV void add_splits(float (&o)[N], const Splits& a, const Seen& r, int head, int d) {
  const int U = 17; // loads in flight: half of the splits that most devices make
  float m = NOTHING, l = 0;
  const float *part = a.part + ((u64)r.part * a.heads + head) * a.dim + d, *ml = a.ml + ((u64)r.part * a.heads + head) * 2;
  int step = a.heads * a.dim;
#pragma unroll 1
  for (int s0 = 0; s0 < r.splits; s0 += U) {
    float x[U][N];
    U2 w[U];
#pragma unroll
    for (int i = 0; i < U; i++)
      if (s0 + i < r.splits) {
        w[i] = *(const U2*)(ml + (s0 + i) * 2 * a.heads);
        const float* p = part + (u64)(s0 + i) * step;
        if (N == 4) {
          F4 v = *(const F4*)p;
          x[i][0] = v.x, x[i][1 % N] = v.y, x[i][2 % N] = v.z, x[i][3 % N] = v.w;
        } else x[i][0] = *p;
      }
#pragma unroll
    for (int i = 0; i < U; i++)
      if (s0 + i < r.splits) {
        float sm = bits_f(w[i].x), sl = bits_f(w[i].y), f, g;
        if (s0 + i == 0) {
          m = sm, l = sl;
#pragma unroll
          for (int k = 0; k < N; k++) o[k] = x[i][k];
          continue;
        }
        take_in(m, l, sm, sl, f, g);
#pragma unroll
        for (int k = 0; k < N; k++) o[k] = ffma(o[k], f, fmul(x[i][k], g));
      }
  }
  float k = last_factor(m, l, a.sinks, head);
#pragma unroll
  for (int i = 0; i < N; i++) o[i] = fmul(o[i], k);
}
