// Which blocks of keys a prompt attends to (backend.Sparse). A block of queries gives each block of keys a weight by the
// keys' mean; those that get enough of it are kept, for every query head by itself.
#include "attention.h"

// Rows of a step that are (a part of) a block of queries.
struct Queries {
  int row, rows;
  int first; // position of the first
  int n;     // which block of its sequence
  int all;   // blocks of the prompt
  int means; // its sequence's first block of keys
  int pad[2];
};

struct SparseArgs {
  const float* q;         // rotated if the keys are
  const int* count;       // after the number of pages: of blocks of keys, and of queries
  const Span* spans;
  const Queries* queries;
  const u64* pages;
  float* means;           // [block of keys][KV heads][kdim]
  float* weights;         // [block of queries][heads][words x 64][2]: largest exponent, and the sum relative to it
  u64* kept;              // [block of queries][heads][words]
  KvPlace at;
  int qstride, kvheads, group;
  int words, block, sink, window, last;
  float alpha, scale;     // scale: times log2(e)
};

// The mean keys of blocks, as the cache has them. A thread has 8 dimensions of some slots.
KERNEL(sparse_means, SparseArgs, a, 128, 1) {
  int kd = a.at.kdim, width = kd >> 3, teams = 128 / width, team = TID / width, d = TID % width * 8;
  u32 sums = saddr(smem); // [teams][kd]
  for (int u = BID; u < a.count[3] * a.kvheads; u += GDIM) {
    int n = u / a.kvheads, kv = u % a.kvheads;
    const Span* s = a.spans;
    while (n >= s->means + (s->slots + a.block - 1) / a.block) s++;
    int from = (n - s->means) * a.block, to = from + a.block < s->slots ? from + a.block : s->slots;
    float sum[8] = {};
    if (team < teams)
      for (int i = from + team; i < to; i += teams) {
        float v[8];
        read8(v, (const u8*)a.pages[s->table + (i >> 6)] + a.at.off + (u64)kv * a.at.head, a.at.ktype, kd, i & 63, d);
#pragma unroll
        for (int e = 0; e < 8; e++) sum[e] = fadd(sum[e], v[e]);
      }
    SYNC(); // nobody reads the sums of the unit before
    if (team < teams)
#pragma unroll
      for (int e = 0; e < 8; e++) sts_f(sums + (team * kd + d + e) * 4, sum[e]);
    SYNC();
    for (int i = TID; i < kd; i += 128) {
      float x = lds_f(sums + i * 4);
      for (int k = 1; k < teams; k++) x = fadd(x, lds_f(sums + (k * kd + i) * 4));
      a.means[((u64)n * a.kvheads + kv) * kd + i] = fdiv(x, (float)(to - from));
    }
  }
}

// The weights of 64 blocks of keys for a head of a block of queries. A thread has 4 rows and 4 blocks at a time; 16
// neighbouring threads have the same blocks.
KERNEL(sparse_weights, SparseArgs, a, 256, 1) {
  const int STEP = 36; // values from one row to the next in shared memory: 32, and the next row in other banks
  if (BIDZ >= a.count[4]) return;
  Queries b = a.queries[BIDZ];
  int n0 = BID * 64, head = BIDY, kd = a.at.kdim, x = TID & 15, y = TID >> 4, heads = a.kvheads * a.group;
  if (n0 > b.n) return;
  u32 qs = saddr(smem), ks = qs + 64 * STEP * 4;
  const float* q = a.q + (u64)b.row * a.qstride + head * kd;
  const float* means = a.means + ((u64)(b.means + n0) * a.kvheads + head / a.group) * kd;
  float top[4] = {NOTHING, NOTHING, NOTHING, NOTHING}, sum[4] = {};
  for (int r0 = 0; r0 < b.rows; r0 += 64) {
    float z[4][4] = {};
    for (int d0 = 0; d0 < kd; d0 += 32) {
      SYNC();
#pragma unroll
      for (int i = TID; i < 512; i += 256) {
        int r = i >> 3, d = (i & 7) * 4;
        U4 u = {}, v = {};
        if (d0 + d < kd && r0 + r < b.rows) u = *(const U4*)(q + (u64)(r0 + r) * a.qstride + d0 + d);
        if (d0 + d < kd && n0 + r <= b.n) v = *(const U4*)(means + (u64)r * a.kvheads * kd + d0 + d);
        sts128(qs + (r * STEP + d) * 4, u);
        sts128(ks + (r * STEP + d) * 4, v);
      }
      SYNC();
#pragma unroll 2
      for (int d = 0; d < 32; d += 4) {
        U4 u[4], v[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
          u[i] = lds128(qs + ((x + 16 * i) * STEP + d) * 4);
          v[i] = lds128(ks + ((y + 16 * i) * STEP + d) * 4);
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
          for (int k = 0; k < 4; k++) {
            z[i][k] = ffma(bits_f(u[i].x), bits_f(v[k].x), z[i][k]);
            z[i][k] = ffma(bits_f(u[i].y), bits_f(v[k].y), z[i][k]);
            z[i][k] = ffma(bits_f(u[i].z), bits_f(v[k].z), z[i][k]);
            z[i][k] = ffma(bits_f(u[i].w), bits_f(v[k].w), z[i][k]);
          }
      }
    }
#pragma unroll
    for (int k = 0; k < 4; k++) {
      int end = (n0 + y + 16 * k + 1) * a.block; // a row counts for the blocks that it sees all of
      float most = NOTHING, part = 0;
#pragma unroll
      for (int i = 0; i < 4; i++) {
        int r = r0 + x + 16 * i;
        z[i][k] = r < b.rows && b.first + r >= end - 1 ? fmul(z[i][k], a.scale) : NOTHING;
        most = fmax_(most, z[i][k]);
      }
#pragma unroll
      for (int i = 1; i < 16; i *= 2) most = fmax_(most, shfl_xor(most, i));
#pragma unroll
      for (int i = 0; i < 4; i++)
        if (z[i][k] > 0.1f * NOTHING) part = fadd(part, ex2(fadd(z[i][k], -most)));
#pragma unroll
      for (int i = 1; i < 16; i *= 2) part = fadd(part, shfl_xor(part, i));
      float f, g;
      take_in(top[k], sum[k], most, part, f, g);
    }
  }
  float* out = a.weights + (((u64)BIDZ * heads + head) * a.words * 64 + n0) * 2;
  if (x == 0)
#pragma unroll
    for (int k = 0; k < 4; k++) {
      out[(y + 16 * k) * 2] = top[k];
      out[(y + 16 * k) * 2 + 1] = sum[k];
    }
}

// Which blocks are kept. The first one and the queries' own always are: attention begins and ends with them.
KERNEL(sparse_keep, SparseArgs, a, 128, 1) {
  if (BID >= a.count[4]) return;
  Queries b = a.queries[BID];
  int head = BIDY, warp = TID >> 5, lane = TID & 31;
  u64 at = (u64)BID * (a.kvheads * a.group) + head;
  const float* w = a.weights + at * a.words * 128;
  u32 s = saddr(smem); // [2][4]
  float most = NOTHING, heavy = 0;
  for (int n = TID; n <= b.n; n += 128) most = fmax_(most, w[2 * n]);
  most = warp_max(most);
  if (lane == 0) sts_f(s + warp * 4, most);
  SYNC();
  for (int i = 0; i < 4; i++) most = fmax_(most, lds_f(s + i * 4));
  for (int n = TID; n <= b.n; n += 128) heavy = fmax_(heavy, fmul(w[2 * n + 1], ex2(fadd(w[2 * n], -most))));
  heavy = warp_max(heavy);
  if (lane == 0) sts_f(s + 16 + warp * 4, heavy);
  SYNC();
  for (int i = 0; i < 4; i++) heavy = fmax_(heavy, lds_f(s + 16 + i * 4));
  for (int i = warp; i < a.words; i += 4) {
    u64 bits = 0;
    for (int half = 0; half < 2; half++) {
      int n = i * 64 + half * 32 + lane;
      bool keep = n == 0 || n == b.n || n < a.sink || b.n - n < a.window || b.n >= b.all - a.last;
      if (n <= b.n && !keep) keep = fmul(w[2 * n + 1], ex2(fadd(w[2 * n], -most))) >= fmul(a.alpha, heavy);
      bits |= (u64)ballot(n <= b.n && keep) << (32 * half);
    }
    if (lane == 0) a.kept[at * a.words + i] = bits;
  }
}
