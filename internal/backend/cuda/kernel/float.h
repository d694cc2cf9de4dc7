// Products with float weights (F32, F16, BF16) and float32 activations: y = W x, W [rows][cols] as it is stored.
//
// Columns come in chunks of 256; lane l has columns 4l to 4l+3 and 128+4l to 128+4l+3 of a chunk. A warp has four rows
// of W and up to T tokens at a time. How a row is summed depends on the matrix alone, so a token has the same bits in
// any batch:
//   wide:   a warp sums its rows over all chunks in order; for matrices with many rows. Activations pass through
//           shared memory.
//   narrow: the eight warps of a block share the chunks of four rows (warp w has chunks w, w+8, ...) and add up in
//           order.
// Then the lanes of a warp add up.
#pragma once
#include "common.h"

struct FloatArgs {
  float* y;
  const void* w;      // of the first expert
  const float* x;
  const int* ids;     // the expert of every token, or none
  const float* scale; // of every expert, or none
  int n, rows, cols, xs, ys;
  int used;   // with ids: token t reads row t/used of x
  float all;  // scale of everything
};

enum { F32, F16, BF16 };

// Four values from column c on; what is beyond the row is 0. QUADS: rows of W and x begin at multiples of four values,
// and have whole ones.
template <int TYPE, bool QUADS> DEV F4 weights(const FloatArgs& p, const void* w, u64 at, int c) {
  F4 f = {0, 0, 0, 0};
  if (c >= p.cols) return f;
  if (TYPE == F32) {
    const float* v = (const float*)w + at + c;
    if (QUADS) {
      U4 u = ldg128(v);
      f.x = bits_f(u.x); f.y = bits_f(u.y); f.z = bits_f(u.z); f.w = bits_f(u.w);
    } else {
      f.x = v[0];
      if (c + 1 < p.cols) f.y = v[1];
      if (c + 2 < p.cols) f.z = v[2];
      if (c + 3 < p.cols) f.w = v[3];
    }
    return f;
  }
  const u16* v = (const u16*)w + at + c;
  U2 u = {0, 0};
  if (QUADS) u = ldg64(v);
  else {
    u.x = v[0];
    if (c + 1 < p.cols) u.x |= (u32)v[1] << 16;
    if (c + 2 < p.cols) u.y = v[2];
    if (c + 3 < p.cols) u.y |= (u32)v[3] << 16;
  }
  if (TYPE == F16) {
    f.x = h2f(u.x); f.y = h2f(u.x >> 16); f.z = h2f(u.y); f.w = h2f(u.y >> 16);
  } else {
    f.x = bits_f(u.x << 16); f.y = bits_f(u.x & 0xffff0000u); f.z = bits_f(u.y << 16); f.w = bits_f(u.y & 0xffff0000u);
  }
  return f;
}
template <bool QUADS> DEV F4 activations(const FloatArgs& p, const float* x, int c) {
  F4 f = {0, 0, 0, 0};
  if (c >= p.cols) return f;
  if (QUADS) return *(const F4*)(x + c);
  f.x = x[c];
  if (c + 1 < p.cols) f.y = x[c + 1];
  if (c + 2 < p.cols) f.z = x[c + 2];
  if (c + 3 < p.cols) f.w = x[c + 3];
  return f;
}
DEV float dot4(F4 a, F4 b, float s) {
  s = ffma(a.x, b.x, s);
  s = ffma(a.y, b.y, s);
  s = ffma(a.z, b.z, s);
  return ffma(a.w, b.w, s);
}

// What a block works on: rows [row, row+4) of a warp, tokens [tok, tok+n).
struct Work {
  const void* w;
  float scale;
  int tok, n;
};
template <int TYPE, int T> DEV Work work(const FloatArgs& p) {
  Work k = {p.w, p.all, BIDY * T, p.n - BIDY * T < T ? p.n - BIDY * T : T};
  if (p.ids) { // T is 1
    int e = p.ids[k.tok];
    k.w = (const u8*)p.w + (u64)e * p.rows * p.cols * (TYPE == F32 ? 4 : 2);
    if (p.scale) k.scale = fmul(k.scale, p.scale[e]);
  }
  return k;
}
DEV const float* token(const FloatArgs& p, const Work& k, int t) {
  int r = k.tok + (t < k.n ? t : 0); // a token that is not there is computed and thrown away
  return p.x + (u64)(p.ids ? r / p.used : r) * p.xs;
}

template <int TYPE, int T, bool QUADS> DEV void wide(const FloatArgs& p) {
  pdl_wait();
  pdl_launch();
  int lane = TID & 31, row = (BID * 8 + (TID >> 5)) * 4;
  Work k = work<TYPE, T>(p);
  float s[4][T];
#pragma unroll
  for (int i = 0; i < 4; i++)
#pragma unroll
    for (int t = 0; t < T; t++) s[i][t] = 0;
  F4 next[4][2];
  auto fetch = [&](int c) __attribute__((always_inline)) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      u64 at = (u64)(row + i < p.rows ? row + i : p.rows - 1) * p.cols;
      next[i][0] = weights<TYPE, QUADS>(p, k.w, at, c + 4 * lane);
      next[i][1] = weights<TYPE, QUADS>(p, k.w, at, c + 128 + 4 * lane);
    }
  };
  // Activations [2][T][256]; each thread brings quads of the next chunk.
  F4* x = (F4*)smem;
  auto bring = [&](int buf, int c) __attribute__((always_inline)) {
    for (int i = TID; i < T * 64; i += 256)
      x[buf * T * 64 + i] = activations<QUADS>(p, token(p, k, i >> 6), c + (i & 63) * 4);
  };
  fetch(0);
  bring(0, 0);
  SYNC();
  for (int c = 0, buf = 0; c < p.cols; c += 256, buf ^= 1) {
    F4 w[4][2];
#pragma unroll
    for (int i = 0; i < 4; i++) { w[i][0] = next[i][0]; w[i][1] = next[i][1]; }
    if (c + 256 < p.cols) {
      fetch(c + 256);
      bring(buf ^ 1, c + 256);
    }
#pragma unroll
    for (int t = 0; t < T; t++) {
      F4 a = x[(buf * T + t) * 64 + lane], b = x[(buf * T + t) * 64 + 32 + lane];
#pragma unroll
      for (int i = 0; i < 4; i++) s[i][t] = dot4(w[i][1], b, dot4(w[i][0], a, s[i][t]));
    }
    SYNC();
  }
#pragma unroll
  for (int i = 0; i < 4; i++)
#pragma unroll
    for (int t = 0; t < T; t++) {
      float v = fmul(warp_sum(s[i][t]), k.scale);
      if (lane == 0 && row + i < p.rows && t < k.n) p.y[(u64)(k.tok + t) * p.ys + row + i] = v;
    }
}

// Activations as they lie.
struct AsTheyAre {
  DEV_M void fetch(int) {}     // what belongs to a chunk, before the kernel waits
  DEV_M void begin(int, int) {} // what belongs to tokens, after that
  DEV_M F4 operator()(F4 v, int, int) { return v; } // a quad of a token, in the first or second half of the chunk
};
// Four rows from `row` on. Weights of the first chunk are on their way before the kernel waits for the one before.
template <int TYPE, int T, bool QUADS, class X> DEV void narrow(const FloatArgs& p, int row, X made) {
  int lane = TID & 31, warp = TID >> 5;
  if (p.ids) pdl_wait(); // they choose the weights
  Work k = work<TYPE, T>(p);
  float s[4][T];
  F4 w[4][2];
#pragma unroll
  for (int i = 0; i < 4; i++)
#pragma unroll
    for (int t = 0; t < T; t++) s[i][t] = 0;
  auto fetch = [&](int c) __attribute__((always_inline)) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      u64 at = (u64)(row + i < p.rows ? row + i : p.rows - 1) * p.cols;
      w[i][0] = weights<TYPE, QUADS>(p, k.w, at, c + 4 * lane);
      w[i][1] = weights<TYPE, QUADS>(p, k.w, at, c + 128 + 4 * lane);
    }
    made.fetch(c + 4 * lane);
  };
  fetch(warp * 256);
  pdl_wait();
  pdl_launch();
  if (T > 1) made.begin(k.tok, k.n);
  for (int c = warp * 256; c < p.cols; c += 8 * 256) {
    if (c > warp * 256) fetch(c);
#pragma unroll
    for (int t = 0; t < T; t++) {
      const float* x = token(p, k, t);
      F4 a = activations<QUADS>(p, x, c + 4 * lane), b = activations<QUADS>(p, x, c + 128 + 4 * lane);
      if (T == 1 && c == warp * 256) made.begin(k.tok, k.n); // what it waits for and these are on their way together
      a = made(a, t, 0);
      b = made(b, t, 1);
#pragma unroll
      for (int i = 0; i < 4; i++) s[i][t] = dot4(w[i][1], b, dot4(w[i][0], a, s[i][t]));
    }
  }
  float* sums = (float*)smem; // [8][4][T]
  if constexpr (T == 8) {
    float all[32];
#pragma unroll
    for (int j = 0; j < 32; j++) all[j] = s[j / T][j % T];
    sums[warp * 32 + lane] = warp_sums(all, lane);
  } else
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
      for (int t = 0; t < T; t++) {
        float v = warp_sum(s[i][t]);
        if (lane == 0) sums[(warp * 4 + i) * T + t] = v;
      }
  SYNC();
  for (int j = TID; j < 4 * T; j += 256) {
    int i = j / T, t = j % T;
    float v = sums[j];
    for (int w = 1; w < 8; w++) v = fadd(v, sums[w * 4 * T + j]);
    if (row + i < p.rows && t < k.n) p.y[(u64)(k.tok + t) * p.ys + row + i] = fmul(v, k.scale);
  }
}
template <int TYPE, int T, bool QUADS> DEV void narrow(const FloatArgs& p, int row) {
  narrow<TYPE, T, QUADS>(p, row, AsTheyAre{});
}
