// What follows a part of a layer whose output is normalised before it is added to the residual stream (Gemma): norms,
// sums, scale and the packing for the products that come next, in one launch. A block has a row, a thread four columns
// of it, so that all pieces of all columns are on their way at once. Sums are those of small_norm_long and add_pack.
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
// The sum of pieces, in order, as sum4; most are on their way at once. No part of the kernel, which would run out of
// registers.
OUTLINE F4 sum_many(In s, int row, int c) {
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
OUTLINE F4 mix_many(Mix m, int row, int c) { return mix4(m, row, c); }
DEV F4 times(const F4& v, float f, const F4& w) {
  return {fmul(fmul(v.x, f), w.x), fmul(fmul(v.y, f), w.y), fmul(fmul(v.z, f), w.z), fmul(fmul(v.w, f), w.w)};
}

KERNEL(post_pack, PostArgs, p, 768, 1) {
  int lane = TID & 31, warp = TID >> 5, row = BID, quads = p.cols / 4, chunks = (p.cols + 255) / 256;
  float* sums = (float*)smem; // [2][8]
  F4 *ys = (F4*)(smem + 64), *zs = ys + quads;
  auto at = [](const float* w, int q) __attribute__((always_inline)) { return *(const F4*)(w + 4 * q); };
  // Nobody writes the weights of norms: those of a thread's first columns are asked for before the wait.
  F4 wy = {0, 0, 0, 0}, wz = wy, wv = wy, x = wy;
  if (TID < quads) {
    wy = at(p.wy, TID);
    if (p.wz) wz = at(p.wz, TID);
    if (p.wv) wv = at(p.wv, TID);
  }
  pdl_launch();
  pdl_wait();
  In xs = opaque(p.x), in = opaque(p.y), in2 = opaque(p.z); // parameters whose address is taken are copied
  if (TID < quads) x = sum_many(xs, row, 4 * TID);
#pragma unroll 1
  for (int q = TID; q < quads; q += BDIM) {
    if (in2.p) zs[q] = sum_many(in2, row, 4 * q);
    if (p.used) ys[q] = mix_many({in, p.weights, p.scale, p.ids, p.used, p.ws}, row, 4 * q);
    else ys[q] = sum_many(in, row, 4 * q);
  }
  // The sum of squares, as in small_norm_long: 256 threads have every 256th quad, eight warps add up in order.
  auto squares = [&](const F4* v, float* to) __attribute__((always_inline)) {
    float s = 0;
#pragma unroll 1
    for (int q = TID; q < quads; q += 256) {
      F4 a = v[q];
      s = ffma(a.x, a.x, s); s = ffma(a.y, a.y, s); s = ffma(a.z, a.z, s); s = ffma(a.w, a.w, s);
    }
    s = warp_sum(s);
    if (lane == 0) to[warp] = s;
  };
  auto factor = [&](const float* from) __attribute__((always_inline)) {
    float s = from[0];
#pragma unroll
    for (int i = 1; i < 8; i++) s = fadd(s, from[i]);
    return fdiv(1.f, sqrt_(fadd(fdiv(s, (float)p.cols), p.eps)));
  };
  SYNC();
  if (TID < 256) {
    squares(ys, sums);
    if (p.wz) squares(zs, sums + 8);
  }
  SYNC();
  float fy = factor(sums), fz = 0, fv = 0;
  if (p.wz) fz = factor(sums + 8);
#pragma unroll 1
  for (int q = TID; q < quads; q += BDIM) {
    if (q > TID) {
      wy = at(p.wy, q);
      if (p.wz) wz = at(p.wz, q);
    }
    F4 v = times(ys[q], fy, wy);
    if (in2.p) {
      F4 z = zs[q];
      if (p.wz) z = times(z, fz, wz);
      v = add4(z, v);
    }
    ys[q] = v;
  }
  if (in2.p) {
    SYNC();
    if (TID < 256) squares(ys, sums);
    SYNC();
    fv = factor(sums);
  }
#pragma unroll 1
  for (int q = TID; q < quads; q += BDIM) {
    if (q > TID) {
      x = sum_many(xs, row, 4 * q);
      if (in2.p) wv = at(p.wv, q);
    }
    F4 v = ys[q];
    if (in2.p) v = times(v, fv, wv);
    v = add4(x, v);
    v = {fmul(v.x, p.factor), fmul(v.y, p.factor), fmul(v.z, p.factor), fmul(v.w, p.factor)};
    *(F4*)(p.dst + (u64)row * p.dst_stride + 4 * q) = v;
    ys[q] = v;
  }
  if (!p.act.p) return;
  SYNC();
#pragma unroll 1
  for (int job = warp; job < (p.act2.p ? 2 * chunks : chunks); job += BDIM >> 5) {
    bool second = job >= chunks;
    int kb = second ? job - chunks : job, c = kb * 256 + lane * 8;
    const float* w = (const float*)(second ? opaque(p.w2) : opaque(p.w));
    float* to = (float*)(second ? opaque(p.sumsq2) : opaque(p.sumsq));
    Act act = {(u8*)(second ? opaque(p.act2.p) : opaque(p.act.p)), p.act.kb, second ? opaque(p.act2.nt) : opaque(p.act.nt)};
    float v[8], g[8], s = 0;
    clear<8>(v);
    if (c < p.cols) load8(v, (const float*)ys + c);
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
