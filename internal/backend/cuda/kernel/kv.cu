// Writing keys and values to their slots, and moving slots.
// also for sm_90
#include "kv.h"

struct WriteAt {
  u8* page;
  int slot, pad;
};

DEV void in_any8(float (&v)[8], const In& s, int tok, int c, bool aligned) {
  if (aligned) {
    in8(v, s, tok, c);
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; i++) v[i] = in1(s, tok, c + i);
}

struct KvWriteArgs {
  In k, v;
  const WriteAt* at;
  KvPlace to;
  int heads;
};
// A block per row.
KERNEL(kv_write, KvWriteArgs, a, 128, 1) {
  pdl_launch();
  pdl_wait();
  int row = BID, kc = a.heads * a.to.kdim >> 3, all = kc + (a.heads * a.to.vdim >> 3);
  WriteAt at = a.at[row];
  bool ka = in_aligned(a.k, 8), va = in_aligned(a.v, 8);
  for (int first = TID & ~31; first < all; first += 128) { // whole warps: lanes share scales
    int i = first + (TID & 31);
    bool in = i < all;
    if (!in) i = all - 1;
    bool key = i < kc;
    int c = (key ? i : i - kc) * 8, dim = key ? a.to.kdim : a.to.vdim, h = c / dim;
    float v[8];
    in_any8(v, key ? a.k : a.v, row, c, key ? ka : va);
    float most = most32(v);
    u8* p = at.page + a.to.off + (u64)h * a.to.head + (key ? 0 : a.to.values);
    write8(p, key ? a.to.ktype : a.to.vtype, dim, at.slot, c - h * dim, v, most, in);
  }
}

struct QkvArgs {
  In q, k, v;
  const WriteAt* at;
  const float *qw, *kw;   // weights of the norms of heads, or null: no norm
  const float *cos, *sin; // [row][half], or null: no rotation
  float* out;             // queries
  KvPlace to;
  int heads, kvheads;
  int qstep, kstep, vstep; // from one head to the next
  int half;                // pairs (i, i+half) are rotated
  int turn;                // values from one row of cos and sin to the next
  int ostride;
  int vnorm;               // values are normalised, without weights
  float eps;
};
// What stands between the products and attention: a warp per head of a row. Queries, keys: norm, rotation; values:
// norm or nothing. A block has 4 heads of a row; dimensions up to 512.
KERNEL(qkv_write, QkvArgs, a, 128, 1) {
  pdl_launch();
  pdl_wait();
  int warp = TID >> 5, lane = TID & 31, row = BID, u = BIDY * 4 + warp;
  int what = u < a.heads ? 0 : u < a.heads + a.kvheads ? 1 : 2;
  int h = what == 0 ? u : what == 1 ? u - a.heads : u - a.heads - a.kvheads;
  if (h >= a.kvheads && what == 2) return; // no head is left for this warp
  int dim = what == 2 ? a.to.vdim : a.to.kdim;
  const In& in = what == 0 ? a.q : what == 1 ? a.k : a.v;
  int from = h * (what == 0 ? a.qstep : what == 1 ? a.kstep : a.vstep);
  const float* w = what == 0 ? a.qw : what == 1 ? a.kw : nullptr;
  bool norm = what == 2 ? a.vnorm != 0 : w != nullptr, aligned = in_aligned(in, 8) && from % 8 == 0;
  float v[2][8], ss = 0;
#pragma unroll
  for (int k = 0; k < 2; k++) {
    int d = (lane + 32 * k) * 8;
#pragma unroll
    for (int i = 0; i < 8; i++) v[k][i] = 0;
    if (d < dim) in_any8(v[k], in, row, from + d, aligned);
#pragma unroll
    for (int i = 0; i < 8; i++) ss = ffma(v[k][i], v[k][i], ss);
  }
  ss = warp_sum(ss);
  if (norm) {
    float s = fdiv(1.f, sqrt_(fadd(fdiv(ss, (float)dim), a.eps)));
#pragma unroll
    for (int k = 0; k < 2; k++)
#pragma unroll
      for (int i = 0; i < 8; i++) {
        int d = (lane + 32 * k) * 8 + i;
        v[k][i] = fmul(v[k][i], s);
        if (w && d < dim) v[k][i] = fmul(v[k][i], w[d]);
      }
  }
  if (what < 2 && a.cos) { // partners of a pair belong to different lanes
    u32 buf = saddr(smem) + warp * a.to.kdim * 4;
#pragma unroll
    for (int k = 0; k < 2; k++)
#pragma unroll
      for (int i = 0; i < 8; i++) {
        int d = (lane + 32 * k) * 8 + i;
        if (d < dim) sts_f(buf + d * 4, v[k][i]);
      }
    syncwarp();
    const float *cs = a.cos + (u64)row * a.turn, *sn = a.sin + (u64)row * a.turn;
#pragma unroll
    for (int k = 0; k < 2; k++)
#pragma unroll
      for (int i = 0; i < 8; i++) {
        int d = (lane + 32 * k) * 8 + i;
        if (d < a.half) v[k][i] = fadd(fmul(v[k][i], cs[d]), -fmul(lds_f(buf + (d + a.half) * 4), sn[d]));
        else if (d < 2 * a.half)
          v[k][i] = fadd(fmul(lds_f(buf + (d - a.half) * 4), sn[d - a.half]), fmul(v[k][i], cs[d - a.half]));
      }
  }
  WriteAt at = a.at[row];
#pragma unroll
  for (int k = 0; k < 2; k++) {
    int d = (lane + 32 * k) * 8;
    float most = most32(v[k]);
    if (d < dim && what == 0) store8(a.out + (u64)row * a.ostride + h * dim + d, v[k]);
    u8* p = at.page + a.to.off + (u64)h * a.to.head + (what == 2 ? a.to.values : 0);
    if (what > 0) write8(p, what == 1 ? a.to.ktype : a.to.vtype, dim, at.slot, d, v[k], most, d < dim);
  }
}

struct Move {
  u8* to;
  const u8* from; // pages
  int dst, src;   // slots
};
struct Strip { // the same bytes of every slot
  int off;     // in a page
  int bytes;   // of a slot, slots following each other; 0: 128 bytes in chunks as F16 lies
};
struct MoveArgs {
  const Move* moves;
  const Strip* strips;
  int nmoves, nstrips;
};
// A warp per strip. A thread makes all moves of its bytes, in order.
KERNEL(kv_move, MoveArgs, a, 128, 1) {
  pdl_launch();
  pdl_wait();
  int strip = BID * 4 + (TID >> 5), lane = TID & 31;
  if (strip >= a.nstrips) return;
  Strip s = a.strips[strip];
  if (!s.bytes) {
    for (int i = 0; i < a.nmoves; i++) {
      Move m = a.moves[i];
      const u8* from = m.from + s.off + m.src * 128 + (((lane >> 2) ^ (m.src & 7)) << 4) + (lane & 3) * 4;
      *(u32*)(m.to + s.off + m.dst * 128 + (((lane >> 2) ^ (m.dst & 7)) << 4) + (lane & 3) * 4) = *(const u32*)from;
    }
    return;
  }
  for (int b = lane * 2; b < s.bytes; b += 64)
    for (int i = 0; i < a.nmoves; i++) {
      Move m = a.moves[i];
      *(u16*)(m.to + s.off + m.dst * s.bytes + b) = *(const u16*)(m.from + s.off + m.src * s.bytes + b);
    }
}
