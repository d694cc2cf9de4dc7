// What runs between products: each of these kernels ends in packed activations. A warp has a row and 256 columns at a
// time; lane l has columns 8l..8l+7 of them. Grids are at most one small block per multiprocessor for few tokens:
// more would take the room of the product that waits to start beside the one that runs.
// also for sm_90
#include "pack.h"

// Calls fn for every row and 256 columns, in the order of rows. late: the next kernel starts when the one before this
// is done, not beside it.
template <class Fn> DEV void jobs(int late, int rows, int kbs, Fn fn) {
  if (!late) pdl_launch();
  pdl_wait();
  if (late) pdl_launch();
  int lane = TID & 31;
  for (int job = BID * 4 + (TID >> 5); job < kbs * rows; job += GDIM * 4) {
    int row = job / kbs, kb = job - row * kbs;
    fn(row, kb, kb * 256 + lane * 8, lane);
  }
}

// div: row r of the activations is row r/div of x.
struct PackArgs { Act act; In x; int rows, cols, div, late; };
KERNEL(pack, PackArgs, p, 128, 8) {
  jobs(p.late, p.rows, p.act.kb, [&](int row, int kb, int at, int lane) __attribute__((always_inline)) {
    float v[8];
    take8(v, p.x, row / p.div, at, p.cols);
    pack_row(p.act, kb, row, v, lane);
  });
}

// dst = x + y, act of dst*w, and the sums of squares of 256 columns each. The product that follows divides its
// results by the root mean square, which leaves nothing to wait for here. y and w may be missing.
struct AddPackArgs {
  Act act;
  In x, y;
  float* dst; // may be missing: then x is not written anywhere
  const float* w;
  float* sumsq;
  int dst_stride, rows, cols, late;
};
DEV void add_job(const AddPackArgs& p, float (&v)[8], float& s, int kb, int row, int at, int lane) {
  take8(v, p.x, row, at, p.cols);
  if (p.y.p) {
    float r[8];
    take8(r, p.y, row, at, p.cols);
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = fadd(v[i], r[i]);
  }
  if (p.dst) give8(p.dst + (u64)row * p.dst_stride, at, p.cols, v);
  s = 0;
#pragma unroll
  for (int i = 0; i < 8; i++) s = ffma(v[i], v[i], s);
  s = warp_sum(s);
  if (lane == 0) p.sumsq[(u64)row * p.act.kb + kb] = s;
  if (p.w) {
    float w[8];
    take8(w, p.w, at, p.cols, 0);
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = fmul(v[i], w[i]);
  }
  if (p.act.p) pack_row(p.act, kb, row, v, lane);
}
KERNEL(add_pack, AddPackArgs, p, 128, 8) {
  jobs(p.late, p.rows, p.act.kb, [&](int row, int kb, int at, int lane) __attribute__((always_inline)) {
    float v[8], s;
    add_job(p, v, s, kb, row, at, lane);
  });
}

// The same, a block for each row, and the normalised row in float32 as well: out = dst*w / rms(dst).
struct AddNormArgs { AddPackArgs p; float* out; int out_stride; float eps, mean; };
KERNEL(add_norm, AddNormArgs, a, 512, 2) {
  int lane = TID & 31, kbs = a.p.act.kb;
  pdl_wait();
  pdl_launch();
  for (int row = BID; row < a.p.rows; row += GDIM) {
    float* out = a.out + (u64)row * a.out_stride;
    for (int kb = TID >> 5; kb < kbs; kb += BDIM >> 5) {
      float v[8], s;
      int at = kb * 256 + lane * 8;
      add_job(a.p, v, s, kb, row, at, lane);
      give8(out, at, a.p.cols, v); // each thread reads back what it wrote
    }
    SYNC(); // sums of squares are there
    float f = rms_factor(a.p.sumsq + (u64)row * kbs, kbs, a.mean, a.eps, lane);
    for (int kb = TID >> 5; kb < kbs; kb += BDIM >> 5) {
      int at = kb * 256 + lane * 8;
#pragma unroll
      for (int i = 0; i < 8; i++)
        if (at + i < a.p.cols) out[at + i] = fmul(out[at + i], f);
    }
  }
}

// act(gate) * up
struct GatedPackArgs { Act act; In gate, up; int rows, cols, gelu, late; };
KERNEL(gated_pack, GatedPackArgs, p, 128, 8) {
  jobs(p.late, p.rows, p.act.kb, [&](int row, int kb, int at, int lane) __attribute__((always_inline)) {
    float g[8], u[8];
    take8(g, p.gate, row, at, p.cols);
    take8(u, p.up, row, at, p.cols);
#pragma unroll
    for (int i = 0; i < 8; i++) u[i] = fmul(p.gelu ? gelu(g[i]) : silu(g[i]), u[i]);
    pack_row(p.act, kb, row, u, lane);
  });
}

// x * sigmoid(gate), head by head.
struct SigmoidPackArgs { Act act; In x, gate; int rows, cols, late, dim, step, pad; };
KERNEL(sigmoid_pack, SigmoidPackArgs, p, 128, 8) {
  jobs(p.late, p.rows, p.act.kb, [&](int row, int kb, int at, int lane) __attribute__((always_inline)) {
    float g[8], u[8];
    take8(u, p.x, row, at, p.cols);
    int h = at / p.dim, from = h * p.step; // heads of x lie side by side, gates a step apart
    take8(g, p.gate, row, from + at - h * p.dim, p.cols / p.dim * p.step);
#pragma unroll
    for (int i = 0; i < 8; i++) u[i] = fmul(u[i], sigmoid(g[i]));
    pack_row(p.act, kb, row, u, lane);
  });
}

// RMSNorm of each head's values (64, 128 or 256 of them), times w and silu(gate).
struct HeadPackArgs { Act act; In x, gate; const float* w; int rows, cols, dim, late; float eps, mean; };
KERNEL(head_pack, HeadPackArgs, p, 128, 8) {
  jobs(p.late, p.rows, p.act.kb, [&](int row, int kb, int at, int lane) __attribute__((always_inline)) {
    float v[8], g[8], w[8], s = 0;
    take8(v, p.x, row, at, p.cols);
    take8(g, p.gate, row, at, p.cols);
    load8(w, p.w + (at & (p.dim - 1)));
#pragma unroll
    for (int i = 0; i < 8; i++) s = ffma(v[i], v[i], s);
    for (int i = p.dim >> 4; i; i >>= 1) s = fadd(s, shfl_xor(s, i)); // dim/8 lanes are a head
    float r = rsqrt_(ffma(s, p.mean, p.eps));
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = fmul(fmul(fmul(v[i], r), w[i]), silu(g[i]));
    pack_row(p.act, kb, row, v, lane);
  });
}

// Pieces of a product as plain rows.
struct ReduceArgs { In x; float* dst; int stride, rows, cols, pad; };
KERNEL(reduce_pieces, ReduceArgs, p, 128, 8) {
  pdl_launch();
  pdl_wait();
  int kbs = (p.cols + 255) / 256, lane = TID & 31;
  for (int job = BID * 4 + (TID >> 5); job < kbs * p.rows; job += GDIM * 4) {
    int row = job / kbs, at = (job % kbs) * 256 + lane * 8;
    float v[8];
    take8(v, p.x, row, at, p.cols);
    float* to = p.dst + (u64)row * p.stride;
    if (at + 8 <= p.cols && (p.stride & 3) == 0 && ((u64)p.dst & 15) == 0) store8(to + at, v);
    else give8(to, at, p.cols, v);
  }
}
