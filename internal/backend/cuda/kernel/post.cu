// What follows a part of a layer whose output is normalised before it is added to the residual stream: norms, sums,
// scale and the packing for the next product in one launch. A block has a row, a warp 256 columns at a time.
// also for sm_90
#include "mix.h"

struct PostArgs {
  Act act;                      // gets the normalised sum; without an address nothing is packed
  In x, y, z;                   // y: the output; z: something else that is normalised with it, or missing
  const float *weights, *scale; // experts: y has used rows for each, which are added with these first
  const int* ids;
  const float *wy, *wz;         // norms of y, and of z + norm(y)
  float* dst;                   // (x + that) * factor
  const float* w;               // of the next product's norm
  float* sumsq;
  int rows, cols, used, ws, dst_stride;
  float factor, eps;
  int pad;
};

static const int POST_WARPS = 16, POST_CHUNKS = 2; // of a block; of 256 columns for a warp

// v = norm(v) * w, with the sums of small_norm_long.
DEV void post_norm(const PostArgs& p, float (&v)[POST_CHUNKS][8], const float* w, float* sums) {
  int lane = TID & 31, warp = TID >> 5, chunks = (p.cols + 255) / 256;
  SYNC(); // the sums of the norm before were read
#pragma unroll
  for (int c = 0; c < POST_CHUNKS; c++) {
    int k = warp + c * POST_WARPS;
    float s = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) s = ffma(v[c][i], v[c][i], s);
    s = warp_sum(s);
    if (lane == 0 && k < chunks) sums[k] = s;
  }
  SYNC();
  float s = sums[0];
  for (int k = 1; k < chunks; k++) s = fadd(s, sums[k]);
  float f = fdiv(1.f, sqrt_(fadd(fdiv(s, (float)p.cols), p.eps)));
#pragma unroll
  for (int c = 0; c < POST_CHUNKS; c++) {
    int at = (warp + c * POST_WARPS) * 256 + lane * 8;
#pragma unroll
    for (int i = 0; i < 8; i++)
      if (at + i < p.cols) v[c][i] = fmul(fmul(v[c][i], f), w[at + i]);
  }
}

KERNEL(post_pack, PostArgs, p, 512, 1) {
  pdl_wait();
  pdl_launch();
  int lane = TID & 31, warp = TID >> 5;
  float* sums = (float*)smem;
  for (int row = BID; row < p.rows; row += GDIM) {
    float v[POST_CHUNKS][8], t[8];
#pragma unroll
    for (int c = 0; c < POST_CHUNKS; c++) {
      int at = (warp + c * POST_WARPS) * 256 + lane * 8;
      if (p.used) mix8(v[c], {p.y, p.weights, p.scale, p.ids, p.used, p.ws}, row, at, p.cols);
      else take8(v[c], p.y, row, at, p.cols);
    }
    post_norm(p, v, p.wy, sums);
    if (p.z.p) {
#pragma unroll
      for (int c = 0; c < POST_CHUNKS; c++) {
        take8(t, p.z, row, (warp + c * POST_WARPS) * 256 + lane * 8, p.cols);
#pragma unroll
        for (int i = 0; i < 8; i++) v[c][i] = fadd(t[i], v[c][i]);
      }
      post_norm(p, v, p.wz, sums);
    }
#pragma unroll
    for (int c = 0; c < POST_CHUNKS; c++) {
      int k = warp + c * POST_WARPS, at = k * 256 + lane * 8;
      if (k * 256 >= p.cols) continue;
      take8(t, p.x, row, at, p.cols);
      float s = 0;
#pragma unroll
      for (int i = 0; i < 8; i++) {
        v[c][i] = fmul(fadd(t[i], v[c][i]), p.factor);
        s = ffma(v[c][i], v[c][i], s);
      }
      Any::give8(p.dst + (u64)row * p.dst_stride, at, p.cols, v[c]);
      if (!p.act.p) continue;
      s = warp_sum(s);
      if (lane == 0) p.sumsq[(u64)row * p.act.kb + k] = s;
      if (p.w) {
        Any::take8(t, p.w, at, p.cols);
#pragma unroll
        for (int i = 0; i < 8; i++) v[c][i] = fmul(v[c][i], t[i]);
      }
      pack_row(p.act, k, row, v[c], lane);
    }
  }
}
