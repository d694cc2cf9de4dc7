// Gated DeltaNet: short convolution, L2 norms, and the delta rule for the segments of a batch: chains, trees and prompts.
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

template <int W> DEV void put(float* to, const float* v) {
  if (W == 4) {
    F4 f = {v[0], v[W > 1 ? 1 : 0], v[W > 1 ? 2 : 0], v[W > 1 ? 3 : 0]};
    *(F4*)to = f;
  } else
    *to = v[0];
}

// A warp has a head of a row: queries, keys, values, and with `ready` 32 gates at a time after them. W channels side by side belong to a
// lane, 4 for heads of 128 and 256.
template <int W> DEV void conv(const ConvArgs& p) {
  pdl_wait();
  pdl_launch();
  const DeltaShape& d = p.d;
  int lane = TID & 31, chans = channels(d), taps = d.taps;
  int qk = 2 * d.kheads, heads = qk + d.vheads, jobs = heads + (p.ready ? (d.vheads + 31) / 32 : 0);
  for (int job = BID * (BDIM / 32) + (TID >> 5); job < jobs * p.rows; job += GDIM * (BDIM / 32)) {
    int row = job / jobs, h = job - row * jobs;
    const int* r = row_of(p.table, row, taps);
    const int* s = seg_of(p.table, r[0]);
    if (h >= heads) {
      h = (h - heads) * 32 + lane;
      if (h < d.vheads) gate(p, s, row, h);
      continue;
    }
    bool prompt = s[SEG_FLAGS] & FLAG_PROMPT, key = h >= d.kheads && h < qk;
    int dim = h < qk ? d.kdim : d.vdim, first = h < qk ? h * d.kdim : qk * d.kdim + (h - qk) * d.vdim;
    float* tape = prompt ? nullptr : seg_write(s, d, p.layer, row - s[SEG_ROW]);
    float y[8], sum = 0;
#pragma unroll
    for (int i = 0; i < 8 / W; i++) {
      int at = (i * 32 + lane) * W, c = first + at;
      if (at >= dim) continue;
      float x[W];
#pragma unroll
      for (int k = 0; k < W; k++) y[i * W + k] = 0;
      int pieces = in_pieces(p.u, c);
      for (int j = 0; j < taps; j++) {
        int code = r[1 + j];
        if (W == 4) {
          F4 f;
          if ((code & 3) == 0) f = in4(p.u, code >> 2, c, pieces);
          else if ((code & 3) == 1) f = *(const F4*)(seg_inputs(s, d, p.layer) + (u64)(code >> 2) * chans + c);
          else f = *(const F4*)(seg_read(s, d, p.layer, code >> 2) + c);
          x[0] = f.x; x[W > 1 ? 1 : 0] = f.y; x[W > 1 ? 2 : 0] = f.z; x[W > 1 ? 3 : 0] = f.w;
        } else
          x[0] = source1(code, p.u, s, d, p.layer, c);
#pragma unroll
        for (int k = 0; k < W; k++) y[i * W + k] = ffma(p.w[(u64)(c + k) * taps + j], x[k], y[i * W + k]);
      }
      if (tape) put<W>(tape + c, x); // the last tap is the row's own input
#pragma unroll
      for (int k = 0; k < W; k++) {
        y[i * W + k] = silu(y[i * W + k]);
        sum = ffma(y[i * W + k], y[i * W + k], sum);
      }
    }
    float f = 1;
    if (p.ready && h < qk) f = head_scale(p, warp_sum(sum), h < d.kheads);
#pragma unroll
    for (int i = 0; i < 8 / W; i++) {
      int at = (i * 32 + lane) * W;
      if (at >= dim) continue;
#pragma unroll
      for (int k = 0; k < W; k++)
        if (p.ready && h < qk) y[i * W + k] = fmul(y[i * W + k], f);
      put<W>(p.dst + (u64)row * p.ds + first + at, y + i * W);
      if (p.ready && key && tape) put<W>(tape + chans + (h - d.kheads) * d.kdim + at, y + i * W);
    }
  }
}
KERNEL(delta_conv, ConvArgs, p, 128, 1) { conv<1>(p); }
KERNEL(delta_conv4, ConvArgs, p, 128, 1) { conv<4>(p); }

// Norms and gates of rows whose convolution was made by itself: u is its result here, and only queries and keys are written to dst.
template <int W> DEV void prepare(const ConvArgs& p) {
  pdl_wait();
  pdl_launch();
  const DeltaShape& d = p.d;
  int lane = TID & 31, qk = 2 * d.kheads, jobs = qk + (d.vheads + 31) / 32;
  for (int job = BID * (BDIM / 32) + (TID >> 5); job < jobs * p.rows; job += GDIM * (BDIM / 32)) {
    int row = job / jobs, h = job - row * jobs;
    const int* s = seg_of(p.table, row_of(p.table, row, d.taps)[0]);
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

// The newest inputs of the convolution move up; all blocks of x share the channels of a segment.
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
    const int* s = seg_of(p.table, seg);
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
  int layer, os, qs, vs;
  int tile;   // rows in shared memory at a time, twice
  int shifts; // the newest inputs of the convolution move up here, too
  DeltaShape d;
};

// A head is split over blocks of 32 values, which are independent of each other. Four threads share a value: thread q has the keys 16i+4q to
// 16i+4q+3 for i < I in registers. Rows of the batch pass through shared memory, a tile ahead.
//
// A row: d = beta*(v - g*(s.k)), out = g*(s.q) + d*(q.k), s = g*s + d*k. The output comes from the state before, so both sums are made in one
// pass. Order of sums: four chains of I keys in a thread, added, then over the four threads. Applying a row again from the tape makes
// the same bits. A tree begins every chain at the state and applies its ancestors again.
//
// EXACT: kdim is 16*I, vdim a multiple of 32, and rows are aligned for copies of 16 bytes.
template <int I, bool EXACT> struct Rule {
  static const int KP = 16 * I; // keys with padding

  const DeltaArgs& p;
  int tid, row, q4, h, kh, value, layer;
  bool live;
  float s[4 * I];

  DEV_M int stride() const { return 2 * KP + 32 + 4; } // of a row in shared memory: q, k, v, decay, beta, q.k
  DEV_M float* slot(int buf, int i) const { return (float*)smem + (buf * p.tile + i) * stride(); }

  DEV_M void load_state(const float* st) {
#pragma unroll
    for (int i = 0; i < I; i++) {
      F4 f = {0, 0, 0, 0};
      if (EXACT) f = *(const F4*)(st + 16 * i);
      else if (live) {
        int k = 16 * i + 4 * q4;
        if (k < p.d.kdim) f.x = st[16 * i];
        if (k + 1 < p.d.kdim) f.y = st[16 * i + 1];
        if (k + 2 < p.d.kdim) f.z = st[16 * i + 2];
        if (k + 3 < p.d.kdim) f.w = st[16 * i + 3];
      }
      s[4 * i] = f.x; s[4 * i + 1] = f.y; s[4 * i + 2] = f.z; s[4 * i + 3] = f.w;
    }
  }
  DEV_M void store_state(float* st) {
#pragma unroll
    for (int i = 0; i < I; i++) {
      if (EXACT) {
        F4 f = {s[4 * i], s[4 * i + 1], s[4 * i + 2], s[4 * i + 3]};
        *(F4*)(st + 16 * i) = f;
      } else if (live)
#pragma unroll
        for (int j = 0; j < 4; j++)
          if (16 * i + 4 * q4 + j < p.d.kdim) st[16 * i + j] = s[4 * i + j];
    }
  }
  // s = g*s + u*k; k begins at this thread's first key.
  DEV_M void apply(float g, float u, const float* k, bool padded) {
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
      s[4 * i] = ffma(u, f.x, fmul(g, s[4 * i])); s[4 * i + 1] = ffma(u, f.y, fmul(g, s[4 * i + 1]));
      s[4 * i + 2] = ffma(u, f.z, fmul(g, s[4 * i + 2])); s[4 * i + 3] = ffma(u, f.w, fmul(g, s[4 * i + 3]));
    }
  }
  DEV_M int entry(const int* g, int i) const { return g[SEG_ENTRIES] ? p.table[g[SEG_ORDER] + i] : i; }

  // Brings entries [from, to) into buffer buf; a warp has a row at a time.
  DEV_M void load(const int* g, int buf, int from, int to) {
    int lane = tid & 31, part = value - row;
    for (int e = from + (tid >> 5); e < to; e += 4) {
      int r = g[SEG_ROW] + (entry(g, e) & ENTRY_ROW);
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
        if (lane < 8) cp16(a + 8 * KP + 16 * lane, v + 4 * lane);
        if (lane < 2) cp4(a + 8 * KP + 128 + 4 * lane, gt + lane * p.d.vheads);
      } else {
        for (int c = lane; c < KP; c += 32) {
          x[c] = c < p.d.kdim ? q[c] : 0.f;
          x[KP + c] = c < p.d.kdim ? k[c] : 0.f;
        }
        x[2 * KP + lane] = part + lane < p.d.vdim ? v[lane] : 0.f;
        if (lane < 2) x[2 * KP + 32 + lane] = gt[lane * p.d.vheads];
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
      if (lane == 0) x[2 * KP + 34] = s;
    }
  }

  // One row: its result and update.
  DEV_M void step(const int* g, int t, const float* x, float* tape) {
    const float *q = x + 4 * q4, *k = x + KP + 4 * q4;
    float a[4] = {0, 0, 0, 0}, b[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < I; i++) {
      F4 f = *(const F4*)(k + 16 * i), e = *(const F4*)(q + 16 * i);
      a[0] = ffma(s[4 * i], f.x, a[0]); a[1] = ffma(s[4 * i + 1], f.y, a[1]);
      a[2] = ffma(s[4 * i + 2], f.z, a[2]); a[3] = ffma(s[4 * i + 3], f.w, a[3]);
      b[0] = ffma(s[4 * i], e.x, b[0]); b[1] = ffma(s[4 * i + 1], e.y, b[1]);
      b[2] = ffma(s[4 * i + 2], e.z, b[2]); b[3] = ffma(s[4 * i + 3], e.w, b[3]);
    }
    float sk = fadd(fadd(a[0], a[1]), fadd(a[2], a[3])), sq = fadd(fadd(b[0], b[1]), fadd(b[2], b[3]));
    sk = fadd(sk, shfl_xor(sk, 1));
    sq = fadd(sq, shfl_xor(sq, 1));
    sk = fadd(sk, shfl_xor(sk, 2));
    sq = fadd(sq, shfl_xor(sq, 2));
    const float* end = x + 2 * KP;
    float decay = end[32], u = fmul(end[33], fadd(end[row], -fmul(decay, sk)));
    if (q4 == 0 && live) {
      p.out[(u64)(g[SEG_ROW] + t) * p.os + h * p.d.vdim + value] = ffma(decay, sq, fmul(u, end[34]));
      if (tape) tape[(u64)t * p.d.tape_row] = u;
    }
    apply(decay, u, k, true);
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
      float u = live ? t[keys + h * p.d.vdim + value] : 0.f;
      apply(t[keys + p.d.vheads * p.d.vdim + h], u, t + kh * p.d.kdim + 4 * q4, false);
    }
    bool prompt = g[SEG_FLAGS] & FLAG_PROMPT;
    if (pending) store_state(st);
    if (!waited) pdl_wait();
    waited = true;
    if (p.shifts && g[SEG_FLAGS] & FLAG_SHIFT) shift(g, p.u, p.d, layer);
    int entries = g[SEG_ENTRIES] ? g[SEG_ENTRIES] : g[SEG_N];
    float* tape = prompt || !entries ? nullptr : seg_write(g, p.d, layer, 0) + chans + keys + h * p.d.vdim + value;
    SYNC(); // the segment before may still be read
    if (entries) load(g, 0, 0, entries < p.tile ? entries : p.tile);
#pragma unroll 1
    for (int from = 0, buf = 0; from < entries; from += p.tile, buf ^= 1) {
      int n = entries - from < p.tile ? entries - from : p.tile, next = from + p.tile;
      if (next < entries) load(g, buf ^ 1, next, entries < next + p.tile ? entries : next + p.tile);
      else cp_commit();
      cp_wait<1>();
      SYNC();
      products(buf, n);
      SYNC();
#pragma unroll 1
      for (int i = 0; i < n; i++) {
        int e = entry(g, from + i), t = e & ENTRY_ROW;
        const float* x = slot(buf, i);
        if (e & ENTRY_RESTART) {
          load_state(st);
          syncwarp(); // updates that other lanes wrote to the tape
        }
        if (e & ENTRY_QUIET) apply(x[2 * KP + 32], live ? tape[(u64)t * p.d.tape_row] : 0.f, x + KP + 4 * q4, true);
        else step(g, t, x, tape);
      }
      SYNC();
    }
    if (prompt && entries) store_state(st);
  }

  DEV_M void run() {
    int parts = (p.d.vdim + 31) / 32;
    tid = TID; row = tid >> 2; q4 = tid & 3;
    h = BID / parts;
    value = BID % parts * 32 + row;
    live = EXACT || value < p.d.vdim;
    kh = p.d.grouped ? h / (p.d.vheads / p.d.kheads) : h % p.d.kheads;
    layer = p.layer + BIDZ;
    bool waited = false;
    for (int seg = BIDY; seg < p.table[0]; seg += GDIMY) segment(seg_of(p.table, seg), waited);
    if (!waited) pdl_wait();
    pdl_launch(); // not before: its blocks would take the room of the product after the next kernel
  }
};
KERNEL(delta_rule_128, DeltaArgs, p, 128, 4) { Rule<8, true>{p}.run(); }
KERNEL(delta_rule_any_16, DeltaArgs, p, 128, 1) { Rule<1, false>{p}.run(); }
KERNEL(delta_rule_any_32, DeltaArgs, p, 128, 1) { Rule<2, false>{p}.run(); }
KERNEL(delta_rule_any_64, DeltaArgs, p, 128, 1) { Rule<4, false>{p}.run(); }
KERNEL(delta_rule_any_128, DeltaArgs, p, 128, 1) { Rule<8, false>{p}.run(); }
KERNEL(delta_rule_any_256, DeltaArgs, p, 128, 1) { Rule<16, false>{p}.run(); }
