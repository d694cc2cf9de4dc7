// What follows a part of a layer whose output is normalised before it is added to the residual stream (Gemma): norms,
// sums, scale and the packing for the products that come next, in one launch, a block for each row. A thread has four
// columns of a row, and most of what it reads is on its way at once. Sums are those of small_norm_long and of add_pack:
// what they add goes through shared memory.
// also for sm_90
#include "mix.h"

struct PostArgs {
  Act act, act2;                // get the normalised sum, with weights w and w2; may have no address
  In x, y, z;                   // y: the output; z: what is added to its norm and normalised with it, or missing
  const float *weights, *scale; // experts: y has used rows for each, which are added with these first
  const int* ids;
  const float *wy, *wz, *wv;    // norms of y; of z, or none; of their sum
  float* dst;                   // (x + that) * factor
  const float *w, *w2;
  float *sumsq, *sumsq2;        // of dst
  int rows, cols, used, ws, dst_stride; // cols: a multiple of 8; all rows are read by fours
  float factor, eps;
  int pad;
};
DEV F4 times(const F4& v, float f, const F4& w) {
  return {fmul(fmul(v.x, f), w.x), fmul(fmul(v.y, f), w.y), fmul(fmul(v.z, f), w.z), fmul(fmul(v.w, f), w.w)};
}
// The sum of pieces, in order, as sum4. The first ones may be on their way before it is asked for.
struct Pieces {
  const float* p;
  u64 step;
  int n;
  DEV_M Pieces(const In& s, int row, int c) : p(in_addr(s, row, c)), step(in_step(s)), n(in_pieces(s, c)) {}
  DEV_M F4 at(int k) const { return *(const F4*)(p + k * step); }
  template <int N> DEV_M void begin(F4 (&v)[N]) const {
#pragma unroll
    for (int k = 0; k < N; k++)
      if (k < n) v[k] = at(k);
  }
  template <int N> DEV_M F4 sum(const F4 (&first)[N]) const {
    F4 v = first[0];
#pragma unroll
    for (int k = 1; k < N; k++)
      if (k < n) v = add4(v, first[k]);
#pragma unroll 1
    for (int k = N; k < n; k++) v = add4(v, at(k));
    return v;
  }
};
// mix4 by whole warps, of which some threads may have no columns (!in): a lane has the weight of one expert.
DEV F4 mix_all(const Mix& m, int row, const Pieces& of, int lane, bool in) {
  F4 t = {0, 0, 0, 0};
  int step = m.y.groups ? m.y.groups * 256 : m.y.stride;
#pragma unroll 1
  for (int j = 0; j < m.used; j += 8) {
    F4 v[8];
    int left = m.used - j < 8 ? m.used - j : 8;
    float own = lane < left ? mix_weight(m, row, j + lane) : 0;
#pragma unroll
    for (int i = 0; i < 8; i++)
      if (in && i < left) v[i] = *(const F4*)(of.p + (u64)(j + i) * step);
#pragma unroll 1
    for (int k = 1; k < of.n; k++)
#pragma unroll
      for (int i = 0; i < 8; i++)
        if (in && i < left) v[i] = add4(v[i], *(const F4*)(of.p + (u64)(j + i) * step + k * of.step));
#pragma unroll
    for (int i = 0; i < 8; i++) {
      float f = shfl(own, i);
      if (!in || i >= left) continue;
      t.x = ffma(f, v[i].x, t.x); t.y = ffma(f, v[i].y, t.y);
      t.z = ffma(f, v[i].z, t.z); t.w = ffma(f, v[i].w, t.w);
    }
  }
  return t;
}

// Q: quads of a thread.
template <int Q> DEV void post(const PostArgs& p) {
  int lane = TID & 31, warp = TID >> 5, row = BIDY, quads = p.cols / 4, chunks = (p.cols + 255) / 256;
  int jobs = !p.act.p ? 0 : p.act2.p ? 2 * chunks : chunks;
  float* sums = (float*)smem; // [3][8]
  F4 *first = (F4*)(smem + 96), *other = first + quads;
  In y_ = opaque(p.y), z_ = opaque(p.z); // parameters whose address is taken are copied
  auto get = [](const float* w, int q) __attribute__((always_inline)) {
    U4 u = ldg128(w + 4 * q);
    return F4{bits_f(u.x), bits_f(u.y), bits_f(u.z), bits_f(u.w)};
  };
  auto each = [&](auto fn) __attribute__((always_inline)) {
#pragma unroll
    for (int i = 0; i < Q; i++)
      if (TID + BDIM * i < quads) fn(i, TID + BDIM * i);
  };
  // The weights of norms come from memory, and nobody writes them.
  F4 x[Q], y[Q], z[Q], wy[Q], wz[Q], wv[Q], g[2];
  each([&](int i, int q) __attribute__((always_inline)) {
    wy[i] = get(p.wy, q);
    if (p.wz) wz[i] = get(p.wz, q);
    if (p.wv) wv[i] = get(p.wv, q);
  });
  auto ask = [&](int job) __attribute__((always_inline)) {
    int c = (job >= chunks ? job - chunks : job) * 256 + lane * 8;
    const float* w = (const float*)(job >= chunks ? opaque(p.w2) : opaque(p.w));
    if (job < jobs && w && c < p.cols) {
      g[0] = get(w, c / 4);
      g[1] = get(w, c / 4 + 1);
    }
  };
  ask(warp);
  pdl_launch();
  pdl_wait();
#pragma unroll
  for (int i = 0; i < Q; i++) {
    int q = TID + BDIM * i, c = q < quads ? 4 * q : 0;
    bool in = q < quads;
    Pieces of(y_, p.used ? row * p.used : row, c), also(z_, row, c);
    F4 parts[8], more[3];
    if (in) {
      x[i] = *(const F4*)in_addr(p.x, row, c);
      if (z_.p) also.begin(more);
      if (!p.used) of.begin(parts);
    }
    if (p.used) y[i] = mix_all({y_, p.weights, p.scale, p.ids, p.used, p.ws}, row, of, lane, in);
    else if (in) y[i] = of.sum(parts);
    if (in) first[q] = y[i];
    if (in && z_.p) {
      z[i] = also.sum(more);
      if (p.wz) other[q] = z[i];
    }
  }
  // 256 threads, which of them does not matter, add the squares of every 256th quad.
  auto square = [&](const F4* v, int at) __attribute__((always_inline)) {
    float s = 0;
#pragma unroll 1
    for (int q = TID & 255; q < quads; q += 256) {
      F4 a = v[q];
      s = ffma(a.w, a.w, ffma(a.z, a.z, ffma(a.y, a.y, ffma(a.x, a.x, s))));
    }
    s = warp_sum(s);
    if (lane == 0) sums[at + (warp & 7)] = s;
  };
  auto factor = [&](int at) __attribute__((always_inline)) {
    float s = sums[at];
#pragma unroll
    for (int i = 1; i < 8; i++) s = fadd(s, sums[at + i]);
    return fdiv(1.f, sqrt_(fadd(fdiv(s, (float)p.cols), p.eps)));
  };
  SYNC();
  if (TID < 256) square(first, 0);
  if (p.wz && TID >> 8 == (BDIM >= 512)) square(other, 8);
  SYNC();
  float f = factor(0), h = p.wz ? factor(8) : 0;
  each([&](int i, int q) __attribute__((always_inline)) {
    y[i] = times(y[i], f, wy[i]);
    if (!z_.p) return;
    if (p.wz) z[i] = times(z[i], h, wz[i]);
    first[q] = y[i] = add4(z[i], y[i]);
  });
  if (z_.p) {
    SYNC();
    if (TID < 256) square(first, 16);
    SYNC();
    f = factor(16);
    each([&](int i, int) __attribute__((always_inline)) { y[i] = times(y[i], f, wv[i]); });
  }
  each([&](int i, int q) __attribute__((always_inline)) {
    F4 v = add4(x[i], y[i]);
    v = {fmul(v.x, p.factor), fmul(v.y, p.factor), fmul(v.z, p.factor), fmul(v.w, p.factor)};
    *(F4*)(p.dst + (u64)row * p.dst_stride + 4 * q) = v;
    first[q] = v;
  });
  if (!jobs) return;
  SYNC();
#pragma unroll 1
  for (int job = warp; job < jobs; job += BDIM >> 5) {
    bool second = job >= chunks;
    int kb = second ? job - chunks : job, c = kb * 256 + lane * 8;
    const float* w = (const float*)(second ? opaque(p.w2) : opaque(p.w));
    float* to = (float*)(second ? opaque(p.sumsq2) : opaque(p.sumsq));
    int nt = second ? opaque(p.act2.nt) : opaque(p.act.nt);
    Act act = {(u8*)(second ? opaque(p.act2.p) : opaque(p.act.p)), p.act.kb, nt};
    float v[8], s = 0;
    clear<8>(v);
    if (c < p.cols) load8(v, (const float*)first + c);
#pragma unroll
    for (int i = 0; i < 8; i++) s = ffma(v[i], v[i], s);
    s = warp_sum(s);
    if (lane == 0) to[(u64)row * p.act.kb + kb] = s;
    if (w && c < p.cols) {
      if (job != warp) ask(job);
      v[0] = fmul(v[0], g[0].x); v[1] = fmul(v[1], g[0].y); v[2] = fmul(v[2], g[0].z); v[3] = fmul(v[3], g[0].w);
      v[4] = fmul(v[4], g[1].x); v[5] = fmul(v[5], g[1].y); v[6] = fmul(v[6], g[1].z); v[7] = fmul(v[7], g[1].w);
    }
    pack_row(act, kb, row, v, lane);
  }
}
KERNEL(post_pack, PostArgs, p, 768, 1) {
  if (BDIM * 4 >= p.cols) post<1>(p);
  else post<2>(p);
}
