// What follows a part of a layer whose output is normalised before it is added to the residual stream (Gemma): norms,
// sums, scale and the packing for the products that come next, in one launch. Several blocks add the pieces of a row,
// which is more than one multiprocessor reads in a short time; the last of them does the rest. Sums are those of
// small_norm_long, whose threads have the same columns, and of add_pack.
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
  float* flat;                  // [row][2][cols]: y and z without pieces
  u32* counters;                // of rows, zero between launches: blocks that are done
  int rows, cols, used, ws, dst_stride; // cols: a multiple of 8; all rows are read by fours
  float factor, eps;
  int pad;
};
DEV F4 times(const F4& v, float f, const F4& w) {
  return {fmul(fmul(v.x, f), w.x), fmul(fmul(v.y, f), w.y), fmul(fmul(v.z, f), w.z), fmul(fmul(v.w, f), w.w)};
}
// The sum of pieces, in order, as sum4; most are on their way at once.
DEV F4 sum_many(const In& s, int row, int c) {
  const float* p = in_addr(s, row, c);
  int pieces = in_pieces(s, c);
  u64 step = in_step(s);
  F4 v = *(const F4*)p, w[7];
#pragma unroll 1
  for (int k = 1; k < pieces; k += 7) {
#pragma unroll
    for (int j = 0; j < 7; j++)
      if (k + j < pieces) w[j] = *(const F4*)(p + (k + j) * step);
#pragma unroll
    for (int j = 0; j < 7; j++)
      if (k + j < pieces) v = add4(v, w[j]);
  }
  return v;
}

KERNEL(post_pack, PostArgs, p, 512, 1) {
  const int Q = 6; // quads of a thread of the last block, at most
  int lane = TID & 31, warp = TID >> 5, row = BIDY, quads = p.cols / 4, chunks = (p.cols + 255) / 256;
  int per = (quads + GDIM - 1) / GDIM, first = BID * per, n = quads - first < per ? quads - first : per;
  float *sums = (float*)smem, *flat = p.flat + (u64)row * 2 * p.cols; // sums: [2][8]
  F4* all = (F4*)(smem + 64);
  In x_ = opaque(p.x), y_ = opaque(p.y), z_ = opaque(p.z); // parameters whose address is taken are copied
  auto get = [](const float* w, int q) __attribute__((always_inline)) {
    U4 u = ldg128(w + 4 * q);
    return F4{bits_f(u.x), bits_f(u.y), bits_f(u.z), bits_f(u.w)};
  };
  if (TID < n) { // weights of norms come from memory: they are in the cache when the last block wants them
    get(p.wy, first + TID);
    if (p.wz) get(p.wz, first + TID);
    if (p.wv) get(p.wv, first + TID);
    if (p.w) get(p.w, first + TID);
    if (p.w2) get(p.w2, first + TID);
  }
  pdl_launch();
  pdl_wait();
#pragma unroll 1
  for (int q = TID; q < n; q += BDIM) {
    int c = 4 * (first + q);
    F4 v;
    if (p.used) v = mix4({y_, p.weights, p.scale, p.ids, p.used, p.ws}, row, c);
    else v = sum_many(y_, row, c);
    *(F4*)(flat + c) = v;
  }
  if (z_.p)
#pragma unroll 1
    for (int q = BDIM - 1 - TID; q < n; q += BDIM) { // from the other end: by other warps
      int c = 4 * (first + q);
      *(F4*)(flat + p.cols + c) = sum_many(z_, row, c);
    }
  SYNC();
  if (GDIM > 1) {
    u32* done = (u32*)smem;
    if (TID == 0) {
      fence_gpu();
      *done = atom_inc_gpu(p.counters + row);
    }
    SYNC();
    if (*done != GDIM - 1) return;
    fence_gpu();
    if (TID == 0) p.counters[row] = 0;
    SYNC(); // sums lie where that was
  }
  bool live = TID < 256;
  F4 x[Q], y[Q], z[Q], w[Q];
  auto each = [&](auto fn) __attribute__((always_inline)) {
#pragma unroll
    for (int i = 0; i < Q; i++)
      if (live && TID + 256 * i < quads) fn(i, TID + 256 * i);
  };
  auto square = [](const F4& a, float s) __attribute__((always_inline)) {
    return ffma(a.w, a.w, ffma(a.z, a.z, ffma(a.y, a.y, ffma(a.x, a.x, s))));
  };
  auto share = [&](float s, int at) __attribute__((always_inline)) {
    s = warp_sum(s);
    if (live && lane == 0) sums[at + warp] = s;
  };
  auto factor = [&](int at) __attribute__((always_inline)) {
    float s = sums[at];
#pragma unroll
    for (int i = 1; i < 8; i++) s = fadd(s, sums[at + i]);
    return fdiv(1.f, sqrt_(fadd(fdiv(s, (float)p.cols), p.eps)));
  };
  float s = 0, t = 0;
  each([&](int i, int q) __attribute__((always_inline)) {
    y[i] = ldcg128(flat + 4 * q);
    if (z_.p) z[i] = ldcg128(flat + p.cols + 4 * q);
    x[i] = sum_many(x_, row, 4 * q);
    w[i] = get(p.wy, q);
  });
  each([&](int i, int) __attribute__((always_inline)) {
    s = square(y[i], s);
    if (p.wz) t = square(z[i], t);
  });
  share(s, 0);
  if (p.wz) share(t, 8);
  SYNC();
  float f = factor(0), g = p.wz ? factor(8) : 0;
  each([&](int i, int q) __attribute__((always_inline)) {
    y[i] = times(y[i], f, w[i]);
    if (z_.p) {
      if (p.wz) z[i] = times(z[i], g, get(p.wz, q));
      y[i] = add4(z[i], y[i]);
      w[i] = get(p.wv, q);
    }
  });
  if (z_.p) {
    s = 0;
    each([&](int i, int) __attribute__((always_inline)) { s = square(y[i], s); });
    SYNC(); // the sums were read
    share(s, 0);
    SYNC();
    f = factor(0);
    each([&](int i, int) __attribute__((always_inline)) { y[i] = times(y[i], f, w[i]); });
  }
  each([&](int i, int q) __attribute__((always_inline)) {
    F4 v = add4(x[i], y[i]);
    v = {fmul(v.x, p.factor), fmul(v.y, p.factor), fmul(v.z, p.factor), fmul(v.w, p.factor)};
    *(F4*)(p.dst + (u64)row * p.dst_stride + 4 * q) = v;
    all[q] = v;
  });
  if (!p.act.p) return;
  SYNC();
#pragma unroll 1
  for (int job = warp; job < (p.act2.p ? 2 * chunks : chunks); job += BDIM >> 5) {
    bool second = job >= chunks;
    int kb = second ? job - chunks : job, c = kb * 256 + lane * 8;
    const float* w = (const float*)(second ? opaque(p.w2) : opaque(p.w));
    float* to = (float*)(second ? opaque(p.sumsq2) : opaque(p.sumsq));
    int nt = second ? opaque(p.act2.nt) : opaque(p.act.nt);
    Act act = {(u8*)(second ? opaque(p.act2.p) : opaque(p.act.p)), p.act.kb, nt};
    float v[8], g[8], s = 0;
    clear<8>(v);
    if (c < p.cols) load8(v, (const float*)all + c);
#pragma unroll
    for (int i = 0; i < 8; i++) s = ffma(v[i], v[i], s);
    s = warp_sum(s);
    if (lane == 0) to[(u64)row * p.act.kb + kb] = s;
    if (w && c < p.cols) {
      load8(g, w + c);
#pragma unroll
      for (int i = 0; i < 8; i++) v[i] = fmul(v[i], g[i]);
    }
    pack_row(act, kb, row, v, lane);
  }
}
