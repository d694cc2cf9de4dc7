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
#pragma once
#include "common.h"

enum { KV_F32, KV_F16, KV_Q8 };

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
  int pad;
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
  float s = h2f(*(const u16*)(p + 64 * dim + (slot * (dim >> 5) + (d >> 5)) * 2));
  return fmul(s, (float)(int)(signed char)p[(u64)slot * dim + d]);
}

// Values are bounded when they are written: a slot that nobody sees is multiplied by zero, which must give zero. What
// a scale of Q8_0 can say is a little less than a half can.
DEV float bounded(float v, float most) { return fmax_(-most, fmin_(v, most)); } // NaN loses
DEV void write8(u8* p, int type, int dim, int slot, int d, const float (&v)[8], float most_of_32, bool in) {
  if (!in) return;
  if (type == KV_F32) {
    store8((float*)(p + at_f32(dim, slot, d)), v);
  } else if (type == KV_F16) {
    float b[8];
#pragma unroll
    for (int i = 0; i < 8; i++) b[i] = bounded(v[i], 65504.f);
    U4 h = {f2h2(b[0], b[1]), f2h2(b[2], b[3]), f2h2(b[4], b[5]), f2h2(b[6], b[7])};
    *(U4*)(p + at_f16(dim, slot, d)) = h;
  } else {
    float scale = fdiv(most_of_32, 127.f), inv = scale != 0.f ? fdiv(1.f, scale) : 0.f;
    u32 q[8];
#pragma unroll
    for (int i = 0; i < 8; i++) { // halves are rounded away from zero
      float x = fmul(bounded(v[i], 65024.f), inv);
      q[i] = (u32)(int)(x < 0.f ? fadd(x, -0.5f) : fadd(x, 0.5f)) & 255;
    }
    U2 w = {q[0] | q[1] << 8 | q[2] << 16 | q[3] << 24, q[4] | q[5] << 8 | q[6] << 16 | q[7] << 24};
    *(U2*)(p + (u64)slot * dim + d) = w;
    if (!(d & 31)) *(u16*)(p + 64 * dim + (slot * (dim >> 5) + (d >> 5)) * 2) = (u16)f2h(scale);
  }
}
// The largest of 32 values, 8 in each of four neighbouring lanes: what the scale of a block is made from.
DEV float most32(const float (&v)[8]) {
  float m = 0;
#pragma unroll
  for (int i = 0; i < 8; i++) m = fmax_(m, fabs_(bounded(v[i], 65024.f)));
  m = fmax_(m, shfl_xor(m, 1));
  return fmax_(m, shfl_xor(m, 2));
}
