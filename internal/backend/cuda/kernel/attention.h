// Attention over the pages of the cache: what the kernels share. attend.h has the one for tensor cores, flash.h the
// one for Hopper.
//
// The pages a row sees are cut into splits; how long they are depends on what that row sees alone. A split is
// computed page by page with a running maximum m, a sum l of exponentials and weighted sums o of values; splits are
// then added in order. Both are always the same operations in the same order: whether one block has all splits of a
// row (and adds as it goes, in the output) or each split has a block of its own (and `merge` adds) changes no bit,
// nor does what other rows of the batch see.
//
// In a tree every row sees its own path. The pages before the tree are common to all rows; the last ones are put
// together for every path from the slots of its rows, in the order a plain sequence would have them. So a row of a
// tree has the bits of the chain that leads to it.
#pragma once
#include "splits.h"

struct Attn {
  const float* q;      // [row][heads][kdim]
  float* out;          // [row][heads][vdim]
  const int* items;    // how many, padded to the size of an item; then items
  const Seen* seen;    // [row]
  const u64* pages;    // addresses
  const int* paths;    // [path][PATH]
  float* part;         // [partial result][heads][vdim]
  float* ml;           // [partial result][heads][2]
  const float* sinks;  // [heads] or null
  int qstride, ostride;
  KvPlace at;
  int kvheads, group;  // group: query heads of a KV head
  int chunk, chunks;   // query heads a block has, and blocks of a KV head
  int ring, unit;      // copies in flight, and the bytes of one
  float scale;         // times log2(e)
  const u64* kept;     // sparse: a bit for each block of keys [block of queries][heads][words]; null: all are seen
  int words, block;    // tokens of a block
};

// Weights are exp2(x*scale - z), with x the score of a key and z the largest x*scale so far: one operation before the
// exponential, and results below 2^-126 are zero. A key that is not seen has the score NOTHING, which gives zero.
DEV bool none_seen(float top) { return !(top > 0.1f * NOTHING); }
DEV float exponent(float top, float scale) { return none_seen(top) ? NOTHING : fmul(top, scale); }
DEV float weight(float x, float scale, float z) { return ex2z(ffma(x, scale, -z)); }

// Query heads that chunk y of a KV head has.
DEV int heads_of(const Attn& a, int y) {
  int left = a.group - y * a.chunk;
  return left < a.chunk ? left : a.chunk;
}

// The page that follows p among those that a head of a row's block of queries sees, or p1. Blocks are whole pages.
DEV int next_page(const Attn& a, int row, int head, int p, int p1) {
  int pages = a.block >> 6;
  p++;
  if (!a.kept || p >= p1 || p % pages) return p;
  const u64* bits = a.kept + ((u64)a.seen[row].block * (a.kvheads * a.group) + head) * a.words;
  int n = p / pages;
  while (n * pages < p1) {
    u64 rest = bits[n >> 6] >> (n & 63);
    if (rest) {
      n += __builtin_ctzll(rest);
      break;
    }
    n = (n | 63) + 1;
  }
  return n * pages < p1 ? n * pages : p1;
}
// Whether such a head sees a slot.
DEV bool sees(const Attn& a, const Seen& r, int head, int slot) {
  if (!a.kept) return true;
  int n = slot / a.block;
  return a.kept[((u64)r.block * (a.kvheads * a.group) + head) * a.words + (n >> 6)] >> (n & 63) & 1;
}

// A walk over what a block reads: pages, and from the item's base on every page once per path.
struct Walk {
  int p, k;
  DEV_M int paths(const Item& it) const { return p >= it.base >> 6 ? it.paths : 1; }
  DEV_M bool gathered(const Item& it) const { return p >= it.base >> 6; }
  DEV_M void next(const Attn& a, const Item& it, int head) {
    if (++k == paths(it)) {
      k = 0;
      p = next_page(a, it.row, head, p, it.p1);
    }
  }
};
// Whether the split ends with page p, which `next` follows.
DEV bool split_ends(const Item& it, int p, int next) { return next >= it.p1 || next / it.per != p / it.per; }
