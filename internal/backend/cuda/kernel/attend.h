// Attention on the tensor cores of compute capability 8.0, for halves and what becomes halves.
#pragma once
#include "attention.h"

// ---- 32 slots of keys or values in shared memory as [DIM/64][32 slots][64 dimensions] halves, chunks swizzled as in
// the pages.

// Starts the copy of half a page. Quantised types are copied as they are, quants and then scales.
template <int DIM> DEV void start(const Attn& a, const Item& it, const Walk& w, int kv, int unit, u32 dst) {
  int half = unit & 1;
  bool key = unit < 2;
  int type = key ? a.at.ktype : a.at.vtype, qb = quant_bytes(type, DIM), sb = scale_bytes(type, DIM);
  u64 region = a.at.off + (u64)kv * a.at.head + (key ? 0 : a.at.values);
  if (!w.gathered(it)) {
    const u8* src = (const u8*)a.pages[it.table + w.p] + region;
    if (type != KV_F16) {
      for (int i = TID; i < 2 * qb; i += 128) cp16(dst + i * 16, src + half * 32 * qb + i * 16);
      for (int i = TID; i < 2 * sb; i += 128) cp16(dst + 32 * qb + i * 16, src + 64 * qb + half * 32 * sb + i * 16);
    } else {
#pragma unroll
      for (int k = 0; k < DIM / 32; k++) {
        int i = TID + k * 128;
        cp16(dst + i * 16, src + (i >> 8) * 8192 + half * 4096 + (i & 255) * 16);
      }
    }
    return;
  }
  if (type != KV_F16) {
    int chunks = qb >> 4;
    for (int i = TID; i < 32 * chunks; i += 128) {
      int s = i / chunks, c = i - s * chunks, from = lies_at(a.paths, it.path + w.k, it.base, w.p * 64 + half * 32 + s);
      cp16(dst + s * qb + c * 16, (const u8*)a.pages[it.table + (from >> 6)] + region + (from & 63) * qb + c * 16);
    }
    chunks = sb >> 1; // a scale may be all that a slot has: too little for an asynchronous copy
    for (int i = TID; i < 32 * chunks; i += 128) {
      int s = i / chunks, c = i - s * chunks, from = lies_at(a.paths, it.path + w.k, it.base, w.p * 64 + half * 32 + s);
      const u8* src = (const u8*)a.pages[it.table + (from >> 6)] + region + 64 * qb;
      sts16(dst + 32 * qb + s * sb + c * 2, *(const u16*)(src + (from & 63) * sb + c * 2));
    }
  } else {
    for (int k = 0; k < DIM / 32; k++) {
      int i = TID + k * 128, s = (i >> 3) & 31, c = i & 7;
      int from = lies_at(a.paths, it.path + w.k, it.base, w.p * 64 + half * 32 + s);
      const u8* src = (const u8*)a.pages[it.table + (from >> 6)] + region;
      cp16(dst + (i >> 8) * 4096 + s * 128 + ((c ^ (s & 7)) << 4),
           src + (i >> 8) * 8192 + (from & 63) * 128 + ((c ^ (from & 7)) << 4));
    }
  }
}
// Quants to halves.
template <int DIM> DEV void unpack(u32 dst, u32 src, int type) {
  const int C = DIM / 8;
  int qb = quant_bytes(type, DIM), sb = scale_bytes(type, DIM);
  for (int i = TID; i < 32 * C; i += 128) {
    int s = i / C, c = i % C;
    u32 row = src + s * qb, sc = src + 32 * qb + s * sb + scale_at(type, c * 8);
    U4 h;
    if (type == KV_Q8) {
      h = halves8(lds64(row + c * 8), lds16(sc));
    } else if (type == KV_T3) {
      u32 high = lds16(row + DIM / 4 + (c & ~1)) >> (8 * (c & 1)) & 255;
      h = halves8(type, lds16(row + c * 2) | high << 16, lds16(sc));
    } else {
      h = halves8(type, lds32(row + c * 4), type == KV_Q4_1 ? lds32(sc) : lds16(sc));
    }
    sts128(dst + (c >> 3) * 4096 + s * 128 + (((c & 7) ^ (s & 7)) << 4), h);
  }
}
DEV void wait_copies(int ring) { // all but the newest ring-2 groups
  if (ring == 2) cp_wait<0>();
  else if (ring == 3) cp_wait<1>();
  else if (ring == 4) cp_wait<2>();
  else cp_wait<6>(); // a ring of 8
}

// Up to 16*MT rows (of tokens x query heads of one KV head) at a time. Scores: a warp has every fourth group of 8
// slots. Values: a warp has a quarter of the dimensions. Shared memory: queries, weights, and what warps tell each
// other; see attendShared in backend/gpu.
template <int DIM, int MT> DEV void attend(const Attn& a) {
  const int M = 16 * MT, NT = DIM / 32;
  int warp = TID >> 5, lane = TID & 31, g = lane >> 2, t = lane & 3, quad = lane >> 3, ln = lane & 7;
  u32 qs = saddr(smem), ps = qs + M * DIM * 2, tops = ps + M * 128, sums = tops + M * 16, meta = sums + M * 64;
  u32 state = meta + M * 16 + warp * (M * 8), conv = meta + M * 48;
  u32 ring = conv + (a.at.ktype != KV_F16 || a.at.vtype != KV_F16 ? DIM * 64 : 0);
  pdl_launch();
  pdl_wait();
  int ys = a.kvheads * a.chunks, units = a.items[0] * ys;
  for (int u = BID; u < units; u += GDIM) {
    Item it = ((const Item*)a.items)[1 + u / ys];
    int kv = u % ys / a.chunks, y = u % a.chunks, hs = heads_of(a, y), h0 = kv * a.group + y * a.chunk;
    int used = it.rows * hs, heads = a.kvheads * a.group;
    SYNC(); // nobody reads what the item before left
    for (int i = TID; i < M * (DIM / 8); i += 128) {
      int m = i / (DIM / 8), c = i % (DIM / 8);
      float v[8] = {};
      if (m < used) load8(v, a.q + (u64)(it.row + m / hs) * a.qstride + (h0 + m % hs) * DIM + c * 8);
      if (turns_keys(a.at.ktype)) rotate8(v, c * 8, DIM < 128 ? DIM : 128, false);
      U4 h = {f2h2(v[0], v[1]), f2h2(v[2], v[3]), f2h2(v[4], v[5]), f2h2(v[6], v[7])};
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
    float o[MT][NT][4], m[MT][2], l[MT][2]; // of the split; those of the splits so far are in shared memory
#pragma unroll
    for (int i = 0; i < MT; i++) {
#pragma unroll
      for (int h = 0; h < 2; h++) m[i][h] = NOTHING, l[i][h] = 0;
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
          ahead.next(a, it, h0);
        }
      }
      cp_commit();
      if (++aslot == a.ring) aslot = 0;
    };
    // The next 32 slots are there; those before them are no longer needed by any warp.
    auto arrived = [&](int type) -> u32 {
      wait_copies(a.ring);
      SYNC();
      more();
      u32 at = ring + slot * a.unit;
      if (++slot == a.ring) slot = 0;
      if (type == KV_F16) return at;
      unpack<DIM>(conv, at, type);
      SYNC();
      return conv;
    };
    for (int i = 1; i < a.ring; i++) more();
    for (; w.p < it.p1; w.next(a, it, h0)) {
      float s[MT][2][4];
#pragma unroll
      for (int h = 0; h < 2; h++) {
        u32 ks = arrived(a.at.ktype);
#pragma unroll
        for (int i = 0; i < MT; i++)
#pragma unroll
          for (int e = 0; e < 4; e++) s[i][h][e] = 0;
#pragma unroll 2
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
              x = at >= lo && at < hi ? x : NOTHING;
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
          float top = NOTHING, c[2];
#pragma unroll
          for (int k = 0; k < 4; k++) top = fmax_(top, lds_f(tops + (k * M + row) * 4));
          float n = fmax_(m[i][r], exponent(top, a.scale)), z = none_seen(n) ? 0.f : n;
          f[i][r] = ex2z(fadd(m[i][r], -n));
          m[i][r] = n;
#pragma unroll
          for (int h = 0; h < 2; h++) {
            float x = weight(s[i][h][2 * r], a.scale, z), y = weight(s[i][h][2 * r + 1], a.scale, z);
            c[h] = fadd(x, y);
            sts32(ps + row * 128 + (((h * 4 + warp) ^ (row & 7)) << 4) + t * 4, f2h2(x, y));
          }
          sts_f(sums + ((warp * M + row) * 4 + t) * 4, fadd(c[0], c[1]));
        }
#pragma unroll
      for (int h = 0; h < 2; h++) {
        u32 vs = arrived(a.at.vtype); // and the weights of all warps
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
      if (w.k + 1 < w.paths(it) || !split_ends(it, w.p, next_page(a, it.row, h0, w.p, it.p1))) continue;
      int split = w.p / it.per;
#pragma unroll
      for (int i = 0; i < MT; i++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
          float sm = m[i][r], sl = l[i][r], f = 0, fg = 1, last = 1;
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
              if (nth > 0) {
                float rm = lds_f(state + row * 8), rl = lds_f(state + row * 8 + 4);
                take_in(rm, rl, sm, sl, f, fg);
                sm = rm, sl = rl;
              }
              if (nth == seen.splits - 1) last = last_factor(sm, sl, a.sinks, head);
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
          syncwarp(); // four lanes share a row's state
          if (t == 0) {
            sts_f(state + row * 8, sm);
            sts_f(state + row * 8 + 4, sl);
          }
          syncwarp();
          m[i][r] = NOTHING;
          l[i][r] = 0;
#pragma unroll
          for (int n = 0; n < NT; n++) o[i][n][2 * r] = o[i][n][2 * r + 1] = 0;
        }
    }
    cp_wait<0>();
  }
}
