// Writing keys and values to their slots, unpacking them, and moving slots.
// also for sm_90
#include "kv.h"

struct WriteAt {
  u8* page;
  int slot, pad;
};

DEV void in_any8(float (&v)[8], const In& s, int tok, int c, int pieces, bool aligned) {
  if (aligned) {
    in8(v, s, tok, c, pieces);
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; i++) v[i] = in1(s, tok, c + i);
}

// Values are bounded when they are written: a slot that nobody sees is multiplied by zero, which must give zero. What
// the scales of blocks can say is a little less than a half can.
DEV float bounded(float v, float most) { return fmax_(-most, fmin_(v, most)); } // NaN loses
// The largest of 32 values, 8 in each of four neighbouring lanes.
DEV float most32(float m) {
  m = fmax_(m, shfl_xor(m, 1));
  return fmax_(m, shfl_xor(m, 2));
}
DEV u32 code(float x, int most) { return x > 0.f ? (u32)(x < (float)most ? (int)x : most) : 0; }

// Chooses codes of 3 or 4 bits for 8 values of a group of 128 that is n long, and adds up their squares.
template <int N>
DEV u32 choose(const float (&v)[8], float n, const float (&codes)[N], const float (&edges)[N - 1], u32 (&k)[8],
               float& squares) {
  u32 all = 0;
#pragma unroll
  for (int i = 0; i < 8; i++) {
    float x = n > 0.f ? fdiv(v[i], n) : 0.f, c = codes[0];
    k[i] = 0;
#pragma unroll
    for (int e = 0; e < N - 1; e++)
      if (x >= edges[e]) {
        k[i] = e + 1;
        c = codes[e + 1];
      }
    squares = ffma(c, c, squares);
    all |= k[i] << (4 * i);
  }
  return all;
}
DEV float sum128(float x) { // of 16 neighbouring lanes
#pragma unroll
  for (int h = 1; h < 16; h *= 2) x = fadd(x, shfl_xor(x, h));
  return x;
}

// Writes 8 values of a row, together with the lanes that have its others: all lanes of a warp take part, each with a
// chunk of 8 of the same type, neighbours in order.
DEV void write8(u8* p, int type, bool key, int dim, int slot, int d, float (&v)[8], bool in) {
  if (type == KV_F32) {
    if (in) store8((float*)(p + at_f32(dim, slot, d)), v);
    return;
  }
  if (type == KV_F16) {
    float b[8];
#pragma unroll
    for (int i = 0; i < 8; i++) b[i] = bounded(v[i], 65504.f);
    U4 h = {f2h2(b[0], b[1]), f2h2(b[2], b[3]), f2h2(b[4], b[5]), f2h2(b[6], b[7])};
    if (in) *(U4*)(p + at_f16(dim, slot, d)) = h;
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; i++) v[i] = bounded(v[i], 65024.f);
  if (key ? turns_keys(type) : turns_values(type)) {
    rotate8(v, d, turned(dim), false);
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = bounded(v[i], 65024.f);
  }
  int qb = quant_bytes(type, dim);
  u8 *row = p + slot * qb, *sc = p + 64 * qb + slot * scale_bytes(type, dim) + scale_at(type, d);
  if (type == KV_Q8) {
    float m = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) m = fmax_(m, fabs_(v[i]));
    float scale = fdiv(most32(m), 127.f), inv = scale != 0.f ? fdiv(1.f, scale) : 0.f;
    u32 q[8];
#pragma unroll
    for (int i = 0; i < 8; i++) { // halves are rounded away from zero
      float x = fmul(v[i], inv);
      q[i] = (u32)(int)(x < 0.f ? fadd(x, -0.5f) : fadd(x, 0.5f)) & 255;
    }
    U2 w = {q[0] | q[1] << 8 | q[2] << 16 | q[3] << 24, q[4] | q[5] << 8 | q[6] << 16 | q[7] << 24};
    if (in) *(U2*)(row + d) = w;
    if (in && !(d & 31)) *(u16*)sc = (u16)f2h(scale);
    return;
  }
  u32 q = 0;
  if (type == KV_Q4_0) { // the scale gives the largest value, of several the first, the code 0
    float m = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) m = fmax_(m, fabs_(v[i]));
    m = most32(m);
    u32 first = 99; // where the largest value is, and its sign
#pragma unroll
    for (int i = 7; i >= 0; i--)
      if (fabs_(v[i]) == m) first = ((d & 31) | i) * 2 + (v[i] < 0.f);
#pragma unroll
    for (int h = 1; h < 4; h *= 2) {
      u32 other = shfl_xor(first, h);
      first = other < first ? other : first;
    }
    float scale = fdiv(first & 1 ? m : -m, 8.f);
    u32 s = f2h(scale);
    if (s & 0x7fff) {
#pragma unroll
      for (int i = 0; i < 8; i++) q |= code(fadd(fdiv(v[i], scale), 8.5f), 15) << (4 * i);
    } else s = 0;
    if (in && !(d & 31)) *(u16*)sc = (u16)s;
    if (in) *(u32*)(row + (d >> 1)) = q;
    return;
  }
  if (type == KV_Q4_1) {
    float lo = v[0], hi = v[0];
#pragma unroll
    for (int i = 1; i < 8; i++) lo = fmin_(lo, v[i]), hi = fmax_(hi, v[i]);
    lo = -most32(-lo), hi = most32(hi);
    float scale = fdiv(fadd(hi, -lo), 15.f);
    u32 s = f2h(scale);
    if (s) {
#pragma unroll
      for (int i = 0; i < 8; i++) q |= code(fadd(fdiv(fadd(v[i], -lo), scale), 0.5f), 15) << (4 * i);
    }
    if (in && !(d & 31)) *(u32*)sc = s | f2h(lo) << 16;
    if (in) *(u32*)(row + (d >> 1)) = q;
    return;
  }
  float n = 0, squares = 0;
#pragma unroll
  for (int i = 0; i < 8; i++) n = ffma(v[i], v[i], n);
  n = sqrt_(sum128(n));
  u32 k[8];
  if (type == KV_T4) {
    const float codes[16] = {-0.241556f, -0.182907f, -0.143047f, -0.111065f, -0.083317f, -0.058069f, -0.034311f,
                             -0.011353f, 0.011353f, 0.034311f, 0.058069f, 0.083317f, 0.111065f, 0.143047f, 0.182907f,
                             0.241556f};
    const float edges[15] = {-0.2122315f, -0.162977f, -0.127056f, -0.097191f, -0.070693f, -0.04619f, -0.022832f, 0.f,
                             0.022832f, 0.04619f, 0.070693f, 0.097191f, 0.127056f, 0.162977f, 0.2122315f};
    q = choose(v, n, codes, edges, k, squares);
  } else {
    const float codes[8] = {-0.190685f, -0.117832f, -0.065717f, -0.021460f, 0.021460f, 0.065717f, 0.117832f, 0.190685f};
    const float edges[7] = {-0.154259f, -0.091775f, -0.043589f, 0.f, 0.043589f, 0.091775f, 0.154259f};
    choose(v, n, codes, edges, k, squares);
#pragma unroll
    for (int i = 0; i < 8; i++) q |= (k[i] & 3) << (2 * i) | k[i] >> 2 << (16 + i);
  }
  u32 s = f2h(fmin_(fdiv(n, sqrt_(sum128(squares))), 65504.f));
  if (!s) q = 0;
  if (!in) return;
  if (!(d & 127)) *(u16*)sc = (u16)s;
  if (type == KV_T4) {
    *(u32*)(row + (d >> 1)) = q;
  } else {
    *(u16*)(row + (d >> 2)) = (u16)q;
    row[(dim >> 2) + (d >> 3)] = (u8)(q >> 16);
  }
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
  int row = BID;
  WriteAt at = a.at[row];
  for (int key = 1; key >= 0; key--) {
    const In& src = key ? a.k : a.v;
    int dim = key ? a.to.kdim : a.to.vdim, type = key ? a.to.ktype : a.to.vtype, all = a.heads * dim >> 3;
    bool aligned = in_aligned(src, 8);
    for (int first = TID & ~31; first < all; first += 128) { // whole warps: lanes share scales and rotations
      int i = first + (TID & 31), c = i * 8, h = c / dim;
      float v[8] = {};
      if (i < all) in_any8(v, src, row, c, in_pieces(src, c), aligned);
      u8* p = at.page + a.to.off + (u64)h * a.to.head + (key ? 0 : a.to.values);
      write8(p, type, key, dim, at.slot, c - h * dim, v, i < all);
    }
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

enum { QUERY, KEY, VALUE };
// A head of a row, by a warp: queries, keys: norm, rotation; values: norm or nothing. Lane l has 8 dimensions from 8l on
// and, if there are more than 256, from 256+8l on. What no kernel of the step writes is asked for by aim, before waiting.
struct Head {
  static const int K = 2;
  int dim, from, row, pieces[K];
  In in;
  bool norm, turns;
  float w[K][8];
  DEV_M void aim(const QkvArgs& a, int row_, int what, int h) {
    row = row_;
    dim = what == VALUE ? a.to.vdim : a.to.kdim;
    in = what == QUERY ? a.q : what == KEY ? a.k : a.v;
    from = h * (what == QUERY ? a.qstep : what == KEY ? a.kstep : a.vstep);
    const float* by = what == QUERY ? a.qw : what == KEY ? a.kw : nullptr;
    norm = what == VALUE ? a.vnorm != 0 : by != nullptr;
    turns = what != VALUE && a.cos;
#pragma unroll
    for (int k = 0; k < K; k++) {
      int d = ((TID & 31) + 32 * k) * 8;
      pieces[k] = in_pieces(in, from + d);
#pragma unroll
      for (int i = 0; i < 8; i++) w[k][i] = by && d + i < dim ? by[d + i] : 1.f;
    }
  }
  // v: the values. buf: memory for the head, since partners of a pair belong to different lanes. Everything is asked for
  // before the first value is used.
  DEV_M void make(const QkvArgs& a, float (&v)[K][8], u32 buf) const {
    int lane = TID & 31;
    bool aligned = in_aligned(in, 8) && from % 8 == 0;
    float cs[K][8], sn[K][8], ss = 0;
#pragma unroll
    for (int k = 0; k < K; k++)
#pragma unroll
      for (int i = 0; i < 8; i++) {
        int d = (lane + 32 * k) * 8 + i;
        if (!turns || d >= 2 * a.half) continue;
        u64 at = (u64)row * a.turn + (d < a.half ? d : d - a.half);
        cs[k][i] = a.cos[at];
        sn[k][i] = a.sin[at];
      }
#pragma unroll
    for (int k = 0; k < K; k++) {
      int d = (lane + 32 * k) * 8;
#pragma unroll
      for (int i = 0; i < 8; i++) v[k][i] = 0;
      if (d < dim) in_any8(v[k], in, row, from + d, pieces[k], aligned);
#pragma unroll
      for (int i = 0; i < 8; i++) ss = ffma(v[k][i], v[k][i], ss);
    }
    ss = warp_sum(ss);
    if (norm) {
      float s = fdiv(1.f, sqrt_(fadd(fdiv(ss, (float)dim), a.eps)));
#pragma unroll
      for (int k = 0; k < K; k++)
#pragma unroll
        for (int i = 0; i < 8; i++) v[k][i] = fmul(fmul(v[k][i], s), w[k][i]);
    }
    if (!turns) return;
#pragma unroll
    for (int k = 0; k < K; k++)
#pragma unroll
      for (int i = 0; i < 8; i++) {
        int d = (lane + 32 * k) * 8 + i;
        if (d < 2 * a.half) sts_f(buf + d * 4, v[k][i]);
      }
    syncwarp();
#pragma unroll
    for (int k = 0; k < K; k++)
#pragma unroll
      for (int i = 0; i < 8; i++) {
        int d = (lane + 32 * k) * 8 + i;
        if (d < a.half) v[k][i] = fadd(fmul(v[k][i], cs[k][i]), -fmul(lds_f(buf + (d + a.half) * 4), sn[k][i]));
        else if (d < 2 * a.half)
          v[k][i] = fadd(fmul(lds_f(buf + (d - a.half) * 4), sn[k][i]), fmul(v[k][i], cs[k][i]));
      }
  }
};
// What stands between the products and attention: a warp per head of a row. A block has 4 heads of a row; dimensions
// up to 512.
template <bool FLOATS> DEV void qkv(const QkvArgs& a) {
  pdl_launch();
  int warp = TID >> 5, lane = TID & 31, row = BID, u = BIDY * 4 + warp;
  int what = u < a.heads ? QUERY : u < a.heads + a.kvheads ? KEY : VALUE;
  int h = what == QUERY ? u : what == KEY ? u - a.heads : u - a.heads - a.kvheads;
  bool live = h < a.kvheads || what != VALUE; // or no head is left for this warp
  Head head;
  WriteAt at = a.at[row];
  if (live) head.aim(a, row, what, h);
  pdl_wait();
  if (!live) return;
  float v[2][8];
  head.make(a, v, saddr(smem) + warp * a.to.kdim * 4);
  int dim = head.dim;
#pragma unroll 1 // what is written is long
  for (int k = 0; k * 256 < dim; k++) {
    float o[8];
#pragma unroll
    for (int i = 0; i < 8; i++) o[i] = k ? v[1][i] : v[0][i];
    int d = (lane + 32 * k) * 8;
    if (d < dim && what == QUERY) store8(a.out + (u64)row * a.ostride + h * dim + d, o);
    u8* p = at.page + a.to.off + (u64)h * a.to.head + (what == VALUE ? a.to.values : 0);
    int type = what == KEY ? a.to.ktype : a.to.vtype;
    if (FLOATS && type != KV_F32) type = KV_F16;
    if (what != QUERY) write8(p, type, what == KEY, dim, at.slot, d, o, d < dim);
  }
}
KERNEL(qkv_write, QkvArgs, a, 128, 1) { qkv<false>(a); }
// Into a cache of floats, without the code for other types: instructions have to be fetched first.
KERNEL(qkv_write_floats, QkvArgs, a, 128, 1) { qkv<true>(a); }

// 8 values of a slot as they are stored, and their scale.
struct Stored8 {
  U4 q; // of F16 all of it
  u32 scale;
};
template <int TYPE> DEV Stored8 stored8(const u8* p, int dim, int slot, int d) {
  Stored8 x = {};
  if (TYPE == KV_F16) {
    x.q = *(const U4*)(p + at_f16(dim, slot, d));
    return x;
  }
  int qb = quant_bytes(TYPE, dim);
  const u8 *row = p + slot * qb, *sc = p + 64 * qb + slot * scale_bytes(TYPE, dim) + scale_at(TYPE, d);
  if (TYPE == KV_Q8) {
    U2 q = *(const U2*)(row + d);
    x.q.x = q.x, x.q.y = q.y;
  } else if (TYPE == KV_T3) x.q.x = *(const u16*)(row + (d >> 2)) | (u32)row[(dim >> 2) + (d >> 3)] << 16;
  else x.q.x = *(const u32*)(row + (d >> 1));
  x.scale = TYPE == KV_Q4_1 ? *(const u32*)sc : *(const u16*)sc;
  return x;
}
// Unpacks the keys or the values of a head of a page to halves as F16 lies; 256 threads. The type is a constant, so
// that nothing stands between the loads.
template <int TYPE> DEV void unpack_part(u8* dst, const u8* src, int dim) {
  const int B = 4; // loads of a thread in flight
  int n = dim * 8; // chunks of 8 values, in the order they are written
  for (int i0 = TID; i0 < n; i0 += 256 * B) {
    Stored8 x[B];
#pragma unroll
    for (int b = 0; b < B; b++) {
      int i = i0 + 256 * b;
      if (i < n) x[b] = stored8<TYPE>(src, dim, i >> 3 & 63, (i >> 9) * 64 + (i & 7) * 8);
    }
#pragma unroll
    for (int b = 0; b < B; b++) {
      int i = i0 + 256 * b;
      if (i >= n) continue;
      U4 h = x[b].q;
      if (TYPE == KV_Q8) h = halves8({h.x, h.y}, x[b].scale);
      else if (TYPE != KV_F16) h = halves8(TYPE, h.x, x[b].scale);
      *(U4*)(dst + at_f16(dim, i >> 3 & 63, (i >> 9) * 64 + (i & 7) * 8)) = h;
    }
  }
}

struct UnpackArgs {
  const int* count; // the third number: pages of all spans
  const Span* spans;
  const u64* pages;
  u64* unpacked;    // addresses of the pages of halves, in the places of those they come from
  u8* to;           // these pages
  KvPlace at;
  int heads;
};
// Unpacks all pages that the rows of a step see, to pages of halves of this layer alone. Head sizes are multiples of 64
// and the same for keys and values.
KERNEL(kv_unpack, UnpackArgs, a, 256, 1) {
  pdl_launch();
  pdl_wait();
  int dim = a.at.kdim, each = 2 * a.heads, units = a.count[2] * each;
  for (int u = BID; u < units; u += GDIM) {
    int page = u / each, head = u % each >> 1;
    bool key = !(u & 1);
    const Span* s = a.spans;
    while (page >= s->before + s->pages) s++;
    int p = s->table + s->first + page - s->before, type = key ? a.at.ktype : a.at.vtype;
    u8* to = a.to + (u64)page * each * 128 * dim;
    // Spans of one sequence, or of some that share pages in a table, write other addresses of the same contents.
    if (u % each == 0 && TID == 0) __atomic_store_n(a.unpacked + p, (u64)to, __ATOMIC_RELAXED);
    const u8* src = (const u8*)a.pages[p] + a.at.off + (u64)head * a.at.head + (key ? 0 : a.at.values);
    to += (u64)(u % each) * 128 * dim;
    switch (type) {
    case KV_F16: unpack_part<KV_F16>(to, src, dim); break;
    case KV_Q8: unpack_part<KV_Q8>(to, src, dim); break;
    case KV_Q4_0: unpack_part<KV_Q4_0>(to, src, dim); break;
    case KV_Q4_1: unpack_part<KV_Q4_1>(to, src, dim); break;
    case KV_T4: unpack_part<KV_T4>(to, src, dim); break;
    default: unpack_part<KV_T3>(to, src, dim);
    }
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
