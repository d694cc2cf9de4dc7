// How keys and values lie in the pages of the cache, and the tables that say what the rows of a step see
// (backend/gpu/pages.go and seen.go make them).
//
// A page has 64 slots. Inside it every layer has its KV heads one after the other, each with its keys and then its
// values:
//   F32              [64 slots][dim]
//   F16              [64 slots][dim]; if dim is a multiple of 64: [dim/64][64 slots][64 dimensions], the 16-byte
//                    chunk c of slot s lying at c ^ (s & 7): what the tensor cores read, so that pages are copied
//                    to shared memory as they are
//   Q8_0             [64 slots][dim] bytes, then [64 slots][dim/32] scales (halves)
//   Q4_0             [64 slots][dim/2], value i in nibble i, then [64 slots][dim/32] scales
//   Q4_1             the same with [64 slots][dim/32] pairs of scale and smallest value
//   turbo4           [64 slots][dim/2], then [64 slots][dim/128] scales
//   turbo3           [64 slots]{[dim/4] two low bits of each value, [dim/8] their high bits}, then scales as turbo4
// Keys of the types from Q8_0 on are rotated, and so are values of the turbo types: package quant says how. Attention
// rotates its queries, and turns its results back.
#pragma once
#include "common.h"

enum { KV_F32, KV_F16, KV_Q8, KV_Q4_0, KV_Q4_1, KV_T4, KV_T3 };

DEV bool turns_keys(int type) { return type >= KV_Q8; }
DEV bool turns_values(int type) { return type >= KV_T4; }
// Bytes of a slot: its quants and its scales.
DEV int quant_bytes(int type, int dim) { return type == KV_Q8 ? dim : type == KV_T3 ? dim * 3 / 8 : dim / 2; }
DEV int scale_bytes(int type, int dim) { return type >= KV_T4 ? dim / 64 : type == KV_Q4_1 ? dim / 8 : dim / 16; }
// Where the scale of value d is among those of its slot.
DEV int scale_at(int type, int d) {
  return type >= KV_T4 ? (d >> 7) * 2 : type == KV_Q4_1 ? (d >> 5) * 4 : (d >> 5) * 2;
}

// How many values are rotated as one.
DEV int turned(int dim) { return dim & -dim & 127 ? dim & -dim : 128; }
// Rotates 8 values from dimension d on (or back), together with the lanes that have the others of the group:
// neighbouring ones, in order of dimensions. All lanes of a warp take part.
DEV void rotate8(float (&v)[8], int d, int group, bool back) {
  const u64 s[4] = {0xbdd732262feb6e95, 0x28efe333b266f103, 0x47526757130f9f52, 0x581ce1ff0e4ae394};
  d &= group - 1;
  u32 one = (u32)((d & 64 ? s[1] : s[0]) >> (d & 56)), two = (u32)((d & 64 ? s[3] : s[2]) >> (d & 56));
  u32 first = back ? two : one, last = back ? one : two;
  float scale = group == 128 ? 0.08838834764831845f : group == 64 ? 0.125f : group == 32 ? 0.17677669529663687f
                : group == 16 ? 0.25f : 0.35355339059327373f;
#pragma unroll
  for (int i = 0; i < 8; i++)
    if (first >> i & 1) v[i] = -v[i];
#pragma unroll
  for (int h = 1; h < 8; h *= 2)
#pragma unroll
    for (int i = 0; i < 8; i++)
      if (!(i & h)) {
        float a = v[i], b = v[i + h];
        v[i] = fadd(a, b);
        v[i + h] = fadd(a, -b);
      }
#pragma unroll
  for (int h = 1; h < 16; h *= 2)
    if (8 * h < group)
#pragma unroll
      for (int i = 0; i < 8; i++) {
        float other = shfl_xor(v[i], h);
        v[i] = d >> 3 & h ? fadd(other, -v[i]) : fadd(v[i], other);
      }
#pragma unroll
  for (int i = 0; i < 8; i++) v[i] = fmul(v[i], last >> i & 1 ? -scale : scale);
}

// 8 bytes as halves.
DEV U4 halves8(U2 q, u32 scale) {
  u32 d = both_lo(scale), k = 0x64646464, less = 0xe480e480;
  q.x ^= 0x80808080;
  q.y ^= 0x80808080; // q+128 below the exponent of 1024: a half that is 1152 too large
  return {hmul2(hadd2(prmt(q.x, k, 0x4140), less), d), hmul2(hadd2(prmt(q.x, k, 0x4342), less), d),
          hmul2(hadd2(prmt(q.y, k, 0x4140), less), d), hmul2(hadd2(prmt(q.y, k, 0x4342), less), d)};
}
// 8 values of 3 or 4 bits as halves. scale: a half, of Q4_1 below the smallest value.
DEV U4 halves8(int type, u32 q, u32 scale) {
  u32 d = both_lo(scale), h[4];
  if (type == KV_Q4_0 || type == KV_Q4_1) {
#pragma unroll
    for (int i = 0; i < 4; i++) { // below the exponent of 1024
      u32 t = q >> (8 * i);
      h[i] = (t & 0xf) | (t << 12 & 0xf0000) | 0x64006400;
      h[i] = type == KV_Q4_0 ? hmul2(hadd2(h[i], 0xe408e408), d) : hfma2(hadd2(h[i], 0xe400e400), d, both_hi(scale));
    }
    return {h[0], h[1], h[2], h[3]};
  }
  u32 l0 = 0x556f64d0, l1 = 0xbbda941c, h0 = 0x2d2b2821, h1 = 0x3331302f; // bytes of the codebook's positive half
  if (type == KV_T3) { // as if of 4 bits: the codes that 3 bits do not have do not occur
    l0 = 0x1a8b357e, l1 = 0x00000000, h0 = 0x322f2c25, h1 = 0x00000000;
    u32 x = q & 0xffff, y = q >> 16;
    x = (x | x << 8) & 0x00ff00ff;
    x = (x | x << 4) & 0x0f0f0f0f;
    x = (x | x << 2) & 0x33333333;
    y = (y | y << 12) & 0x000f000f;
    y = (y | y << 6) & 0x03030303;
    y = (y | y << 3) & 0x11111111;
    q = x | y << 3 | (y ^ 0x11111111) << 2;
  }
  u32 minus = ~q & 0x88888888, at = (q ^ (minus - (minus >> 3))) & 0x77777777; // codes are symmetric
#pragma unroll
  for (int i = 0; i < 2; i++) {
    u32 sel = at >> (16 * i), sign = minus >> (16 * i), lo = prmt(l0, l1, sel), hi = prmt(h0, h1, sel);
    h[2 * i] = hmul2(prmt(lo, hi, 0x5140) | (sign << 12 & 0x8000) | (sign << 24 & 0x80000000), d);
    h[2 * i + 1] = hmul2(prmt(lo, hi, 0x7362) | (sign << 4 & 0x8000) | (sign << 16 & 0x80000000), d);
  }
  return {h[0], h[1], h[2], h[3]};
}

// One layer's place in a page.
struct KvPlace {
  int off;            // of its first head
  int head;           // bytes of a head
  int values;         // from a head's keys to its values
  int ktype, vtype;
  int kdim, vdim;
};

// What one block does at a time: some rows of one sequence, all of which split their pages alike, over a range of
// pages.
struct alignas(16) Item {
  int row, rows;   // of the batch
  int table;       // where the sequence's pages begin
  int p0, p1;      // pages
  int per;         // pages of a split, counted from page 0
  int fresh;       // first page that has slots of this step
  int base;        // tree: from this slot on every path has its own keys and values; otherwise the largest int
  int path, paths; // the paths of these rows
  int lo, hi;      // slots that all these rows see, whatever their path
};
// What a row sees: slots [lo, hi) of its own path, as if the path were the whole sequence.
struct alignas(16) Seen {
  int lo, hi;
  int part;           // its first partial result, or -1: one block has all its splits and writes the output
  int split0, splits; // its splits
  int path;           // or -1
  int base;           // as in Item
  int block;          // sparse attention: its block of queries
};
// The pages of a sequence that the rows of a step see, and how much of it there is.
struct Span {
  int table, first; // its pages: where they begin, and the first that is seen
  int pages, before; // how many are seen, and how many those of the spans before have
  int slots;        // tokens
  int means;        // its first block of keys among all
  int pad[2];
};
const int PATH = 64; // slots of a path: entry i is where slot base+i lies, or negative if nobody sees it

// Where the slot that path sees as s lies. One that nobody sees is any slot of the same page.
DEV int lies_at(const int* paths, int path, int base, int s) {
  int i = s - base;
  if (path < 0 || i < 0 || i >= PATH) return s;
  int at = paths[path * PATH + i];
  return at < 0 ? s : at;
}

// Where 8 values of a slot begin, d a multiple of 8 (F32, F16).
DEV u64 at_f32(int dim, int slot, int d) { return ((u64)slot * dim + d) * 4; }
DEV u64 at_f16(int dim, int slot, int d) {
  if (dim & 63) return ((u64)slot * dim + d) * 2;
  return (u64)(d >> 6) * 8192 + slot * 128 + ((((d >> 3) & 7) ^ (slot & 7)) << 4);
}
DEV void read8(float (&v)[8], const u8* p, int type, int dim, int slot, int d) {
  if (type == KV_F32) {
    load8(v, (const float*)(p + at_f32(dim, slot, d)));
  } else if (type == KV_F16) {
    U4 h = *(const U4*)(p + at_f16(dim, slot, d));
    v[0] = h2f(h.x); v[1] = h2f(h.x >> 16); v[2] = h2f(h.y); v[3] = h2f(h.y >> 16);
    v[4] = h2f(h.z); v[5] = h2f(h.z >> 16); v[6] = h2f(h.w); v[7] = h2f(h.w >> 16);
  } else if (type >= KV_Q4_0) {
    int qb = quant_bytes(type, dim);
    const u8 *row = p + slot * qb, *sc = p + 64 * qb + slot * scale_bytes(type, dim) + scale_at(type, d);
    u32 q = type == KV_T3 ? *(const u16*)(row + (d >> 2)) | (u32)row[(dim >> 2) + (d >> 3)] << 16
                          : *(const u32*)(row + (d >> 1));
    U4 h = halves8(type, q, type == KV_Q4_1 ? *(const u32*)sc : *(const u16*)sc);
    v[0] = h2f(h.x); v[1] = h2f(h.x >> 16); v[2] = h2f(h.y); v[3] = h2f(h.y >> 16);
    v[4] = h2f(h.z); v[5] = h2f(h.z >> 16); v[6] = h2f(h.w); v[7] = h2f(h.w >> 16);
  } else {
    float s = h2f(*(const u16*)(p + 64 * dim + (slot * (dim >> 5) + (d >> 5)) * 2));
    U2 q = *(const U2*)(p + (u64)slot * dim + d);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      v[i] = fmul(s, (float)(int)(signed char)(q.x >> (8 * i)));
      v[4 + i] = fmul(s, (float)(int)(signed char)(q.y >> (8 * i)));
    }
  }
}
// One value, for types and sizes that the tensor cores do not take.
DEV float read1(const u8* p, int type, int dim, int slot, int d) {
  if (type == KV_F32) return *(const float*)(p + at_f32(dim, slot, d));
  if (type == KV_F16) return h2f(*(const u16*)(p + at_f16(dim, slot, d & ~7) + (d & 7) * 2));
  if (type >= KV_Q4_0) {
    float v[8], x = 0;
    read8(v, p, type, dim, slot, d & ~7);
#pragma unroll
    for (int i = 0; i < 8; i++) x = i == (d & 7) ? v[i] : x;
    return x;
  }
  float s = h2f(*(const u16*)(p + 64 * dim + (slot * (dim >> 5) + (d >> 5)) * 2));
  return fmul(s, (float)(int)(signed char)p[(u64)slot * dim + d]);
}
