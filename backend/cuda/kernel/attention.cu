// Attention on the tensor cores (compute capability 8.0) for halves and Q8_0, plain attention for everything else, and the sum of splits.
// also for sm_90
#include "attention.h"

// ---- 32 slots of keys or values in shared memory as [DIM/64][32 slots][64 dimensions] halves, chunks swizzled as in the pages.

// Starts the copy of half a page. Q8_0 is copied as it is, quants and then scales.
template <int DIM> DEV void start(const Attn& a, const Item& it, const Walk& w, int kv, int unit, u32 dst) {
  int half = unit & 1;
  bool key = unit < 2, q8 = (key ? a.at.ktype : a.at.vtype) == KV_Q8;
  u64 region = a.at.off + (u64)kv * a.at.head + (key ? 0 : a.at.values);
  if (!w.gathered(it)) {
    const u8* src = (const u8*)a.pages[it.table + w.p] + region;
    if (q8) {
      for (int i = TID; i < DIM * 2; i += 128) cp16(dst + i * 16, src + half * 32 * DIM + i * 16);
      for (int i = TID; i < DIM / 8; i += 128) cp16(dst + 32 * DIM + i * 16, src + 64 * DIM + half * 2 * DIM + i * 16);
    } else {
#pragma unroll
      for (int k = 0; k < DIM / 32; k++) {
        int i = TID + k * 128;
        cp16(dst + i * 16, src + (i >> 8) * 8192 + half * 4096 + (i & 255) * 16);
      }
    }
    return;
  }
  if (q8) {
    const int C = DIM / 16; // chunks of a slot
    for (int i = TID; i < 32 * C; i += 128) {
      int s = i / C, c = i % C, from = lies_at(a.paths, it.path + w.k, it.base, w.p * 64 + half * 32 + s);
      const u8* src = (const u8*)a.pages[it.table + (from >> 6)] + region;
      cp16(dst + s * DIM + c * 16, src + (from & 63) * DIM + c * 16);
      if (c < DIM / 64) cp4(dst + 32 * DIM + s * (DIM / 16) + c * 4, src + 64 * DIM + (from & 63) * (DIM / 16) + c * 4);
    }
  } else {
    for (int k = 0; k < DIM / 32; k++) {
      int i = TID + k * 128, s = (i >> 3) & 31, c = i & 7;
      int from = lies_at(a.paths, it.path + w.k, it.base, w.p * 64 + half * 32 + s);
      const u8* src = (const u8*)a.pages[it.table + (from >> 6)] + region;
      cp16(dst + (i >> 8) * 4096 + s * 128 + ((c ^ (s & 7)) << 4), src + (i >> 8) * 8192 + (from & 63) * 128 + ((c ^ (from & 7)) << 4));
    }
  }
}
// Q8_0 to halves.
template <int DIM> DEV void unpack(u32 dst, u32 src) {
  const int C = DIM / 8;
  for (int i = TID; i < 32 * C; i += 128) {
    int s = i / C, c = i % C;
    float d = h2f(lds16(src + 32 * DIM + s * (DIM / 16) + (c >> 2) * 2));
    U2 q = lds64(src + s * DIM + c * 8);
    float v[8];
#pragma unroll
    for (int k = 0; k < 4; k++) {
      v[k] = fmul(d, (float)(int)(signed char)(q.x >> (8 * k)));
      v[4 + k] = fmul(d, (float)(int)(signed char)(q.y >> (8 * k)));
    }
    U4 h = {f2h2(v[0], v[1]), f2h2(v[2], v[3]), f2h2(v[4], v[5]), f2h2(v[6], v[7])};
    sts128(dst + (c >> 3) * 4096 + s * 128 + (((c & 7) ^ (s & 7)) << 4), h);
  }
}
DEV void wait_copies(int ring) { // all but the newest ring-2 groups
  if (ring == 2) cp_wait<0>();
  else if (ring == 3) cp_wait<1>();
  else if (ring == 4) cp_wait<2>();
  else cp_wait<6>(); // a ring of 8
}

// Up to 16*MT rows (of tokens x query heads of one KV head) at a time. Scores: a warp has every fourth group of 8 slots. Values: a warp has
// a quarter of the dimensions. Shared memory: queries, weights, and what warps tell each other; see attendShared in backend/gpu.
template <int DIM, int MT> DEV void attend(const Attn& a) {
  const int M = 16 * MT, NT = DIM / 32;
  int warp = TID >> 5, lane = TID & 31, g = lane >> 2, t = lane & 3, quad = lane >> 3, ln = lane & 7;
  bool kq8 = a.at.ktype == KV_Q8, vq8 = a.at.vtype == KV_Q8;
  u32 qs = saddr(smem), ps = qs + M * DIM * 2, tops = ps + M * 128, sums = tops + M * 16, meta = sums + M * 64, conv = meta + M * 16;
  u32 ring = conv + (kq8 || vq8 ? DIM * 64 : 0);
  pdl_launch();
  pdl_wait();
  int ys = a.kvheads * a.chunks, units = a.items[0] * ys;
  for (int u = BID; u < units; u += GDIM) {
    Item it = ((const Item*)a.items)[1 + u / ys];
    int y = u % ys, kv = y / a.chunks, h0 = y % a.chunks * a.chunk, hs = a.group - h0 < a.chunk ? a.group - h0 : a.chunk;
    int used = it.rows * hs, heads = a.kvheads * a.group;
    h0 += kv * a.group;
    SYNC(); // nobody reads what the item before left
    for (int i = TID; i < M * (DIM / 8); i += 128) {
      int m = i / (DIM / 8), c = i % (DIM / 8);
      U4 h = {0, 0, 0, 0};
      if (m < used) {
        float v[8];
        load8(v, a.q + (u64)(it.row + m / hs) * a.qstride + (h0 + m % hs) * DIM + c * 8);
        h = {f2h2(v[0], v[1]), f2h2(v[2], v[3]), f2h2(v[4], v[5]), f2h2(v[6], v[7])};
      }
      sts128(qs + (c >> 3) * (M * 128) + m * 128 + (((c & 7) ^ (m & 7)) << 4), h);
    }
    if (TID < M) {
      U4 x = {0, 0, 0, 0};
      if (TID < used) {
        const Seen& r = a.seen[it.row + TID / hs];
        x = {(u32)r.lo, (u32)r.hi, (u32)r.path, 0};
      }
      sts128(meta + TID * 16, x);
    }
    float o[MT][NT][4], m[MT][2], l[MT][2], rm[MT][2], rl[MT][2]; // of the split; of the splits so far
#pragma unroll
    for (int i = 0; i < MT; i++) {
#pragma unroll
      for (int h = 0; h < 2; h++) m[i][h] = rm[i][h] = NOTHING, l[i][h] = rl[i][h] = 0;
#pragma unroll
      for (int n = 0; n < NT; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) o[i][n][e] = 0;
    }
    Walk ahead = {it.p0, 0}, w = {it.p0, 0};
    int au = 0, aslot = 0, slot = 0; // of the walk ahead: which quarter of its page comes next, and where it goes
    auto more = [&]() {
      if (ahead.p < it.p1) {
        start<DIM>(a, it, ahead, kv, au, ring + aslot * a.unit);
        if (++au == 4) {
          au = 0;
          ahead.next(it);
        }
      }
      cp_commit();
      if (++aslot == a.ring) aslot = 0;
    };
    // The next 32 slots are there; those before them are no longer needed by any warp.
    auto arrived = [&](bool q8) -> u32 {
      wait_copies(a.ring);
      SYNC();
      more();
      u32 at = ring + slot * a.unit;
      if (++slot == a.ring) slot = 0;
      if (!q8) return at;
      unpack<DIM>(conv, at);
      SYNC();
      return conv;
    };
    for (int i = 1; i < a.ring; i++) more();
    for (; w.p < it.p1; w.next(it)) {
      float s[MT][2][4];
#pragma unroll
      for (int h = 0; h < 2; h++) {
        u32 ks = arrived(kq8);
#pragma unroll
        for (int i = 0; i < MT; i++)
#pragma unroll
          for (int e = 0; e < 4; e++) s[i][h][e] = 0;
#pragma unroll
        for (int d = 0; d < DIM / 32; d++) {
          u32 b[4];
          int c = d * 4 + quad;
          ldmatrix4(b, ks + (c >> 3) * 4096 + (warp * 8 + ln) * 128 + (((c & 7) ^ ln) << 4));
#pragma unroll
          for (int k = 0; k < 2; k++)
#pragma unroll
            for (int i = 0; i < MT; i++) {
              u32 q[4];
              int c2 = d * 4 + k * 2 + (quad >> 1);
              ldmatrix4(q, qs + (c2 >> 3) * (M * 128) + (i * 16 + (quad & 1) * 8 + ln) * 128 + (((c2 & 7) ^ ln) << 4));
              mma16816(s[i][h], q[0], q[1], q[2], q[3], b[2 * k], b[2 * k + 1]);
            }
        }
      }
      // What nobody sees counts for nothing.
      int first = w.p * 64 + warp * 8 + 2 * t, path = w.gathered(it) ? it.path + w.k : -1;
      bool clear = path < 0 && w.p * 64 >= it.lo && w.p * 64 + 64 <= it.hi;
#pragma unroll
      for (int i = 0; i < MT; i++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
          int lo = 0, hi = 0x7fffffff;
          if (!clear) {
            U4 x = lds128(meta + (i * 16 + r * 8 + g) * 16);
            lo = (int)x.x;
            hi = path >= 0 && (int)x.z != path ? 0 : (int)x.y;
          }
          float top = NOTHING;
#pragma unroll
          for (int h = 0; h < 2; h++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
              int at = first + h * 32 + e;
              float& x = s[i][h][2 * r + e];
              x = at >= lo && at < hi ? fmul(x, a.scale) : NOTHING;
              top = fmax_(top, x);
            }
          top = fmax_(top, shfl_xor(top, 1));
          top = fmax_(top, shfl_xor(top, 2));
          if (t == 0) sts_f(tops + (warp * M + i * 16 + r * 8 + g) * 4, top);
        }
      SYNC();
      float f[MT][2];
#pragma unroll
      for (int i = 0; i < MT; i++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
          int row = i * 16 + r * 8 + g;
          float n = m[i][r];
#pragma unroll
          for (int k = 0; k < 4; k++) n = fmax_(n, lds_f(tops + (k * M + row) * 4));
          f[i][r] = ex2(fadd(m[i][r], -n));
          m[i][r] = n;
          float z = n > 0.1f * NOTHING ? n : 0.f, c[2]; // nothing seen yet: every exponential must still be zero
#pragma unroll
          for (int h = 0; h < 2; h++) {
            float x = ex2(fadd(s[i][h][2 * r], -z)), y = ex2(fadd(s[i][h][2 * r + 1], -z));
            c[h] = fadd(x, y);
            sts32(ps + row * 128 + (((h * 4 + warp) ^ (row & 7)) << 4) + t * 4, f2h2(x, y));
          }
          sts_f(sums + ((warp * M + row) * 4 + t) * 4, fadd(c[0], c[1]));
        }
#pragma unroll
      for (int h = 0; h < 2; h++) {
        u32 vs = arrived(vq8); // and the weights of all warps
        if (h == 0) {
#pragma unroll
          for (int i = 0; i < MT; i++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
              float c[4];
#pragma unroll
              for (int k = 0; k < 4; k++) c[k] = lds_f(sums + ((k * M + i * 16 + r * 8 + g) * 4 + t) * 4);
              l[i][r] = ffma(l[i][r], f[i][r], fadd(fadd(c[0], c[1]), fadd(c[2], c[3])));
#pragma unroll
              for (int n = 0; n < NT; n++) {
                o[i][n][2 * r] = fmul(o[i][n][2 * r], f[i][r]);
                o[i][n][2 * r + 1] = fmul(o[i][n][2 * r + 1], f[i][r]);
              }
            }
        }
#pragma unroll
        for (int k = 0; k < 2; k++) {
          u32 p[MT][4];
#pragma unroll
          for (int i = 0; i < MT; i++)
            ldmatrix4(p[i], ps + (i * 16 + (quad & 1) * 8 + ln) * 128 + (((h * 4 + k * 2 + (quad >> 1)) ^ ln) << 4));
#pragma unroll
          for (int n = 0; n < NT; n += 2) {
            u32 b[4];
            int c = warp * NT + n + (quad >> 1);
            ldmatrix4t(b, vs + (c >> 3) * 4096 + (k * 16 + (quad & 1) * 8 + ln) * 128 + (((c & 7) ^ ln) << 4));
#pragma unroll
            for (int i = 0; i < MT; i++) {
              mma16816(o[i][n], p[i][0], p[i][1], p[i][2], p[i][3], b[0], b[1]);
              mma16816(o[i][n + 1], p[i][0], p[i][1], p[i][2], p[i][3], b[2], b[3]);
            }
          }
        }
      }
      if (w.k + 1 < w.paths(it) || !split_ends(it, w.p)) continue;
      int split = w.p / it.per;
#pragma unroll
      for (int i = 0; i < MT; i++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
          float sl = l[i][r], f = 0, fg = 1, last = 1;
          sl = fadd(sl, shfl_xor(sl, 1));
          sl = fadd(sl, shfl_xor(sl, 2));
          int row = i * 16 + r * 8 + g, tok = it.row + row / hs, head = h0 + row % hs;
          Seen seen = {};
          if (row < used) seen = a.seen[tok];
          int nth = split - seen.split0;
          if (nth >= 0 && nth < seen.splits) {
            float* d;
            if (seen.part >= 0) {
              u64 at = (u64)(seen.part + nth) * heads + head;
              if (warp == 0 && t == 0) {
                a.ml[at * 2] = m[i][r];
                a.ml[at * 2 + 1] = sl;
              }
              d = a.part + at * DIM;
            } else {
              if (nth == 0) rm[i][r] = m[i][r], rl[i][r] = sl;
              else take_in(rm[i][r], rl[i][r], m[i][r], sl, f, fg);
              if (nth == seen.splits - 1) last = last_factor(rm[i][r], rl[i][r], a.sinks, head);
              d = a.out + (u64)tok * a.ostride + head * DIM;
            }
            d += warp * (DIM / 4) + 2 * t;
            bool add = seen.part < 0 && nth > 0, end = seen.part < 0 && nth == seen.splits - 1;
#pragma unroll
            for (int n = 0; n < NT; n++) {
              float x = o[i][n][2 * r], y = o[i][n][2 * r + 1];
              if (add) {
                x = ffma(d[n * 8], f, fmul(x, fg));
                y = ffma(d[n * 8 + 1], f, fmul(y, fg));
              }
              if (end) x = fmul(x, last), y = fmul(y, last);
              d[n * 8] = x;
              d[n * 8 + 1] = y;
            }
          }
          m[i][r] = NOTHING;
          l[i][r] = 0;
#pragma unroll
          for (int n = 0; n < NT; n++) o[i][n][2 * r] = o[i][n][2 * r + 1] = 0;
        }
    }
    cp_wait<0>();
  }
}
KERNEL(attend64x1, Attn, a, 128, 1) { attend<64, 1>(a); }
KERNEL(attend64x4, Attn, a, 128, 1) { attend<64, 4>(a); }
KERNEL(attend128x1, Attn, a, 128, 1) { attend<128, 1>(a); }
KERNEL(attend128x4, Attn, a, 128, 1) { attend<128, 4>(a); }
KERNEL(attend256x1, Attn, a, 128, 1) { attend<256, 1>(a); }
KERNEL(attend256x4, Attn, a, 128, 1) { attend<256, 4>(a); }
KERNEL(attend512x1, Attn, a, 128, 1) { attend<512, 1>(a); }
KERNEL(attend512x2, Attn, a, 128, 1) { attend<512, 2>(a); }

// All types and sizes, in float32: for what the kernel above does not take. Up to 16 rows, everything in shared memory:
// queries, scores, outputs, and for every row m, l, factor, and the m and l of the splits so far.
KERNEL(attend_plain, Attn, a, 128, 1) {
  int warp = TID >> 5, lane = TID & 31, kd = a.at.kdim, vd = a.at.vdim, heads = a.kvheads * a.group;
  u32 qs = saddr(smem), ps = qs + 16 * kd * 4, os = ps + 16 * 64 * 4, state = os + 16 * vd * 4; // state: [5][16]
  pdl_launch();
  pdl_wait();
  int ys = a.kvheads * a.chunks, units = a.items[0] * ys;
  for (int u = BID; u < units; u += GDIM) {
    Item it = ((const Item*)a.items)[1 + u / ys];
    int y = u % ys, kv = y / a.chunks, h0 = y % a.chunks * a.chunk, hs = a.group - h0 < a.chunk ? a.group - h0 : a.chunk;
    int used = it.rows * hs;
    h0 += kv * a.group;
    u64 region = a.at.off + (u64)kv * a.at.head;
    SYNC();
    for (int i = TID; i < used * kd; i += 128) {
      int m = i / kd;
      sts_f(qs + i * 4, a.q[(u64)(it.row + m / hs) * a.qstride + (h0 + m % hs) * kd + i - m * kd]);
    }
    for (int i = TID; i < used * vd; i += 128) sts_f(os + i * 4, 0.f);
    if (TID < 16) {
      sts_f(state + TID * 4, NOTHING);
      sts_f(state + 64 + TID * 4, 0.f);
    }
    SYNC();
    for (int p = it.p0; p < it.p1; p++) {
      for (int i = TID; i < used * 64; i += 128) {
        int m = i >> 6, s = p * 64 + (i & 63);
        const Seen& r = a.seen[it.row + m / hs];
        float x = NOTHING;
        if (s >= r.lo && s < r.hi) {
          int from = lies_at(a.paths, r.path, r.base, s);
          const u8* k = (const u8*)a.pages[it.table + (from >> 6)] + region;
          x = 0;
          for (int d = 0; d < kd; d += 8) {
            float v[8];
            read8(v, k, a.at.ktype, kd, from & 63, d);
#pragma unroll
            for (int e = 0; e < 8; e++) x = ffma(lds_f(qs + (m * kd + d + e) * 4), v[e], x);
          }
          x = fmul(x, a.scale);
        }
        sts_f(ps + i * 4, x);
      }
      SYNC();
      for (int m = warp; m < used; m += 4) {
        float x = lds_f(ps + (m * 64 + lane) * 4), y = lds_f(ps + (m * 64 + 32 + lane) * 4), was = lds_f(state + m * 4);
        float n = fmax_(was, warp_max(fmax_(x, y)));
        x = x > 0.1f * NOTHING ? ex2(fadd(x, -n)) : 0.f;
        y = y > 0.1f * NOTHING ? ex2(fadd(y, -n)) : 0.f;
        sts_f(ps + (m * 64 + lane) * 4, x);
        sts_f(ps + (m * 64 + 32 + lane) * 4, y);
        float sum = warp_sum(fadd(x, y)), f = ex2(fadd(was, -n));
        if (lane == 0) {
          sts_f(state + m * 4, n);
          sts_f(state + 64 + m * 4, ffma(lds_f(state + 64 + m * 4), f, sum));
          sts_f(state + 128 + m * 4, f);
        }
      }
      SYNC();
      bool ends = split_ends(it, p);
      int split = p / it.per;
      for (int i = TID; i < used * vd; i += 128) {
        int m = i / vd, d = i - m * vd;
        const Seen& r = a.seen[it.row + m / hs];
        float o = fmul(lds_f(os + i * 4), lds_f(state + 128 + m * 4));
        for (int s = 0; s < 64; s++) {
          float x = lds_f(ps + (m * 64 + s) * 4);
          if (x == 0.f) continue; // not seen: what lies there need not be a number
          int from = lies_at(a.paths, r.path, r.base, p * 64 + s);
          o = ffma(x, read1((const u8*)a.pages[it.table + (from >> 6)] + region + a.at.values, a.at.vtype, vd, from & 63, d), o);
        }
        int nth = split - r.split0, head = h0 + m % hs;
        if (ends && nth >= 0 && nth < r.splits) {
          float sm = lds_f(state + m * 4), sl = lds_f(state + 64 + m * 4);
          if (r.part >= 0) {
            u64 at = (u64)(r.part + nth) * heads + head;
            a.part[at * vd + d] = o;
            if (d == 0) {
              a.ml[at * 2] = sm;
              a.ml[at * 2 + 1] = sl;
            }
          } else {
            float* out = a.out + (u64)(it.row + m / hs) * a.ostride + head * vd + d;
            float rm = sm, rl = sl, f, fg;
            if (nth > 0) {
              rm = lds_f(state + 192 + m * 4);
              rl = lds_f(state + 256 + m * 4);
              take_in(rm, rl, sm, sl, f, fg);
              o = ffma(*out, f, fmul(o, fg));
            }
            if (nth == r.splits - 1) o = fmul(o, last_factor(rm, rl, a.sinks, head));
            *out = o;
          }
        }
        sts_f(os + i * 4, ends ? 0.f : o);
      }
      SYNC();
      if (ends && TID < used) { // the same once more for the state of the row
        const Seen& r = a.seen[it.row + TID / hs];
        int nth = split - r.split0;
        float sm = lds_f(state + TID * 4), sl = lds_f(state + 64 + TID * 4), rm = sm, rl = sl, f, fg;
        if (nth > 0 && nth < r.splits) {
          rm = lds_f(state + 192 + TID * 4);
          rl = lds_f(state + 256 + TID * 4);
          take_in(rm, rl, sm, sl, f, fg);
        }
        if (nth >= 0) {
          sts_f(state + 192 + TID * 4, rm);
          sts_f(state + 256 + TID * 4, rl);
        }
        sts_f(state + TID * 4, NOTHING);
        sts_f(state + 64 + TID * 4, 0.f);
      }
      SYNC();
    }
  }
}

// Adds the splits of a row. A thread has 4 values of a head, a block 128/(vdim/4) heads of a row.
KERNEL(merge, Attn, a, 128, 1) {
  const int U = 8; // loads in flight
  pdl_launch();
  pdl_wait();
  int vd = a.at.vdim, heads = a.kvheads * a.group, each = vd >> 2, fit = 128 / each, head = BIDY * fit + TID / each, d = TID % each * 4;
  Seen r = a.seen[BID];
  if (r.part < 0 || TID / each >= fit || head >= heads) return;
  float m = NOTHING, l = 0;
  F4 o = {0, 0, 0, 0};
  for (int s0 = 0; s0 < r.splits; s0 += U) {
    F4 x[U];
    U2 ml[U];
#pragma unroll
    for (int i = 0; i < U; i++)
      if (s0 + i < r.splits) {
        u64 at = (u64)(r.part + s0 + i) * heads + head;
        ml[i] = *(const U2*)(a.ml + at * 2);
        x[i] = *(const F4*)(a.part + at * vd + d);
      }
#pragma unroll
    for (int i = 0; i < U; i++)
      if (s0 + i < r.splits) {
        float sm = bits_f(ml[i].x), sl = bits_f(ml[i].y), f, g;
        if (s0 + i == 0) {
          m = sm, l = sl, o = x[i];
          continue;
        }
        take_in(m, l, sm, sl, f, g);
        o.x = ffma(o.x, f, fmul(x[i].x, g));
        o.y = ffma(o.y, f, fmul(x[i].y, g));
        o.z = ffma(o.z, f, fmul(x[i].z, g));
        o.w = ffma(o.w, f, fmul(x[i].w, g));
      }
  }
  float k = last_factor(m, l, a.sinks, head);
  float* out = a.out + (u64)BID * a.ostride + head * vd + d;
  out[0] = fmul(o.x, k);
  out[1] = fmul(o.y, k);
  out[2] = fmul(o.z, k);
  out[3] = fmul(o.w, k);
}
