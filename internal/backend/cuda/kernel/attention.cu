// Plain attention for what the tensor cores do not take, and the sum of splits.
// also for sm_90
#include "attention.h"

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
    int kv = u % ys / a.chunks, y = u % a.chunks, hs = heads_of(a, y), h0 = kv * a.group + y * a.chunk;
    int used = it.rows * hs;
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
    if (turns_keys(a.at.ktype)) {
      for (int m = warp; m < used; m += 4)
        for (int first = 0; first < kd; first += 256) {
          int d = first + lane * 8;
          u32 at = qs + (m * kd + d) * 4;
          float v[8] = {};
          for (int e = 0; e < 8 && d < kd; e++) v[e] = lds_f(at + e * 4);
          rotate8(v, d, turned(kd), false);
          for (int e = 0; e < 8 && d < kd; e++) sts_f(at + e * 4, v[e]);
        }
      SYNC();
    }
    for (int p = it.p0; p < it.p1; p++) {
      for (int i = TID; i < used * 64; i += 128) {
        int m = i >> 6, s = p * 64 + (i & 63);
        const Seen& r = a.seen[it.row + m / hs];
        float x = NOTHING;
        if (s >= r.lo && s < r.hi && sees(a, r, h0 + m % hs, s)) {
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
        syncwarp(); // all lanes have read the state
        if (lane == 0) {
          sts_f(state + m * 4, n);
          sts_f(state + 64 + m * 4, ffma(lds_f(state + 64 + m * 4), f, sum));
          sts_f(state + 128 + m * 4, f);
        }
      }
      SYNC();
      bool ends = split_ends(it, p, p + 1);
      int split = p / it.per;
      for (int i = TID; i < used * vd; i += 128) {
        int m = i / vd, d = i - m * vd;
        const Seen& r = a.seen[it.row + m / hs];
        float o = fmul(lds_f(os + i * 4), lds_f(state + 128 + m * 4));
        for (int s = 0; s < 64; s++) {
          float x = lds_f(ps + (m * 64 + s) * 4);
          if (x == 0.f) continue; // not seen: what lies there need not be a number
          int from = lies_at(a.paths, r.path, r.base, p * 64 + s);
          const u8* v = (const u8*)a.pages[it.table + (from >> 6)] + region + a.at.values;
          o = ffma(x, read1(v, a.at.vtype, vd, from & 63, d), o);
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
  pdl_launch();
  int vd = a.at.vdim, heads = a.kvheads * a.group, each = vd >> 2, fit = 128 / each;
  int head = BIDY * fit + TID / each, d = TID % each * 4;
  Seen r = a.seen[BID]; // nobody writes it in a step
  pdl_wait();
  if (r.part < 0 || TID / each >= fit || head >= heads) return;
  float o[4];
  add_splits(o, {a.part, a.ml, a.sinks, a.seen, heads, vd}, r, head, d);
  float* out = a.out + (u64)BID * a.ostride + head * vd + d;
#pragma unroll
  for (int i = 0; i < 4; i++) out[i] = o[i];
}

// Rotates queries as keys are, from q to out. A warp per head, a block per 4 heads of a row; dimensions up to 512.
KERNEL(rotate, Attn, a, 128, 1) {
  pdl_launch();
  pdl_wait();
  int head = BIDY * 4 + (TID >> 5), kd = a.at.kdim;
  if (head >= a.kvheads * a.group) return;
  const float* q = a.q + (u64)BID * a.qstride + head * kd;
  float* out = a.out + (u64)BID * a.ostride + head * kd;
  for (int first = 0; first < kd; first += 256) {
    int d = first + (TID & 31) * 8;
    float v[8] = {};
    if (d < kd) load8(v, q + d);
    rotate8(v, d, turned(kd), false);
    if (d < kd) store8(out + d, v);
  }
}

// Turns results back where values are rotated. A warp per head, a block per 4 heads of a row; dimensions up to 512.
KERNEL(unrotate, Attn, a, 128, 1) {
  pdl_launch();
  pdl_wait();
  int head = BIDY * 4 + (TID >> 5), vd = a.at.vdim;
  if (head >= a.kvheads * a.group) return;
  float* out = a.out + (u64)BID * a.ostride + head * vd;
  for (int first = 0; first < vd; first += 256) {
    int d = first + (TID & 31) * 8;
    float v[8] = {};
    if (d < vd) load8(v, out + d);
    rotate8(v, d, turned(vd), true);
    if (d < vd) store8(out + d, v);
  }
}
