// Gated DeltaNet: short convolution, L2 norms, and the delta rule for the segments of a batch: chains, trees and
// prompts.
// also for sm_90
#include "delta.h"

// ---- the convolution, norms and gates

struct ConvArgs {
  float* dst;       // [rows][channels]: silu of the convolution; with `ready` queries and keys are normalised
  float* gates;     // [rows][2][vheads]: decay and beta
  const float* w;   // [channels][taps]
  const float* a;   // [vheads]
  const float* dt;  // [vheads]
  const int* table;
  In u, alpha, beta;
  int rows, layer, ds;
  int ready; // also norms, gates and the rest of the tape (delta_prepare does it otherwise)
  DeltaShape d;
  float eps;
};

// The decay and beta of one head of a row.
DEV void gate(const ConvArgs& p, const int* s, int row, int h) {
  float al = fadd(in1(p.alpha, row, h), p.dt[h]);
  float e = exp_(al), sp = al > 20.f ? al : fmul(lg2(fadd(1.f, e)), LN2); // log(1+e^x)
  if (e < 0.0625f) // 1+e^x would lose the digits of e^x
    sp = fmul(e, ffma(-e, ffma(-e, ffma(-e, ffma(-e, 0.2f, 0.25f), 1.f / 3), 0.5f), 1.f));
  float g = exp_(fmul(p.a[h], sp));
  p.gates[((u64)row * 2) * p.d.vheads + h] = g;
  p.gates[((u64)row * 2 + 1) * p.d.vheads + h] = sigmoid(in1(p.beta, row, h));
  if (!(s[SEG_FLAGS] & FLAG_PROMPT))
    seg_write(s, p.d, p.layer, row - s[SEG_ROW])[channels(p.d) + p.d.kheads * p.d.kdim + p.d.vheads * p.d.vdim + h] = g;
}

// The factor of a head of queries or keys, from its sum of squares.
DEV float head_scale(const ConvArgs& p, float squares, bool query) {
  float f = fdiv(1.f, sqrt_(fadd(squares, p.eps)));
  return query ? fmul(f, fdiv(1.f, sqrt_((float)p.d.kdim))) : f;
}

// The parts of a row's work that warps share: a head of queries, keys or values each, and with `ready` 32 gates at a
// time after them.
struct HeadJob {
  int row, h, heads; // h >= heads: gates
  int dim, first;    // channels of the head
  bool query, key;
  const int *r, *s;
};
DEV HeadJob head_job(const ConvArgs& p, int job) {
  const DeltaShape& d = p.d;
  int qk = 2 * d.kheads, heads = qk + d.vheads, jobs = heads + (p.ready ? (d.vheads + 31) / 32 : 0);
  HeadJob j;
  j.row = job / jobs;
  j.h = job - j.row * jobs;
  j.heads = heads;
  j.query = j.h < d.kheads;
  j.key = !j.query && j.h < qk;
  j.dim = j.h < qk ? d.kdim : d.vdim;
  j.first = j.h < qk ? j.h * d.kdim : qk * d.kdim + (j.h - qk) * d.vdim;
  j.r = row_of(p.table, j.row, d.taps);
  j.s = seg_of(p.table, p.rows, d.taps, j.r[0]);
  return j;
}
DEV int head_jobs(const ConvArgs& p) {
  return p.rows * (2 * p.d.kheads + p.d.vheads + (p.ready ? (p.d.vheads + 31) / 32 : 0));
}

// The convolution for any sizes: lane l has channels l, l+32, ... of a head.
KERNEL(delta_conv, ConvArgs, p, 128, 1) {
  pdl_wait();
  pdl_launch();
  const DeltaShape& d = p.d;
  int lane = TID & 31, chans = channels(d);
  for (int job = BID * (BDIM / 32) + (TID >> 5); job < head_jobs(p); job += GDIM * (BDIM / 32)) {
    HeadJob j = head_job(p, job);
    if (j.h >= j.heads) {
      int h = (j.h - j.heads) * 32 + lane;
      if (h < d.vheads) gate(p, j.s, j.row, h);
      continue;
    }
    float* tape = j.s[SEG_FLAGS] & FLAG_PROMPT ? nullptr : seg_write(j.s, d, p.layer, j.row - j.s[SEG_ROW]);
    float y[8], sum = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
      int at = i * 32 + lane, c = j.first + at;
      if (at >= j.dim) continue;
      float x = 0;
      y[i] = 0;
      for (int t = 0; t < d.taps; t++) {
        x = source1(j.r[1 + t], p.u, j.s, d, p.layer, c);
        y[i] = ffma(p.w[(u64)c * d.taps + t], x, y[i]);
      }
      if (tape) tape[c] = x; // the last tap is the row's own input
      y[i] = silu(y[i]);
      sum = ffma(y[i], y[i], sum);
    }
    bool scaled = p.ready && (j.query || j.key);
    float f = scaled ? head_scale(p, warp_sum(sum), j.query) : 1.f;
#pragma unroll
    for (int i = 0; i < 8; i++) {
      int at = i * 32 + lane;
      if (at >= j.dim) continue;
      if (scaled) y[i] = fmul(y[i], f);
      p.dst[(u64)j.row * p.ds + j.first + at] = y[i];
      if (scaled && j.key && tape) tape[chans + (j.h - d.kheads) * d.kdim + at] = y[i];
    }
  }
}

// The convolution over four tokens for heads of 128 or 256: lane l has channels 4l to 4l+3 of every 128. Everything
// that no kernel before wrote is asked for before waiting, and all inputs at once.
KERNEL(delta_conv4, ConvArgs, p, 128, 3) {
  const DeltaShape& d = p.d;
  int lane = TID & 31, chans = channels(d);
  bool waited = false;
  for (int job = BID * (BDIM / 32) + (TID >> 5); job < head_jobs(p); job += GDIM * (BDIM / 32)) {
    HeadJob j = head_job(p, job);
    float* tape = j.s[SEG_FLAGS] & FLAG_PROMPT ? nullptr : seg_write(j.s, d, p.layer, j.row - j.s[SEG_ROW]);
    const float *inputs = seg_inputs(j.s, d, p.layer), *read = seg_read(j.s, d, p.layer, 0);
    int code[4] = {j.r[1], j.r[2], j.r[3], j.r[4]};
    float y[8], sum = 0;
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
      int at = i * 32 + lane * 4, c = j.first + at;
      bool live = j.h < j.heads && at < j.dim;
      F4 w[4], x[4];
      const float* from[4];
      int pieces = 1;
      if (live) {
        pieces = in_pieces(p.u, c);
#pragma unroll
        for (int k = 0; k < 4; k++) {
          w[k] = *(const F4*)(p.w + (u64)(c + k) * 4); // the taps of a channel
          int row = code[k] >> 2;
          from[k] = (code[k] & 3) == 0   ? in_addr(p.u, row, c)
                    : (code[k] & 3) == 1 ? inputs + (u64)row * chans + c
                                         : read + (u64)row * d.tape_row + c;
        }
      }
      if (!waited) {
        pdl_wait();
        pdl_launch(); // not before: the delta rule's blocks would gather on the few multiprocessors that have room now
        waited = true;
      }
      if (!live) continue;
#pragma unroll
      for (int k = 0; k < 4; k++) x[k] = *(const F4*)from[k];
      for (int n = 1; n < pieces; n++)
#pragma unroll
        for (int k = 0; k < 4; k++)
          if ((code[k] & 3) == 0) {
            F4 v = *(const F4*)(from[k] + n * in_step(p.u));
            x[k] = {fadd(x[k].x, v.x), fadd(x[k].y, v.y), fadd(x[k].z, v.z), fadd(x[k].w, v.w)};
          }
      y[i] = ffma(w[0].w, x[3].x, ffma(w[0].z, x[2].x, ffma(w[0].y, x[1].x, ffma(w[0].x, x[0].x, 0.f))));
      y[i + 1] = ffma(w[1].w, x[3].y, ffma(w[1].z, x[2].y, ffma(w[1].y, x[1].y, ffma(w[1].x, x[0].y, 0.f))));
      y[i + 2] = ffma(w[2].w, x[3].z, ffma(w[2].z, x[2].z, ffma(w[2].y, x[1].z, ffma(w[2].x, x[0].z, 0.f))));
      y[i + 3] = ffma(w[3].w, x[3].w, ffma(w[3].z, x[2].w, ffma(w[3].y, x[1].w, ffma(w[3].x, x[0].w, 0.f))));
      if (tape) *(F4*)(tape + c) = x[3];
#pragma unroll
      for (int k = i; k < i + 4; k++) {
        y[k] = silu(y[k]);
        sum = ffma(y[k], y[k], sum);
      }
    }
    if (j.h >= j.heads) {
      int h = (j.h - j.heads) * 32 + lane;
      if (h < d.vheads) gate(p, j.s, j.row, h);
      continue;
    }
    bool scaled = p.ready && (j.query || j.key);
    float f = scaled ? head_scale(p, warp_sum(sum), j.query) : 1.f;
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
      int at = i * 32 + lane * 4;
      if (at >= j.dim) continue;
      F4 v = {y[i], y[i + 1], y[i + 2], y[i + 3]};
      if (scaled) v = {fmul(y[i], f), fmul(y[i + 1], f), fmul(y[i + 2], f), fmul(y[i + 3], f)};
      *(F4*)(p.dst + (u64)j.row * p.ds + j.first + at) = v;
      if (scaled && j.key && tape) *(F4*)(tape + chans + (j.h - d.kheads) * d.kdim + at) = v;
    }
  }
  if (!waited) pdl_wait();
}

// Norms and gates of rows whose convolution was made by itself: u is its result here, and only queries and keys are
// written to dst.
template <int W> DEV void prepare(const ConvArgs& p) {
  pdl_wait();
  pdl_launch();
  const DeltaShape& d = p.d;
  int lane = TID & 31, qk = 2 * d.kheads, jobs = qk + (d.vheads + 31) / 32;
  for (int job = BID * (BDIM / 32) + (TID >> 5); job < jobs * p.rows; job += GDIM * (BDIM / 32)) {
    int row = job / jobs, h = job - row * jobs;
    const int* s = seg_of(p.table, p.rows, d.taps, row_of(p.table, row, d.taps)[0]);
    if (h >= qk) {
      h = (h - qk) * 32 + lane;
      if (h < d.vheads) gate(p, s, row, h);
      continue;
    }
    float* tape = s[SEG_FLAGS] & FLAG_PROMPT || h < d.kheads ? nullptr : seg_write(s, d, p.layer, row - s[SEG_ROW]);
    float y[8], sum = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
      int at = (i / W * 32 + lane) * W + i % W;
      if (at >= d.kdim) continue;
      y[i] = in1(p.u, row, h * d.kdim + at);
      sum = ffma(y[i], y[i], sum);
    }
    float f = head_scale(p, warp_sum(sum), h < d.kheads);
#pragma unroll
    for (int i = 0; i < 8; i++) {
      int at = (i / W * 32 + lane) * W + i % W;
      if (at >= d.kdim) continue;
      y[i] = fmul(y[i], f);
      p.dst[(u64)row * p.ds + h * d.kdim + at] = y[i];
      if (tape) tape[channels(d) + (h - d.kheads) * d.kdim + at] = y[i];
    }
  }
}
KERNEL(delta_prepare, ConvArgs, p, 128, 1) { prepare<1>(p); }
KERNEL(delta_prepare4, ConvArgs, p, 128, 1) { prepare<4>(p); }

// The newest inputs of the convolution move up; the blocks of a row of the grid share the channels of a segment.
DEV void shift(const int* s, const In& u, const DeltaShape& d, int layer) {
  int n = d.taps - 1, chans = channels(d);
  float* to = seg_inputs(s, d, layer);
  for (int c = BID * BDIM + TID; c < chans; c += GDIM * BDIM) {
    float x[7];
#pragma unroll
    for (int j = 0; j < 7; j++)
      if (j < n) x[j] = source1(s[SEG_SHIFT + j], u, s, d, layer, c);
#pragma unroll
    for (int j = 0; j < 7; j++)
      if (j < n) to[(u64)j * chans + c] = x[j];
  }
}
KERNEL(delta_shift, ConvArgs, p, 128, 1) {
  pdl_wait();
  pdl_launch();
  for (int seg = BIDY; seg < p.table[0]; seg += GDIMY) {
    const int* s = seg_of(p.table, p.rows, p.d.taps, seg);
    if (s[SEG_FLAGS] & FLAG_SHIFT) shift(s, p.u, p.d, p.layer);
  }
}

// ---- the delta rule

struct DeltaArgs {
  float* out;         // [rows][vheads*vdim]
  const float* qk;    // [rows]: queries, then keys, normalised
  const float* v;     // [rows]: values
  const float* gates; // [rows][2][vheads]
  const int* table;
  In u; // inputs of the convolution, for the newest of a prompt
  int rows, layer, os, qs, vs;
  int tile;   // rows in shared memory at a time, twice
  int shifts; // the newest inputs of the convolution move up here, too
  DeltaShape d;
};

// A head is split over blocks of 32 values, which are independent of each other. Four threads share a value: thread q
// has the keys 16i+4q to 16i+4q+3 for i < I in registers. Rows of the batch pass through shared memory, a tile ahead.
//
// A row: d = beta*(v - g*(s.k)), out = g*(s.q) + d*(q.k), s = g*s + d*k. The output comes from the state before, so
// both sums are made in one pass. Order of sums: four chains of I keys in a thread, added, then over the four threads.
// Applying a row again from the tape makes the same bits. A tree begins every chain at the state and applies its
// ancestors again.
//
// EXACT: kdim is 16*I, vdim a multiple of 32, and rows are aligned for copies of 16 bytes.
// R rows of the state in a thread share what it reads of queries and keys, which is what long prompts wait for.
template <int I, bool EXACT, int R> struct Rule {
  static const int KP = 16 * I; // keys with padding

  const DeltaArgs& p;
  int tid, row, q4, h, kh, value, layer;
  bool live;
  float s[R][4 * I];

  DEV_M int stride() const { return 2 * KP + 32 * R + 4; } // of a row in shared memory: q, k, v, decay, beta, q.k
  DEV_M float* slot(int buf, int i) const { return (float*)smem + (buf * p.tile + i) * stride(); }

  DEV_M void load_state(const float* first) {
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
    for (int i = 0; i < I; i++) {
      const float* st = first + (u64)r * 32 * p.d.kdim;
      F4 f = {0, 0, 0, 0};
      if (EXACT) f = *(const F4*)(st + 16 * i);
      else if (live) {
        int k = 16 * i + 4 * q4;
        if (k < p.d.kdim) f.x = st[16 * i];
        if (k + 1 < p.d.kdim) f.y = st[16 * i + 1];
        if (k + 2 < p.d.kdim) f.z = st[16 * i + 2];
        if (k + 3 < p.d.kdim) f.w = st[16 * i + 3];
      }
      s[r][4 * i] = f.x; s[r][4 * i + 1] = f.y; s[r][4 * i + 2] = f.z; s[r][4 * i + 3] = f.w;
    }
  }
  DEV_M void store_state(float* first) {
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
    for (int i = 0; i < I; i++) {
      float* st = first + (u64)r * 32 * p.d.kdim;
      if (EXACT) {
        F4 f = {s[r][4 * i], s[r][4 * i + 1], s[r][4 * i + 2], s[r][4 * i + 3]};
        *(F4*)(st + 16 * i) = f;
      } else if (live)
#pragma unroll
        for (int j = 0; j < 4; j++)
          if (16 * i + 4 * q4 + j < p.d.kdim) st[16 * i + j] = s[r][4 * i + j];
    }
  }
  // s = g*s + u*k; k begins at this thread's first key.
  DEV_M void apply(float g, const float (&u)[R], const float* k, bool padded) {
#pragma unroll
    for (int i = 0; i < I; i++) {
      F4 f = {0, 0, 0, 0};
      if (EXACT || padded) f = *(const F4*)(k + 16 * i);
      else {
        int at = 16 * i + 4 * q4;
        if (at < p.d.kdim) f.x = k[16 * i];
        if (at + 1 < p.d.kdim) f.y = k[16 * i + 1];
        if (at + 2 < p.d.kdim) f.z = k[16 * i + 2];
        if (at + 3 < p.d.kdim) f.w = k[16 * i + 3];
      }
      update(i, f, g, u);
    }
  }
  DEV_M void update(int i, const F4& f, float g, const float (&u)[R]) {
#pragma unroll
    for (int r = 0; r < R; r++) {
      s[r][4 * i] = ffma(u[r], f.x, fmul(g, s[r][4 * i]));
      s[r][4 * i + 1] = ffma(u[r], f.y, fmul(g, s[r][4 * i + 1]));
      s[r][4 * i + 2] = ffma(u[r], f.z, fmul(g, s[r][4 * i + 2]));
      s[r][4 * i + 3] = ffma(u[r], f.w, fmul(g, s[r][4 * i + 3]));
    }
  }
  // The i-th entry; order is null for a chain.
  static DEV_M int entry(const int* order, int i) { return order ? order[i] : i; }

  // Brings entries [from, to) into buffer buf; a warp has a row at a time.
  DEV_M void load(int first, const int* order, int buf, int from, int to) {
    int lane = tid & 31, part = value - row;
    for (int e = from + (tid >> 5); e < to; e += 4) {
      int r = first + (entry(order, e) & ENTRY_ROW);
      float* x = slot(buf, e - from);
      const float *q = p.qk + (u64)r * p.qs + kh * p.d.kdim, *k = q + p.d.kheads * p.d.kdim;
      const float *v = p.v + (u64)r * p.vs + h * p.d.vdim + part, *gt = p.gates + (u64)r * 2 * p.d.vheads + h;
      if (EXACT) {
        u32 a = saddr(x);
#pragma unroll
        for (int c = 0; c < KP; c += 128)
          if (KP % 128 == 0 || c + 4 * lane < KP) {
            cp16(a + 4 * c + 16 * lane, q + c + 4 * lane);
            cp16(a + 4 * (KP + c) + 16 * lane, k + c + 4 * lane);
          }
        if (lane < 8 * R) cp16(a + 8 * KP + 16 * lane, v + 4 * lane);
        if (lane < 2) cp4(a + 8 * KP + 128 * R + 4 * lane, gt + lane * p.d.vheads);
      } else {
        for (int c = lane; c < KP; c += 32) {
          x[c] = c < p.d.kdim ? q[c] : 0.f;
          x[KP + c] = c < p.d.kdim ? k[c] : 0.f;
        }
        for (int c = lane; c < 32 * R; c += 32) x[2 * KP + c] = part + c < p.d.vdim ? v[c] : 0.f;
        if (lane < 2) x[2 * KP + 32 * R + lane] = gt[lane * p.d.vheads];
      }
    }
    cp_commit();
  }

  // Every row's q.k, a warp each.
  DEV_M void products(int buf, int n) {
    int lane = tid & 31;
    for (int i = tid >> 5; i < n; i += 4) {
      float* x = slot(buf, i);
      float s = 0;
      for (int c = lane; c < KP; c += 32) s = ffma(x[c], x[KP + c], s);
      s = warp_sum(s);
      if (lane == 0) x[2 * KP + 32 * R + 2] = s;
    }
  }

  // One row of the batch: its result and update. Keys stay in registers between the two uses.
  DEV_M void step(int r, const float* x, float* tape) {
    const float *q = x + 4 * q4, *k = x + KP + 4 * q4;
    float a[R][4], b[R][4], u[R];
#pragma unroll
    for (int n = 0; n < R; n++)
#pragma unroll
      for (int j = 0; j < 4; j++) a[n][j] = b[n][j] = 0;
    F4 keys[I];
#pragma unroll
    for (int i = 0; i < I; i++) {
      F4 f = *(const F4*)(k + 16 * i), e = *(const F4*)(q + 16 * i);
      keys[i] = f;
#pragma unroll
      for (int n = 0; n < R; n++) {
        a[n][0] = ffma(s[n][4 * i], f.x, a[n][0]); a[n][1] = ffma(s[n][4 * i + 1], f.y, a[n][1]);
        a[n][2] = ffma(s[n][4 * i + 2], f.z, a[n][2]); a[n][3] = ffma(s[n][4 * i + 3], f.w, a[n][3]);
        b[n][0] = ffma(s[n][4 * i], e.x, b[n][0]); b[n][1] = ffma(s[n][4 * i + 1], e.y, b[n][1]);
        b[n][2] = ffma(s[n][4 * i + 2], e.z, b[n][2]); b[n][3] = ffma(s[n][4 * i + 3], e.w, b[n][3]);
      }
    }
    const float* end = x + 2 * KP;
    float decay = end[32 * R], beta = end[32 * R + 1], qk = end[32 * R + 2];
#pragma unroll
    for (int n = 0; n < R; n++) {
      float sk = fadd(fadd(a[n][0], a[n][1]), fadd(a[n][2], a[n][3]));
      float sq = fadd(fadd(b[n][0], b[n][1]), fadd(b[n][2], b[n][3]));
      sk = fadd(sk, shfl_xor(sk, 1));
      sq = fadd(sq, shfl_xor(sq, 1));
      sk = fadd(sk, shfl_xor(sk, 2));
      sq = fadd(sq, shfl_xor(sq, 2));
      u[n] = fmul(beta, fadd(end[row + 32 * n], -fmul(decay, sk)));
      if (q4 == 0 && live) {
        p.out[(u64)r * p.os + h * p.d.vdim + value + 32 * n] = ffma(decay, sq, fmul(u[n], qk));
        if (tape) tape[32 * n] = u[n];
      }
    }
#pragma unroll
    for (int i = 0; i < I; i++) update(i, keys[i], decay, u);
  }

  DEV_M void segment(const int* g, bool& waited) {
    int chans = channels(p.d), keys = p.d.kheads * p.d.kdim;
    float* st = seg_state(g, p.d, layer) + ((u64)h * p.d.vdim + value) * p.d.kdim + 4 * q4;
    load_state(st);
    // No kernel of this step before this one touches the state or the tape it reads, so waiting comes later.
    int pending = g[SEG_PENDING];
#pragma unroll 1
    for (int i = 0; i < pending; i++) {
      const float* t = seg_read(g, p.d, layer, p.table[g[SEG_PATH] + i]) + chans;
      float u[R];
#pragma unroll
      for (int n = 0; n < R; n++) u[n] = live ? t[keys + h * p.d.vdim + value + 32 * n] : 0.f;
      apply(t[keys + p.d.vheads * p.d.vdim + h], u, t + kh * p.d.kdim + 4 * q4, false);
    }
    bool prompt = g[SEG_FLAGS] & FLAG_PROMPT;
    if (pending) store_state(st);
    if (!waited) pdl_wait();
    waited = true;
    if (p.shifts && g[SEG_FLAGS] & FLAG_SHIFT) shift(g, p.u, p.d, layer);
    // In registers: after every store the compiler would read the table again.
    const int* order = g[SEG_ENTRIES] ? p.table + g[SEG_ORDER] : nullptr;
    int entries = order ? g[SEG_ENTRIES] : g[SEG_N], first = g[SEG_ROW], width = p.d.tape_row;
    float* tape = prompt || !entries ? nullptr : seg_write(g, p.d, layer, 0) + chans + keys + h * p.d.vdim + value;
    SYNC(); // the segment before may still be read
    if (entries) load(first, order, 0, 0, entries < p.tile ? entries : p.tile);
#pragma unroll 1
    for (int from = 0, buf = 0; from < entries; from += p.tile, buf ^= 1) {
      int n = entries - from < p.tile ? entries - from : p.tile, next = from + p.tile;
      if (next < entries) load(first, order, buf ^ 1, next, entries < next + p.tile ? entries : next + p.tile);
      else cp_commit();
      cp_wait<1>();
      SYNC();
      products(buf, n);
      SYNC();
#pragma unroll 1
      for (int i = 0; i < n; i++) {
        int e = entry(order, from + i), t = e & ENTRY_ROW;
        const float* x = slot(buf, i);
        if (e & ENTRY_RESTART) {
          load_state(st);
          syncwarp(); // updates that other lanes wrote to the tape
        }
        if (e & ENTRY_QUIET) {
          float u[R];
#pragma unroll
          for (int n = 0; n < R; n++) u[n] = live ? tape[(u64)t * width + 32 * n] : 0.f;
          apply(x[2 * KP + 32 * R], u, x + KP + 4 * q4, true);
        } else step(first + t, x, tape ? tape + (u64)t * width : nullptr);
      }
      SYNC();
    }
    if (prompt && entries) store_state(st);
  }

  DEV_M void run() {
    int parts = (p.d.vdim + 32 * R - 1) / (32 * R);
    tid = TID; row = tid >> 2; q4 = tid & 3;
    h = BID / parts;
    value = BID % parts * (32 * R) + row; // and every 32nd after it, of which vdim is a multiple if there are several
    live = EXACT || value < p.d.vdim;
    kh = p.d.grouped ? h / (p.d.vheads / p.d.kheads) : h % p.d.kheads;
    layer = p.layer + BIDZ;
    bool waited = false;
    for (int seg = BIDY; seg < p.table[0]; seg += GDIMY) segment(seg_of(p.table, p.rows, p.d.taps, seg), waited);
    if (!waited) pdl_wait();
    pdl_launch(); // not before: its blocks would take the room of the product after the next kernel
  }
};
KERNEL(delta_rule_128, DeltaArgs, p, 128, 4) { Rule<8, true, 1>{p}.run(); }
KERNEL(delta_rule_128x2, DeltaArgs, p, 128, 2) { Rule<8, true, 2>{p}.run(); }
KERNEL(delta_rule_any_16, DeltaArgs, p, 128, 1) { Rule<1, false, 1>{p}.run(); }
KERNEL(delta_rule_any_32, DeltaArgs, p, 128, 1) { Rule<2, false, 1>{p}.run(); }
KERNEL(delta_rule_any_64, DeltaArgs, p, 128, 1) { Rule<4, false, 1>{p}.run(); }
KERNEL(delta_rule_any_128, DeltaArgs, p, 128, 1) { Rule<8, false, 1>{p}.run(); }
KERNEL(delta_rule_any_256, DeltaArgs, p, 128, 1) { Rule<16, false, 1>{p}.run(); }
