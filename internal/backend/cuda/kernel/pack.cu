// What runs between products: each of these kernels ends in packed activations. A warp has a row and 256 columns at a
// time; lane l has columns 8l..8l+7 of them. Blocks are small, so that they find room beside a product that runs, and
// grids at most two of them per multiprocessor for few tokens: more would take the room of the product that waits to
// start.
// also for sm_90
#include "pack.h"

// Calls fn for every row and 256 columns, and before it `ahead` with the columns: what no kernel of the step writes is
// loaded there, the first time before waiting, since it comes from memory and not from a cache. The last row comes
// first: of a prompt it is what the product before wrote last and the cache still has.
template <class Ahead, class Fn> DEV void jobs(int rows, int kbs, Ahead ahead, Fn fn) {
  pdl_launch();
  int lane = TID & 31, job = BID * 2 + (TID >> 5), row = job / kbs, kb = job - row * kbs;
  if (row < rows) ahead(kb * 256 + lane * 8);
  pdl_wait();
  while (row < rows) {
    fn(rows - 1 - row, kb, kb * 256 + lane * 8, lane);
    job += GDIM * 2;
    row = job / kbs;
    kb = job - row * kbs;
    if (row < rows) ahead(kb * 256 + lane * 8);
  }
}
template <class Fn> DEV void jobs(int rows, int kbs, Fn fn) {
  jobs(rows, kbs, [](int) __attribute__((always_inline)) {}, fn);
}

// div: row r of the activations is row r/div of x.
struct PackArgs { Act act; In x; int rows, cols, div, pad; };
template <class F> DEV void pack_rows(const PackArgs& p) {
  jobs(p.rows, p.act.kb, [&](int row, int kb, int at, int lane) __attribute__((always_inline)) {
    float v[8];
    F::template take8<4>(v, p.x, row / p.div, at, p.cols);
    pack_row(p.act, kb, row, v, lane);
  });
}
KERNEL(pack, PackArgs, p, 64, 8) {
  if (p.cols % 8 == 0 && in_aligned(p.x, 8)) pack_rows<Fast>(p);
  else pack_rows<Any>(p);
}

DEV bool add_fast(const AddPackArgs& p) {
  return p.cols % 8 == 0 && in_aligned(p.x, 8) && (!p.y.p || in_aligned(p.y, 8)) && aligned16(p.dst) &&
         p.dst_stride % 4 == 0 && aligned16(p.w);
}
template <class F>
DEV void add_job(const AddPackArgs& p, float (&v)[8], const float (&w)[8], float& s, int kb, int row, int at,
                 int pieces, int lane) {
  F::template take8<1>(v, p.x, row, at, p.cols);
  if (p.y.p) {
    float r[8];
    // products of few rows are in up to eight pieces, seldom more
    F::template take8<7>(r, p.y, row, at, p.cols, pieces);
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = fadd(v[i], r[i]);
  }
  if (p.dst) F::give8(p.dst + (u64)row * p.dst_stride, at, p.cols, v);
  s = 0;
#pragma unroll
  for (int i = 0; i < 8; i++) s = ffma(v[i], v[i], s);
  s = warp_sum(s);
  if (lane == 0) p.sumsq[(u64)row * p.act.kb + kb] = s;
  if (p.w)
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = fmul(v[i], w[i]);
  if (p.act.p) pack_row(p.act, kb, row, v, lane);
}
template <class F> DEV void add_pack_rows(const AddPackArgs& p) {
  float w[8];
  int pieces = 0;
  jobs(
      p.rows, p.act.kb,
      [&](int at) __attribute__((always_inline)) {
        if (p.w) F::take8(w, p.w, at, p.cols);
        if (p.y.p) pieces = in_pieces(p.y, at);
      },
      [&](int row, int kb, int at, int lane) __attribute__((always_inline)) {
        float v[8], s;
        add_job<F>(p, v, w, s, kb, row, at, pieces, lane);
      });
}
KERNEL(add_pack, AddPackArgs, p, 64, 8) {
  if (add_fast(p)) add_pack_rows<Fast>(p);
  else add_pack_rows<Any>(p);
}

// The same, a block for each row, and the normalised row in float32 as well: out = dst*w / rms(dst).
struct AddNormArgs { AddPackArgs p; float* out; int out_stride; float eps, mean; };
template <class F> DEV void add_norm_rows(const AddNormArgs& a) {
  int lane = TID & 31, kbs = a.p.act.kb;
  for (int row = BID; row < a.p.rows; row += GDIM) {
    float* out = a.out + (u64)row * a.out_stride;
    for (int kb = TID >> 5; kb < kbs; kb += BDIM >> 5) {
      float v[8], w[8], s;
      int at = kb * 256 + lane * 8;
      if (a.p.w) F::take8(w, a.p.w, at, a.p.cols);
      add_job<F>(a.p, v, w, s, kb, row, at, a.p.y.p ? in_pieces(a.p.y, at) : 0, lane);
      F::give8(out, at, a.p.cols, v); // each thread reads back what it wrote
    }
    SYNC(); // sums of squares are there
    float f = rms_factor(a.p.sumsq + (u64)row * kbs, kbs, a.mean, a.eps, lane);
    for (int kb = TID >> 5; kb < kbs; kb += BDIM >> 5) {
      float v[8];
      int at = kb * 256 + lane * 8;
      F::take8(v, out, at, a.p.cols);
#pragma unroll
      for (int i = 0; i < 8; i++) v[i] = fmul(v[i], f);
      F::give8(out, at, a.p.cols, v);
    }
  }
}
KERNEL(add_norm, AddNormArgs, a, 512, 1) {
  pdl_wait();
  pdl_launch();
  if (add_fast(a.p) && aligned16(a.out) && a.out_stride % 4 == 0) add_norm_rows<Fast>(a);
  else add_norm_rows<Any>(a);
}

// act(gate) * up
struct GatedPackArgs { Act act; In gate, up; int rows, cols, gelu, pad; };
template <class F> DEV void gated_rows(const GatedPackArgs& p) {
  jobs(p.rows, p.act.kb, [&](int row, int kb, int at, int lane) __attribute__((always_inline)) {
    float g[8], u[8];
    F::take8_two(g, u, p.gate, p.up, row, at, p.cols);
    gate8(u, g, p.gelu);
    pack_row(p.act, kb, row, u, lane);
  });
}
KERNEL(gated_pack, GatedPackArgs, p, 64, 8) {
  if (p.cols % 8 == 0 && in_aligned(p.gate, 8) && in_aligned(p.up, 8)) gated_rows<Fast>(p);
  else gated_rows<Any>(p);
}

// x * sigmoid(gate), head by head.
struct SigmoidPackArgs { Act act; In x, gate; int rows, cols, pad, dim, step, pad2; };
template <class F> DEV void sigmoid_rows(const SigmoidPackArgs& p) {
  jobs(p.rows, p.act.kb, [&](int row, int kb, int at, int lane) __attribute__((always_inline)) {
    float g[8], u[8];
    F::template take8<4>(u, p.x, row, at, p.cols);
    int h = at / p.dim, from = h * p.step; // heads of x lie side by side, gates a step apart
    F::template take8<4>(g, p.gate, row, from + at - h * p.dim, p.cols / p.dim * p.step);
    sigmoid8(u, g);
    pack_row(p.act, kb, row, u, lane);
  });
}
KERNEL(sigmoid_pack, SigmoidPackArgs, p, 64, 8) {
  if (p.cols % 8 == 0 && p.step % 8 == 0 && in_aligned(p.x, 8) && in_aligned(p.gate, 8)) sigmoid_rows<Fast>(p);
  else sigmoid_rows<Any>(p);
}

// RMSNorm of each head's values (64, 128 or 256 of them), times w and silu(gate).
struct HeadPackArgs { Act act; In x, gate; const float* w; int rows, cols, dim, pad; float eps, mean; };
template <class F> DEV void head_rows(const HeadPackArgs& p) {
  float w[8];
  jobs(
      p.rows, p.act.kb,
      [&](int at) __attribute__((always_inline)) { load8(w, p.w + (at & (p.dim - 1))); },
      [&](int row, int kb, int at, int lane) __attribute__((always_inline)) {
        float v[8], g[8];
        F::take8_two(v, g, p.x, p.gate, row, at, p.cols);
        head8(v, g, w, p.dim, p.eps);
        pack_row(p.act, kb, row, v, lane);
      });
}
KERNEL(head_pack, HeadPackArgs, p, 64, 8) {
  if (p.cols % 8 == 0 && in_aligned(p.x, 8) && in_aligned(p.gate, 8)) head_rows<Fast>(p);
  else head_rows<Any>(p);
}

// Pieces of a product as plain rows.
struct ReduceArgs { In x; float* dst; int stride, rows, cols, pad; };
template <class F> DEV void reduce_rows(const ReduceArgs& p) {
  jobs(p.rows, (p.cols + 255) / 256, [&](int row, int, int at, int) __attribute__((always_inline)) {
    float v[8];
    F::template take8<4>(v, p.x, row, at, p.cols);
    F::give8(p.dst + (u64)row * p.stride, at, p.cols, v);
  });
}
KERNEL(reduce_pieces, ReduceArgs, p, 64, 8) {
  if (p.cols % 8 == 0 && p.stride % 4 == 0 && aligned16(p.dst) && in_aligned(p.x, 8)) reduce_rows<Fast>(p);
  else reduce_rows<Any>(p);
}
