// Activations as the products want them: halves in the order of the tensor cores' fragments, one power-of-two scale for
// each token and 256 columns.
//
// Small products: tiles of eight tokens in chunks of NT; [chunk][256 columns]{NT x [4 sub-blocks][8 tokens][32]
// halves, the same of the other four sub-blocks, NT x {[8 tokens][4] {sums of sub-blocks 2t, 2t+1: high halves, low
// halves}; [8 tokens] f32 scale}}. Experts: [row][256 columns]{4 sub-blocks of 32 halves; the other four, the sums as
// above, f32 scale, 28 bytes}. Prompts: [tile of 64 tokens][256 columns]{first half, second half, sums, scales}. A
// half is two tiles of [64 tokens][64 columns], 128 bytes a row, chunk c of token k at c ^ (k & 7). Columns of a
// sub-block of 32 are dealt as weights are: lane t's columns 8t..8t+7 go, in pairs, to places 2t, 8+2t, 16+2t, 24+2t.
// Sums: [8 tokens]{[8][8 high], [8][8 low]}; scales: 64 f32.
//
// Values are divided by a power of two, so that the largest of a token's 256 lies in [512, 1024): 11 bits
// for all but tiny ones, and sums of 32 fit a half. Tokens are independent; those a tile lacks hold anything.
#pragma once
#include "product.h"
#include "splits.h"

static const int PA = 16384, PTAIL = 2304, PACT = 2 * PA + PTAIL;

// Where packed rows go.
struct Act {
  u8* p;
  int kb;          // columns / 256
  int nt;          // tiles of a chunk; 0: prompts; -1: experts
};

// A warp's 256 values of a row, lane l has 8l..8l+7; kb counts 256 columns.
DEV void pack_row(const Act& o, int kb, int row, const float (&v)[8], int lane) {
  float m = 0;
#pragma unroll
  for (int i = 0; i < 8; i++) m = fmax_(m, fabs_(v[i]));
  m = warp_max(m);
  int e = (int)(f_bits(m) >> 23);      // biased exponent of the largest
  e = e < 20 ? 20 : e > 254 ? 254 : e; // both powers of two below must exist
  float up = bits_f((u32)(127 + 9 + 127 - e) << 23), down = bits_f((u32)(e - 9) << 23);
  u32 h[4];
  float s = 0;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    h[i] = f2h2(fmul(v[2 * i], up), fmul(v[2 * i + 1], up));
    s = fadd(s, h2f(h[i] & 0xffff));
    s = fadd(s, h2f(h[i] >> 16));
  }
  s = fadd(s, shfl_xor(s, 1));
  s = fadd(s, shfl_xor(s, 2));
  u32 hi = f2h(s), lo = f2h(fadd(s, -h2f(hi)));
  int sb = lane >> 2, t = lane & 3;
  if (o.nt < 0) {
    u8* at = o.p + ((u64)row * o.kb + kb) * ROW;
    U4 w = {h[0], h[1], h[2], h[3]};
    *(U4*)(at + sb * 64 + t * 16) = w;
    if (t == 0) {
      u16* q = (u16*)(at + 512 + (sb >> 1) * 8) + (sb & 1);
      q[0] = (u16)hi;
      q[2] = (u16)lo;
    }
    if (lane == 0) *(float*)(at + 544) = down;
  } else if (o.nt) {
    int tile = row >> 3, chunk = tile / o.nt, nt = tile - chunk * o.nt, g = row & 7;
    u8* at = o.p + ((u64)chunk * o.kb + kb) * (o.nt * ACT);
    U4 w = {h[0], h[1], h[2], h[3]};
    *(U4*)(at + (sb >> 2) * (o.nt * A0) + nt * A0 + (sb & 3) * 512 + g * 64 + t * 16) = w;
    u8* tail = at + o.nt * (2 * A0) + nt * 288;
    if (t == 0) {
      u16* q = (u16*)(tail + g * 32 + (sb >> 1) * 8) + (sb & 1);
      q[0] = (u16)hi;
      q[2] = (u16)lo;
    }
    if (lane == 0) *(float*)(tail + 256 + g * 4) = down;
  } else {
    int k = row & 63;
    u8* at = o.p + ((u64)(row >> 6) * o.kb + kb) * PACT;
    u8* r = at + (sb >> 1) * 8192 + k * 128 + t * 4;
#pragma unroll
    for (int i = 0; i < 4; i++) *(u32*)(r + ((((sb & 1) * 4 + i) ^ (k & 7)) << 4)) = h[i];
    if (t == 0) {
      u16* q = (u16*)(at + 2 * PA + (k >> 3) * 256 + (k & 7) * 16 + sb * 2);
      q[0] = (u16)hi;
      q[64] = (u16)lo;
    }
    if (lane == 0) *(float*)(at + 2 * PA + 2048 + k * 4) = down;
  }
}

// The sums of two sets of pieces, whose loads overlap: most products are in one to three pieces. None: 0.
DEV void sum8_two(float (&a)[8], float (&b)[8], const float* p, u64 ps, int na, const float* q, u64 qs, int nb) {
  clear<8>(a);
  clear<8>(b);
  if (na) load8(a, p);
  if (nb) load8(b, q);
#pragma unroll 1
  for (int k = 1; k < na || k < nb; k += 2) {
    float v[2][8], w[2][8];
#pragma unroll
    for (int j = 0; j < 2; j++) {
      if (k + j < na) load8(v[j], p + (k + j) * ps);
      if (k + j < nb) load8(w[j], q + (k + j) * qs);
    }
#pragma unroll
    for (int j = 0; j < 2; j++)
#pragma unroll
      for (int i = 0; i < 8; i++) {
        if (k + j < na) a[i] = fadd(a[i], v[j][i]);
        if (k + j < nb) b[i] = fadd(b[i], w[j][i]);
      }
  }
}

// Eight columns from c on, a multiple of 8; zero beyond cols. A kernel is compiled for both: rows that are read by
// fours and have a multiple of 8 columns (Fast), and any rows (Any).
struct Fast {
  // BATCH pieces are loaded at a time.
  template <int BATCH> static DEV_M void take8(float (&v)[8], const In& s, int row, int c, int cols) {
    clear<8>(v);
    if (c < cols) in8<BATCH>(v, s, row, c, in_pieces(s, c));
  }
  template <int BATCH>
  static DEV_M void take8(float (&v)[8], const In& s, int row, int c, int cols, int pieces) {
    clear<8>(v);
    if (c < cols) in8<BATCH>(v, s, row, c, pieces);
  }
  // Two inputs, whose loads overlap.
  static DEV_M void take8_two(float (&a)[8], float (&b)[8], const In& x, const In& y, int row, int c, int cols) {
    bool in = c < cols;
    sum8_two(a, b, in_addr(x, row, c), in_step(x), in ? in_pieces(x, c) : 0, in_addr(y, row, c), in_step(y),
             in ? in_pieces(y, c) : 0);
  }
  static DEV_M void take8(float (&v)[8], const float* p, int c, int cols) {
    clear<8>(v);
    if (c < cols) load8(v, p + c);
  }
  static DEV_M void give8(float* p, int c, int cols, const float (&v)[8]) {
    if (c < cols) store8(p + c, v);
  }
};
struct Any {
  template <int BATCH> static DEV_M void take8(float (&v)[8], const In& s, int row, int c, int cols, int = 0) {
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = c + i < cols ? in1(s, row, c + i) : 0;
  }
  static DEV_M void take8_two(float (&a)[8], float (&b)[8], const In& x, const In& y, int row, int c, int cols) {
    take8<1>(a, x, row, c, cols);
    take8<1>(b, y, row, c, cols);
  }
  static DEV_M void take8(float (&v)[8], const float* p, int c, int cols) {
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = c + i < cols ? p[c + i] : 0;
  }
  static DEV_M void give8(float* p, int c, int cols, const float (&v)[8]) {
#pragma unroll
    for (int i = 0; i < 8; i++)
      if (c + i < cols) p[c + i] = v[i];
  }
};
DEV bool aligned16(const void* p) { return ((u64)p & 15) == 0; }
// For kernels that are compiled once.
DEV void take8(float (&v)[8], const In& s, int row, int c, int cols) {
  if (cols % 8 == 0 && in_aligned(s, 8))
    Fast::take8<2>(v, s, row, c, cols);
  else
    Any::take8<1>(v, s, row, c, cols);
}

// ---- what is packed: the same functions wherever it is made

// act(gate) * up, into up.
DEV void gate8(float (&up)[8], const float (&gate)[8], int with_gelu) {
#pragma unroll
  for (int i = 0; i < 8; i++) up[i] = fmul(with_gelu ? gelu(gate[i]) : silu(gate[i]), up[i]);
}
// x * sigmoid(gate), into x.
DEV void sigmoid8(float (&x)[8], const float (&gate)[8]) {
#pragma unroll
  for (int i = 0; i < 8; i++) x[i] = fmul(x[i], sigmoid(gate[i]));
}
// RMSNorm of heads of dim values (a power of two up to 256), times w and silu(gate), into x. A warp.
DEV void head8(float (&x)[8], const float (&gate)[8], const float (&w)[8], int dim, float eps) {
  float s = 0;
#pragma unroll
  for (int i = 0; i < 8; i++) s = ffma(x[i], x[i], s);
  for (int i = dim >> 4; i; i >>= 1) s = fadd(s, shfl_xor(s, i)); // dim/8 lanes are a head
  float r = fdiv(1.f, sqrt_(fadd(fdiv(s, (float)dim), eps)));     // as in small.cu
#pragma unroll
  for (int i = 0; i < 8; i++) x[i] = fmul(silu(gate[i]), fmul(fmul(x[i], r), w[i]));
}

// dst = x + y, act of dst*w, and the sums of squares of 256 columns each. The product that follows divides its
// results by the root mean square, which leaves nothing to wait for here. y and w may be missing.
struct AddPackArgs {
  Act act;
  In x, y;
  float* dst; // may be missing: then x is not written anywhere
  const float* w;
  float* sumsq;
  int dst_stride, rows, cols, pad;
};
// Rows that a product makes and packs itself, for as many columns as a block of it multiplies.
enum { MAKE_PLAIN, MAKE_SILU, MAKE_GELU, MAKE_SIGMOID, MAKE_HEADS };
struct Make {
  static const bool MADE = true, MERGED = false;
  In x, gate;     // plain: x; gated: act(gate) * x; sigmoid: x * sigmoid(gate); heads: norm(x) * w * silu(gate)
  const float* w;
  int kind, cols;
  int dim, step;  // heads of dim values, whose gates begin step values after each other
  float eps;
  int pad;
};
// The same where x is attention's output, whose splits are still to be added for rows that have partial results.
struct MakeMerged : Make {
  static const bool MERGED = true;
  Splits of;
};
// Eight columns of a row, such that Fast reads them. What no kernel of the step writes comes first (aim), so that it is
// there when waiting for the kernels before ends.
struct Maker {
  const float *p, *q;
  int np, nq, ps, qs; // pieces, and from one to the next
  float f[8];
  DEV_M void aim(const Make& m, int row, int at) {
    np = nq = 0;
    if (m.kind == MAKE_HEADS) load8(f, m.w + (at & (m.dim - 1)));
    if (at >= m.cols) return;
    In x = opaque(m.x);
    p = in_addr(x, row, at);
    np = in_pieces(x, at);
    ps = (int)in_step(x);
    if (m.kind == MAKE_PLAIN) return;
    In gate = opaque(m.gate);
    int h = at / m.dim, c = h * m.step + at - h * m.dim; // dim and step are equal where heads are not apart
    q = in_addr(gate, row, c);
    nq = in_pieces(gate, c);
    qs = (int)in_step(gate);
  }
  DEV_M void make(const Make& m, float (&v)[8]) const {
    float g[8];
    sum8_two(v, g, p, ps, np, q, qs, nq);
    finish(m, v, g);
  }
  DEV_M void finish(const Make& m, float (&v)[8], const float (&g)[8]) const {
    if (m.kind == MAKE_SIGMOID) sigmoid8(v, g);
    else if (m.kind == MAKE_HEADS) head8(v, g, f, m.dim, m.eps);
    else if (m.kind != MAKE_PLAIN) gate8(v, g, m.kind == MAKE_GELU);
  }
};
