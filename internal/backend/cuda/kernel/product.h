// What products of all sizes share: the arguments, half a stage of a warp, scaling, storing pieces.
//
// Work is cut into stages of 256 rows x 256 columns; every block gets an equal run of them, without
// regard to rows. So a row's sum may come from several blocks, in pieces. Where it is cut depends on the
// matrix and its number of blocks alone, and whoever reads the result adds the pieces in the order of columns: a
// token's bits do not depend on the other tokens, nor on how many there are.
//
// Activations lie in chunks of NT tiles of eight tokens: [chunk][256 columns], a first half of NT x 2048 bytes and a
// second of NT x 2336; those of experts row by row (see pack.h).
#pragma once
#include "formats.h"

static const int A0 = 2048, A1 = 2336, ACT = A0 + A1;
static const int R0 = 256, R1 = 320, ROW = R0 + R1; // the halves of a row of 256 columns
static const int STRIPS = 16; // tiles of a stage, and warps of a block

// One launch does up to eight products of the same activations; each gets its share of the blocks.
struct Job {
  const u8* w;
  float* part; // [piece][token][row]
  int groups;  // of 256 rows
  int blocks;
  int format, table;
  float scale; // of the results
  int pad;
};
// A matrix that a later product reads, cut as that does.
struct Next {
  const u8* w;
  int stages, blocks;
  int bytes; // of a stage
  int most;  // bytes of a block to ask for; 0: nothing
};
struct ProductArgs {
  Job job[8];
  Next next[2];
  const u8* act;
  const float* sumsq; // [token][kb] sums of squares of x: results are divided by their root mean square (or null)
  float eps, mean;    // mean: 1 / columns
  int kb;             // columns / 256
  int n;              // tokens
  int depth;          // slots of the ring
  int most;           // stages of activations that a block makes itself, or copies at a time, at most
};

// The job of this block, and which of the job's blocks it is. Parameters must not be indexed, nor may the compiler
// turn a choice of values into a choice of addresses: both would copy them to local memory. So the values pass
// through f_bits, which it does not see through.
DEV int opaque(int v) { return (int)f_bits(bits_f((u32)v)); }
DEV u64 opaque(const void* p) { return (u32)opaque((int)(u64)p) | (u64)(u32)opaque((int)((u64)p >> 32)) << 32; }
DEV In opaque(const In& a) {
  return {(const float*)opaque(a.p), opaque(a.stride), opaque(a.groups), opaque(a.kb), opaque(a.grid), opaque(a.n),
          opaque(a.first)};
}
DEV Job find_job(const ProductArgs& a, int& b) {
  Job j = a.job[0];
  auto next = [&](const Job& o) __attribute__((always_inline)) {
    Job k = {(const u8*)opaque(o.w), (float*)opaque(o.part), opaque(o.groups), opaque(o.blocks),
             opaque(o.format), opaque(o.table), bits_f((u32)opaque((int)f_bits(o.scale))), 0};
    if (b < j.blocks) return;
    b -= j.blocks;
    j = k;
  };
  next(a.job[1]); next(a.job[2]); next(a.job[3]); next(a.job[4]); next(a.job[5]); next(a.job[6]); next(a.job[7]);
  return j;
}

// Asks for what this block's successor in the product after this one reads first, so that it is in the L2 cache by
// then; where that has more blocks, for several.
DEV void ask_ahead(const ProductArgs& a) {
#ifdef HOPPER
  u64 w = opaque(a.next[0].w), w1 = opaque(a.next[1].w);
  int stages = opaque(a.next[0].stages), stages1 = opaque(a.next[1].stages), blocks = opaque(a.next[0].blocks),
      blocks1 = opaque(a.next[1].blocks), bytes = opaque(a.next[0].bytes), bytes1 = opaque(a.next[1].bytes);
  if (BIDY > 0) return;
  bool second = false;
  for (int b = BID;; b += GDIM) {
    if (b >= blocks && !second) {
      b -= blocks;
      w = w1, stages = stages1, blocks = blocks1, bytes = bytes1;
      second = true;
    }
    if (b >= blocks) return;
    int s = first_stage(b, stages, blocks), n = (first_stage(b + 1, stages, blocks) - s) * bytes;
    const int CHUNK = 16384; // of a request
    if (n > a.next[0].most) n = a.next[0].most;
    for (int at = 0; at < n; at += CHUNK)
      prefetch_l2((const u8*)w + (u64)s * bytes + at, n - at < CHUNK ? n - at : CHUNK);
  }
#endif
}

// Calls fn with a value of the format's type, one of a set.
enum { ONLY_Q4K, K_QUANTS, ALL_FORMATS };
template <int SET, class Fn> DEV void with_format(int format, Fn fn) {
  if constexpr (SET == ONLY_Q4K) fn(Q4K());
  else if constexpr (SET == K_QUANTS) {
    if (format == Q4K_) fn(Q4K());
    else if (format == Q6K_) fn(Q6K());
    else fn(Q5K());
  } else
    switch (format) {
    case Q4K_: fn(Q4K()); break;
    case Q5K_: fn(Q5K()); break;
    case Q6K_: fn(Q6K()); break;
#ifndef RACES // formats differ in arithmetic alone, and compiling them takes minutes
    case Q2K_: fn(Q2K()); break;
    case Q3K_: fn(Q3K()); break;
#endif
    case Q8_: fn(Q8()); break;
#ifndef RACES
    case Q8M_: fn(Q8M()); break;
    case N4_: fn(N4()); break;
    case NV4_: fn(NV4()); break;
#else
    default: emu_fail("format %d is left out where races are looked for", format);
#endif
    }
}

template <int N> DEV void clear(float* p) {
#pragma unroll
  for (int i = 0; i < N; i++) p[i] = 0;
}

// A half of activations in shared memory: tiles of eight tokens.
struct Tiled {
  u32 at, tail; // tail: what follows the second halves
  DEV_M U4 frag(int nt, int sb, int lane) const { return lds128(at + nt * A0 + sb * 512 + lane * 16); }
  DEV_M U2 sums(int nt, int lane) const { return lds64(tail + nt * 288 + lane * 8); }
  DEV_M U2 scales(int nt, int t) const { return lds64(tail + nt * 288 + 256 + t * 8); }
};
// The same row by row, STRIDE bytes apart: that is 64 more than a multiple of 128, so rows do not share banks.
template <int STRIDE> struct Apart {
  u32 at;
  DEV_M U4 frag(int nt, int sb, int lane) const { return lds128(at + (nt * 8 + (lane >> 2)) * STRIDE + sb * 64 + (lane & 3) * 16); }
  DEV_M U2 sums(int nt, int lane) const { return lds64(at + (nt * 8 + (lane >> 2)) * STRIDE + 256 + (lane & 3) * 8); }
  DEV_M U2 scales(int nt, int t) const {
    u32 a = at + (nt * 8 + 2 * t) * STRIDE + 288;
    return {lds32(a), lds32(a + STRIDE)};
  }
};
typedef Apart<R1> ByRow;  // halves of rows in a slot of a ring
typedef Apart<ROW> Whole; // whole rows: `at` is the first or the second half of the first

// Half a stage of a warp: a tile against NT tiles of eight tokens, or the first of them, 128 columns. between() runs
// half way.
template <class F, int NT, class X, class B>
DEV void half_stage(float (&c)[NT][4], u32 tile, const X& act, int table, int lane, B between, int tiles = NT) {
  F w;
  w.begin(tile, lane, table);
#pragma unroll
  for (int sb = 0; sb < 4; sb++) {
    if (sb == 2) between();
    Frag f;
    w.load(tile, lane, sb);
    w.frag(f, sb);
    if constexpr (F::BLOCK) {
      float s, r;
      w.scale(tile, lane >> 2, sb, s, r);
      u32 mg = 0, mh = 0;
      if (F::MIN16) w.min_frag(mg, mh, sb);
#pragma unroll
      for (int nt = 0; nt < NT; nt++) {
        if (nt >= tiles) break;
        U4 b = act.frag(nt, sb, lane);
        float k[4] = {0, 0, 0, 0};
        mma16816(k, f.a[0][0], f.a[0][1], f.a[0][2], f.a[0][3], b.x, b.y);
        mma16816(k, f.a[1][0], f.a[1][1], f.a[1][2], f.a[1][3], b.z, b.w);
        c[nt][0] = ffma(s, k[0], c[nt][0]);
        c[nt][1] = ffma(s, k[1], c[nt][1]);
        c[nt][2] = ffma(r, k[2], c[nt][2]);
        c[nt][3] = ffma(r, k[3], c[nt][3]);
        if constexpr (F::MIN16) {
          float m[4] = {0, 0, 0, 0};
          mma16816(m, mg, mh, mg, mh, b.x, b.y);
          mma16816(m, mg, mh, mg, mh, b.z, b.w);
          c[nt][0] = ffma(w.ng, m[0], c[nt][0]);
          c[nt][1] = ffma(w.ng, m[1], c[nt][1]);
          c[nt][2] = ffma(w.nh, m[2], c[nt][2]);
          c[nt][3] = ffma(w.nh, m[3], c[nt][3]);
        }
      }
    } else {
#pragma unroll
      for (int nt = 0; nt < NT; nt++) {
        if (nt >= tiles) break;
        U4 b = act.frag(nt, sb, lane);
        mma16816(c[nt], f.a[0][0], f.a[0][1], f.a[0][2], f.a[0][3], b.x, b.y);
        mma16816(c[nt], f.a[1][0], f.a[1][1], f.a[1][2], f.a[1][3], b.z, b.w);
      }
    }
  }
}

// After the second half: mins and scales, in f32. acc += s * (d*c - dmin*mins).
template <class F, int NT, class X>
DEV void scale(float (&acc)[NT][4], float (&c)[NT][4], u32 tile, const X& act, int lane, int tiles = NT) {
  int g = lane >> 2, t = lane & 3;
  float dg = 0, mg = 0, dh = 0, mh = 0;
  if constexpr (!F::BLOCK) {
    F::d(tile, g, dg, mg);
    F::d(tile, g + 8, dh, mh);
  }
  u32 ng = 0, nh = 0;
  if (F::MINS) { ng = F::mins(tile, g, t); nh = F::mins(tile, g + 8, t); }
#pragma unroll
  for (int nt = 0; nt < NT; nt++) {
    if (nt >= tiles) break;
    float* v = c[nt];
    if (!F::BLOCK) { v[0] = fmul(dg, v[0]); v[1] = fmul(dg, v[1]); v[2] = fmul(dh, v[2]); v[3] = fmul(dh, v[3]); }
    if (F::MINS) {
      float s[4] = {0, 0, 0, 0};
      U2 b = act.sums(nt, lane);
      mma16816(s, ng, nh, ng, nh, b.x, b.y);
      if (F::BLOCK) { // mins are complete, and added
        v[0] = fadd(v[0], s[0]); v[1] = fadd(v[1], s[1]); v[2] = fadd(v[2], s[2]); v[3] = fadd(v[3], s[3]);
      } else {
        v[0] = ffma(-mg, s[0], v[0]); v[1] = ffma(-mg, s[1], v[1]); v[2] = ffma(-mh, s[2], v[2]); v[3] = ffma(-mh, s[3], v[3]);
      }
    }
    U2 sc = act.scales(nt, t);
    float* a = acc[nt];
    a[0] = ffma(bits_f(sc.x), v[0], a[0]);
    a[1] = ffma(bits_f(sc.y), v[1], a[1]);
    a[2] = ffma(bits_f(sc.x), v[2], a[2]);
    a[3] = ffma(bits_f(sc.y), v[3], a[3]);
  }
}

// What a token's results are multiplied with: the reciprocal root mean square, from sums of squares of 256 columns
// each. A warp.
DEV float rms_part(const float* sumsq, int kb, int lane) {
  float s = 0;
  for (int k = lane; k < kb; k += 32) s = fadd(s, sumsq[k]);
  return s;
}
DEV float rms_whole(float part, float mean, float eps) { return rsqrt_(ffma(warp_sum(part), mean, eps)); }
DEV float rms_factor(const float* sumsq, int kb, float mean, float eps, int lane) {
  return rms_whole(rms_part(sumsq, kb, lane), mean, eps);
}
// The factors of a block's tokens, into shared memory, by all 16 warps.
DEV void factors(const ProductArgs& a, const Job& job, u32 to, int tok0, int n, int warp, int lane) {
  for (int tok = warp; tok < n; tok += STRIPS) {
    float f = job.scale;
    if (a.sumsq) f = fmul(f, rms_factor(a.sumsq + (u64)(tok0 + tok) * a.kb, a.kb, a.mean, a.eps, lane));
    if (lane == 0) sts_f(to + tok * 4, f);
  }
}

// A warp's results: 16 rows from y on, of n tokens; `rows` values from one token to the next.
template <int NT> DEV void store(float* y, float (&acc)[NT][4], int n, int rows, u32 factor, int lane) {
  int g = lane >> 2, t = lane & 3;
  y += g;
#pragma unroll
  for (int nt = 0; nt < NT; nt++) {
    int tok = nt * 8 + 2 * t;
    float* p = y + (u64)tok * rows;
    if (tok < n) {
      float f = lds_f(factor + tok * 4);
      p[0] = fmul(acc[nt][0], f);
      p[8] = fmul(acc[nt][2], f);
    }
    if (tok + 1 < n) {
      float f = lds_f(factor + tok * 4 + 4);
      p[rows] = fmul(acc[nt][1], f);
      p[rows + 8] = fmul(acc[nt][3], f);
    }
  }
}
