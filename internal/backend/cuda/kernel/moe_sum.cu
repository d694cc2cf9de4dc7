// The end of a mixture of experts: the weighted sum of a row's experts in the order in which it chose them, the expert
// that all rows share times its gate, the residual, and the norm with packing as in pack.cu.
// also for sm_90
#include "mix.h"

struct MixArgs {
  Act act;
  In x, y, shared;             // y: row r*used+j is the output of expert j of row r. shared may be missing
  const float *weights, *scale; // [row][ws]; of every expert, or none
  const int* ids;
  const float* gate;           // of the shared expert, a value for each row, gs apart
  float* dst;
  const float* w;              // of the norm
  float *sumsq, *out;          // out: of the kernel that normalises
  int rows, cols, used, ws, gs, dst_stride, out_stride;
  float eps, mean;
};
// A row's 256 columns, lane l has 8l to 8l+7 of them: the sum goes to dst, what is packed times w. Everything is asked
// for before the first value is used.
DEV void mix_job(const MixArgs& p, float (&v)[8], const float (&w)[8], int kb, int row, int at, int lane) {
  float t[8], all[8], gate = 0;
  take8(v, p.x, row, at, p.cols);
  if (p.shared.p) {
    gate = p.gate[(u64)row * p.gs];
    take8(all, p.shared, row, at, p.cols);
  }
  mix8(t, {p.y, p.weights, p.scale, p.ids, p.used, p.ws}, row, at, p.cols);
  if (p.shared.p) {
    float f = sigmoid(gate);
#pragma unroll
    for (int i = 0; i < 8; i++) t[i] = ffma(f, all[i], t[i]);
  }
#pragma unroll
  for (int i = 0; i < 8; i++) v[i] = fadd(v[i], t[i]);
  Any::give8(p.dst + (u64)row * p.dst_stride, at, p.cols, v);
  float s = 0;
#pragma unroll
  for (int i = 0; i < 8; i++) s = ffma(v[i], v[i], s);
  s = warp_sum(s);
  if (lane == 0) p.sumsq[(u64)row * p.act.kb + kb] = s;
  if (p.w)
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = fmul(v[i], w[i]);
  pack_row(p.act, kb, row, v, lane);
}
// The product that follows divides by the root mean square.
KERNEL(moe_add_pack, MixArgs, p, 64, 6) {
  pdl_launch();
  int lane = TID & 31, kbs = p.act.kb, job = BID * 2 + (TID >> 5), row = job / kbs, kb = job - row * kbs;
  float v[8], w[8];
  if (p.w && row < p.rows) Any::take8(w, p.w, kb * 256 + lane * 8, p.cols); // nobody writes them: before the wait
  pdl_wait();
  while (row < p.rows) {
    mix_job(p, v, w, kb, row, kb * 256 + lane * 8, lane);
    job += GDIM * 2;
    row = job / kbs;
    kb = job - row * kbs;
    if (p.w && row < p.rows) Any::take8(w, p.w, kb * 256 + lane * 8, p.cols);
  }
}
// The same, a block for each row, and the normalised row in float32 as well.
KERNEL(moe_add_norm, MixArgs, p, 512, 1) {
  pdl_launch();
  pdl_wait();
  int lane = TID & 31, kbs = p.act.kb;
  for (int row = BID; row < p.rows; row += GDIM) {
    float* out = p.out + (u64)row * p.out_stride;
    for (int kb = TID >> 5; kb < kbs; kb += BDIM >> 5) {
      float v[8], w[8];
      int at = kb * 256 + lane * 8;
      if (p.w) Any::take8(w, p.w, at, p.cols);
      mix_job(p, v, w, kb, row, at, lane);
      Any::give8(out, at, p.cols, v); // each thread reads back what it wrote
    }
    SYNC(); // sums of squares are there
    float f = rms_factor(p.sumsq + (u64)row * kbs, kbs, p.mean, p.eps, lane);
    for (int kb = TID >> 5; kb < kbs; kb += BDIM >> 5) {
      int at = kb * 256 + lane * 8;
#pragma unroll
      for (int i = 0; i < 8; i++)
        if (at + i < p.cols) out[at + i] = fmul(out[at + i], f);
    }
  }
}
