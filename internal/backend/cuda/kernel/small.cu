// Small operations on rows of activations: what is done to single values, norms, rotations, and moving rows.
// Every kernel waits for the kernels before it and lets the next ones start at once: it has few registers and blocks.
// also for sm_90
#include "common.h"

// ---- operations on single values

struct ElemArgs {
  float* dst;
  const float* w;   // a vector of the columns, or none
  const int* index; // of rows, or none
  In a, b;
  int rows, cols, ds; // ds: stride of dst
  int quads;          // four columns at a time: all addresses are multiples of 16 bytes, cols of 4
  float s, t;
};

// Calls f(row, column, values of a, values of b) for every quad of columns, or for single ones. The values of a row's
// column depend on nothing else, so either way gives the same bits.
template <bool A, bool B, class F> DEV void elements(const ElemArgs& p, F f) {
  pdl_wait();
  pdl_launch();
  int width = p.quads ? 4 : 1, per = p.cols / width, total = p.rows * per;
  for (int i = BID * BDIM + TID; i < total; i += GDIM * BDIM) {
    int r = i / per, c = (i - r * per) * width;
    float* d = p.dst + (u64)r * p.ds + c;
    if (p.quads) {
      F4 x = {0, 0, 0, 0}, y = x, o;
      if (A) x = in4(p.a, r, c, in_pieces(p.a, c));
      if (B) y = in4(p.b, r, c, in_pieces(p.b, c));
      o.x = f(r, c, x.x, y.x, d); o.y = f(r, c + 1, x.y, y.y, d + 1);
      o.z = f(r, c + 2, x.z, y.z, d + 2); o.w = f(r, c + 3, x.w, y.w, d + 3);
      *(F4*)d = o;
    } else
      *d = f(r, c, A ? in1(p.a, r, c) : 0.f, B ? in1(p.b, r, c) : 0.f, d);
  }
}
// backend.ClampedSwiGLU. NaN stays NaN.
DEV float clamped_swiglu(float gate, float up) {
  return fmul(quick_gelu(gate > 7.f ? 7.f : gate), fadd(up < -7.f ? -7.f : up > 7.f ? 7.f : up, 1.f));
}
#define ELEMENTS(name, A, B, expr)                                                                              \
  KERNEL(name, ElemArgs, p, 256, 1) {                                                                           \
    elements<A, B>(p, [&](int r, int c, float a, float b, float* d) __attribute__((always_inline)) {            \
      (void)r; (void)c; (void)a; (void)b; (void)d;                                                              \
      return expr;                                                                                              \
    });                                                                                                         \
  }
ELEMENTS(small_copy, true, false, a) // also: adds the pieces of a product
ELEMENTS(small_add, true, true, fadd(a, b))
ELEMENTS(small_bias, true, false, fadd(a, p.w[c]))
ELEMENTS(small_expert_bias, true, false, fadd(a, p.w[(u64)p.index[r] * p.cols + c])) // one row of w for an expert
ELEMENTS(small_scale, true, false, fmul(a, p.s))
ELEMENTS(small_silu, true, true, fmul(silu(a), b))
ELEMENTS(small_gelu, true, true, fmul(gelu(a), b))
ELEMENTS(small_erf, true, true, fmul(gelu_erf(a), b))
ELEMENTS(small_quick, true, true, fmul(quick_gelu(a), b))
ELEMENTS(small_clamped, true, true, clamped_swiglu(a, b))
ELEMENTS(small_only_silu, true, false, silu(a))
ELEMENTS(small_only_gelu, true, false, gelu(a))
ELEMENTS(small_only_erf, true, false, gelu_erf(a))
ELEMENTS(small_only_quick, true, false, quick_gelu(a))
ELEMENTS(small_clamp, true, false, a < p.s ? p.s : a > p.t ? p.t : a)
ELEMENTS(small_sigmoid, true, true, fmul(a, sigmoid(b)))
ELEMENTS(small_softcap, true, false, fmul(p.s, tanh_(fdiv(a, p.s))))
ELEMENTS(small_gather, false, false, in1(p.a, p.index[r], c, 1))
ELEMENTS(small_add_gated, true, false, ffma(sigmoid(in1(p.b, r, 0)), a, *d)) // one gate for a row

// ---- rows that are parts of a token's row: heads. Part h of token t is row t*heads+h.
struct HeadsArgs {
  float* dst;
  const float* w; // of the norm, or none
  In x, y;
  int rows, cols, heads;
  int xs, ys;  // columns from one head to the next in x and y
  int ds, dhs; // the same in dst, and from one token to the next
  float eps;
};

// x * sigmoid(y), head by head.
KERNEL(small_heads_sigmoid, HeadsArgs, p, 256, 1) {
  pdl_wait();
  pdl_launch();
  int total = p.rows * p.cols;
  for (int i = BID * BDIM + TID; i < total; i += GDIM * BDIM) {
    int r = i / p.cols, c = i - r * p.cols, t = r / p.heads, h = r - t * p.heads;
    p.dst[(u64)t * p.ds + h * p.dhs + c] = fmul(in1(p.x, t, h * p.xs + c), sigmoid(in1(p.y, t, h * p.ys + c)));
  }
}

// RMSNorm. THREADS is 32 for short rows (a warp each), 256 for long ones (a block each), which depends on the length
// only. Thread t has the quads t, t+THREADS, ..., of short rows pairs of quads, which is how the kernels sum that do more
// than the norm of heads (qkv_write, head_pack): the order is the same however values are loaded and whoever does it.
// They stay in shared memory.
template <int THREADS> DEV void norm(const HeadsArgs& p) {
  pdl_wait();
  pdl_launch();
  int t = TID % THREADS, row = BID * (BDIM / THREADS) + TID / THREADS, quads = (p.cols + 3) / 4;
  float* x = (float*)smem + TID / THREADS * quads * 4;
  float* sums = (float*)smem + BDIM / THREADS * quads * 4;
  bool live = row < p.rows;
  int tok = row / p.heads, head = row - tok * p.heads, at = head * p.xs;
  float s = 0;
  const int RUN = THREADS == 32 ? 2 : 1; // quads that a thread has side by side
  auto each = [&](auto fn) __attribute__((always_inline)) {
    for (int q = t * RUN; q < quads; q += THREADS * RUN)
#pragma unroll
      for (int i = 0; i < RUN; i++)
        if (q + i < quads) fn(q + i);
  };
  if (live) {
    bool wide = in_aligned(p.x, 4) && (at & 3) == 0 && (p.cols & 3) == 0;
    each([&](int q) __attribute__((always_inline)) {
      F4 v = {0, 0, 0, 0};
      if (wide) v = in4(p.x, tok, at + 4 * q, in_pieces(p.x, at + 4 * q));
      else {
        v.x = in1(p.x, tok, at + 4 * q);
        if (4 * q + 1 < p.cols) v.y = in1(p.x, tok, at + 4 * q + 1);
        if (4 * q + 2 < p.cols) v.z = in1(p.x, tok, at + 4 * q + 2);
        if (4 * q + 3 < p.cols) v.w = in1(p.x, tok, at + 4 * q + 3);
      }
      s = ffma(v.x, v.x, s); s = ffma(v.y, v.y, s); s = ffma(v.z, v.z, s); s = ffma(v.w, v.w, s);
      *(F4*)(x + 4 * q) = v;
    });
  }
  s = warp_sum(s);
  if (THREADS > 32) {
    if ((TID & 31) == 0) sums[TID >> 5] = s;
    SYNC();
    s = sums[0];
    for (int i = 1; i < THREADS / 32; i++) s = fadd(s, sums[i]);
  }
  if (!live) return;
  float f = fdiv(1.f, sqrt_(fadd(fdiv(s, (float)p.cols), p.eps)));
  float* d = p.dst + (u64)tok * p.ds + head * p.dhs;
  each([&](int q) __attribute__((always_inline)) { // the same quads: no barrier is needed
    for (int i = 4 * q; i < 4 * q + 4 && i < p.cols; i++) {
      float y = fmul(x[i], f);
      d[i] = p.w ? fmul(y, p.w[i]) : y;
    }
  });
}
KERNEL(small_norm_short, HeadsArgs, p, 256, 1) { norm<32>(p); }
KERNEL(small_norm_long, HeadsArgs, p, 256, 1) { norm<256>(p); }

// LayerNorm, a block for each row. Thread t has the columns t, t+256, ..., and writes those that it read, so that dst
// may be x.
struct LayerNormArgs {
  float* dst;
  const float *w, *bias;
  In x;
  int rows, cols, ds;
  float eps;
};
KERNEL(small_layer_norm, LayerNormArgs, p, 256, 1) {
  pdl_wait();
  pdl_launch();
  float* sums = (float*)smem;
  auto total = [&](float v, float* at) __attribute__((always_inline)) {
    v = warp_sum(v);
    if ((TID & 31) == 0) at[TID >> 5] = v;
    SYNC();
    v = at[0];
    for (int i = 1; i < 8; i++) v = fadd(v, at[i]);
    return v;
  };
  float s = 0, q = 0;
  for (int c = TID; c < p.cols; c += 256) s = fadd(s, in1(p.x, BID, c));
  float mean = fdiv(total(s, sums), (float)p.cols);
  for (int c = TID; c < p.cols; c += 256) {
    float d = fadd(in1(p.x, BID, c), -mean);
    q = ffma(d, d, q);
  }
  float f = fdiv(1.f, sqrt_(fadd(fdiv(total(q, sums + 8), (float)p.cols), p.eps)));
  float* d = p.dst + (u64)BID * p.ds;
  for (int c = TID; c < p.cols; c += 256)
    d[c] = ffma(fmul(fadd(in1(p.x, BID, c), -mean), f), p.w[c], p.bias[c]);
}

// ---- rotary embedding

struct AnglesArgs {
  float *cos, *sin;
  const int* pos;
  const float* inv;
  int rows, cols, cs, ss;
  float scale;
};
// In float64: at position 200,000 a float32 angle is off by a hundredth.
KERNEL(small_angles, AnglesArgs, p, 128, 1) {
  pdl_wait();
  pdl_launch();
  int total = p.rows * p.cols;
  for (int i = BID * BDIM + TID; i < total; i += GDIM * BDIM) {
    int r = i / p.cols, c = i - r * p.cols;
    double x = (double)p.pos[r] * (double)p.inv[c];
    double n = drint(x * 0.63661977236758134308); // quarter turns
    double y = dfma(-n, 6.123233995736766036e-17, dfma(-n, 1.570796326794896558, x)), z = y * y;
    // sin(y) = y + y z s(z), cos(y) = 1 - z/2 + z z k(z) for |y| <= pi/4
    double s = dfma(z, 1.58962301576546568060e-10, -2.50507477628578072866e-8);
    s = dfma(z, dfma(z, s, 2.75573136213857245213e-6), -1.98412698295895385996e-4);
    s = dfma(z, dfma(z, s, 8.33333333332211858878e-3), -1.66666666666666307295e-1);
    double k = dfma(z, -1.13585365213876817300e-11, 2.08757008419747316778e-9);
    k = dfma(z, dfma(z, k, -2.75573141792967388112e-7), 2.48015872888517045348e-5);
    k = dfma(z, dfma(z, k, -1.38888888888730564116e-3), 4.16666666666665929218e-2);
    double sn = dfma(y * z, s, y), cs = dfma(z * z, k, dfma(z, -0.5, 1.0));
    int quarter = (int)((long long)n & 3);
    if (quarter & 1) { double t = sn; sn = cs; cs = -t; }
    if (quarter & 2) { sn = -sn; cs = -cs; }
    p.cos[(u64)r * p.cs + c] = fmul((float)cs, p.scale);
    p.sin[(u64)r * p.ss + c] = fmul((float)sn, p.scale);
  }
}

struct RopeArgs {
  float* x;
  const float *cos, *sin;
  int rows, heads, half, xs, cs, ss; // row r of x belongs to row r/heads of the angles
};
KERNEL(small_rope, RopeArgs, p, 256, 1) {
  pdl_wait();
  pdl_launch();
  int total = p.rows * p.half;
  for (int i = BID * BDIM + TID; i < total; i += GDIM * BDIM) {
    int r = i / p.half, c = i - r * p.half, t = r / p.heads;
    float *x = p.x + (u64)r * p.xs + c, a = x[0], b = x[p.half];
    float cs = p.cos[(u64)t * p.cs + c], sn = p.sin[(u64)t * p.ss + c];
    x[0] = fadd(fmul(a, cs), -fmul(b, sn));
    x[p.half] = fadd(fmul(a, sn), fmul(b, cs));
  }
}

// ---- blocks and experts

struct BlockConvArgs {
  float* dst;
  const float *x, *dyn, *base;
  const int* index;
  int rows, cols, taps, groups, ds, xs, ys; // ys: stride of dyn
};
KERNEL(small_block_conv, BlockConvArgs, p, 256, 1) {
  pdl_wait();
  pdl_launch();
  int total = p.rows * p.cols, size = p.cols / p.groups;
  for (int i = BID * BDIM + TID; i < total; i += GDIM * BDIM) {
    int r = i / p.cols, c = i - r * p.cols, g = c / size, n = p.index[r] + 1;
    if (n > p.taps) n = p.taps;
    float v = 0;
    for (int t = 0; t < n; t++) {
      float w = fadd(p.base[(u64)t * p.cols + c], p.dyn[(u64)r * p.ys + t * p.groups + g]);
      v = ffma(w, p.x[(u64)(r - t) * p.xs + c], v);
    }
    p.dst[(u64)r * p.ds + c] = v;
  }
}

struct SumArgs {
  float* dst;
  const float *w, *scale; // weights [rows][used]; scale of every expert, or none
  const int* ids;
  In y; // row r*used+j is the output of expert j of row r
  int rows, cols, used, ds, ws;
};
KERNEL(small_expert_sum, SumArgs, p, 256, 1) {
  pdl_wait();
  pdl_launch();
  int total = p.rows * p.cols;
  for (int i = BID * BDIM + TID; i < total; i += GDIM * BDIM) {
    int r = i / p.cols, c = i - r * p.cols, pieces = in_pieces(p.y, c);
    float v = 0;
    for (int j = 0; j < p.used; j++) {
      float f = p.w[(u64)r * p.ws + j];
      if (p.scale) f = fmul(f, p.scale[p.ids[r * p.used + j]]);
      v = ffma(f, in1(p.y, r * p.used + j, c, pieces), v);
    }
    p.dst[(u64)r * p.ds + c] = v;
  }
}

// ---- integers that the host set: entry i of the block says where its values are in it, how many, and where they
// belong.
struct SetEntry {
  int* dst;
  int at, n; // at: bytes from the start of the block
};
struct ScatterArgs { const u8* block; };
KERNEL(small_scatter, ScatterArgs, p, 128, 1) {
  pdl_wait();
  pdl_launch();
  const SetEntry e = ((const SetEntry*)p.block)[BID];
  for (int i = TID; i < e.n; i += BDIM) e.dst[i] = ((const int*)(p.block + e.at))[i];
}
