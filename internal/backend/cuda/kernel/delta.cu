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
  int run;   // rows that a warp has
  DeltaShape d;
  float eps;
};

// The decay of a head from its alpha; a and dt are the head's.
DEV float decay(float alpha, float a, float dt) {
  float al = fadd(alpha, dt);
  float e = exp_(al), sp = al > 20.f ? al : fmul(lg2(fadd(1.f, e)), LN2); // log(1+e^x)
  if (e < 0.0625f) // 1+e^x would lose the digits of e^x
    sp = fmul(e, ffma(-e, ffma(-e, ffma(-e, ffma(-e, 0.2f, 0.25f), 1.f / 3), 0.5f), 1.f));
  return exp_(fmul(a, sp));
}
// The decay and beta of one head of a row.
DEV void gate(const ConvArgs& p, const int* s, int row, int h, float a, float dt) {
  float g = decay(in1(p.alpha, row, h), a, dt);
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

// The parts of the work on a run of rows that warps share: a head of queries, keys or values each, and with `ready` 32
// gates at a time after them.
struct HeadJob {
  int run, h, heads; // h >= heads: gates
  int dim, first;    // channels of the head
  bool query, key;
};
DEV HeadJob head_job(const ConvArgs& p, int job) {
  const DeltaShape& d = p.d;
  int qk = 2 * d.kheads, heads = qk + d.vheads, jobs = heads + (p.ready ? (d.vheads + 31) / 32 : 0);
  HeadJob j;
  j.run = job / jobs;
  j.h = job - j.run * jobs;
  j.heads = heads;
  j.query = j.h < d.kheads;
  j.key = !j.query && j.h < qk;
  j.dim = j.h < qk ? d.kdim : d.vdim;
  j.first = j.h < qk ? j.h * d.kdim : qk * d.kdim + (j.h - qk) * d.vdim;
  return j;
}
DEV const int* row_seg(const ConvArgs& p, int row) {
  return seg_of(p.table, p.rows, p.d.taps, row_of(p.table, row, p.d.taps)[0]);
}
DEV int head_jobs(const ConvArgs& p, int runs) {
  return runs * (2 * p.d.kheads + p.d.vheads + (p.ready ? (p.d.vheads + 31) / 32 : 0));
}

// The convolution for any sizes: lane l has channels l, l+32, ... of a head.
KERNEL(delta_conv, ConvArgs, p, 64, 1) {
  pdl_wait();
  pdl_launch();
  const DeltaShape& d = p.d;
  int lane = TID & 31, chans = channels(d);
  for (int job = BID * (BDIM / 32) + (TID >> 5); job < head_jobs(p, p.rows); job += GDIM * (BDIM / 32)) {
    HeadJob j = head_job(p, job);
    int row = j.run;
    const int *r = row_of(p.table, row, d.taps), *s = row_seg(p, row);
    if (j.h >= j.heads) {
      int h = (j.h - j.heads) * 32 + lane;
      if (h < d.vheads) gate(p, s, row, h, p.a[h], p.dt[h]);
      continue;
    }
    float* tape = s[SEG_FLAGS] & FLAG_PROMPT ? nullptr : seg_write(s, d, p.layer, row - s[SEG_ROW]);
    float y[8], sum = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
      int at = i * 32 + lane, c = j.first + at;
      if (at >= j.dim) continue;
      float x = 0;
      y[i] = 0;
      for (int t = 0; t < d.taps; t++) {
        x = source1(r[1 + t], p.u, s, d, p.layer, c);
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
      p.dst[(u64)row * p.ds + j.first + at] = y[i];
      if (scaled && j.key && tape) tape[chans + (j.h - d.kheads) * d.kdim + at] = y[i];
    }
  }
}

// What follows is over four tokens. A row from its taps z and the weights f of four channels; adds squares to sum.
DEV F4 conv_row(const F4 (&f)[4], const F4* z, float& sum) {
  float o[4];
  o[0] = ffma(f[0].w, z[3].x, ffma(f[0].z, z[2].x, ffma(f[0].y, z[1].x, ffma(f[0].x, z[0].x, 0.f))));
  o[1] = ffma(f[1].w, z[3].y, ffma(f[1].z, z[2].y, ffma(f[1].y, z[1].y, ffma(f[1].x, z[0].y, 0.f))));
  o[2] = ffma(f[2].w, z[3].z, ffma(f[2].z, z[2].z, ffma(f[2].y, z[1].z, ffma(f[2].x, z[0].z, 0.f))));
  o[3] = ffma(f[3].w, z[3].w, ffma(f[3].z, z[2].w, ffma(f[3].y, z[1].w, ffma(f[3].x, z[0].w, 0.f))));
#pragma unroll
  for (int k = 0; k < 4; k++) {
    o[k] = silu(o[k]);
    sum = ffma(o[k], o[k], sum);
  }
  return {o[0], o[1], o[2], o[3]};
}
DEV F4 mul4(const F4& v, float f) { return {fmul(v.x, f), fmul(v.y, f), fmul(v.z, f), fmul(v.w, f)}; }
// Where channel c of tap `code` is.
DEV const float* tap(const ConvArgs& p, const int* s, int code, int c) {
  int n = code >> 2;
  if ((code & 3) == 0) return in_addr(p.u, n, c);
  if ((code & 3) == 1) return seg_inputs(s, p.d, p.layer) + (u64)n * channels(p.d) + c;
  return seg_read(s, p.d, p.layer, n) + c;
}

// For heads of 128 or 256: lane l has channels 4l to 4l+3 of every 128. Everything that no kernel before wrote is asked
// for before waiting, and all inputs at once. Heads have at most N*128 channels.
template <int N> DEV void conv4(const ConvArgs& p) {
  const DeltaShape& d = p.d;
  int lane = TID & 31, chans = channels(d);
  bool waited = false;
  auto wait = [&]() __attribute__((always_inline)) {
    if (waited) return;
    pdl_wait();
    pdl_launch(); // not before: the delta rule's blocks would gather on the few multiprocessors that have room now
    waited = true;
  };
  for (int job = BID * (BDIM / 32) + (TID >> 5); job < head_jobs(p, p.rows); job += GDIM * (BDIM / 32)) {
    HeadJob j = head_job(p, job);
    int row = j.run;
    if (j.h >= j.heads) {
      int h = (j.h - j.heads) * 32 + lane;
      float a = h < d.vheads ? p.a[h] : 0.f, dt = h < d.vheads ? p.dt[h] : 0.f;
      wait();
      if (h < d.vheads) gate(p, row_seg(p, row), row, h, a, dt);
      continue;
    }
    F4 w[N][4], y[N];
#pragma unroll
    for (int i = 0; i < N; i++)
      if (i * 128 < j.dim)
#pragma unroll
        for (int k = 0; k < 4; k++) // the taps of a channel
          w[i][k] = *(const F4*)(p.w + (u64)(j.first + i * 128 + lane * 4 + k) * 4);
    const int *r = row_of(p.table, row, d.taps), *s = row_seg(p, row);
    float* tape = s[SEG_FLAGS] & FLAG_PROMPT ? nullptr : seg_write(s, d, p.layer, row - s[SEG_ROW]);
    int code[4] = {r[1], r[2], r[3], r[4]};
    float sum = 0;
#pragma unroll
    for (int i = 0; i < N; i++) {
      if (i * 128 >= j.dim) continue;
      int c = j.first + i * 128 + lane * 4, pieces = in_pieces(p.u, c);
      const float* at[4];
      F4 x[4];
#pragma unroll
      for (int k = 0; k < 4; k++) at[k] = tap(p, s, code[k], c);
      // What no kernel of this step wrote is asked for before waiting: most taps of a pass of few rows.
#pragma unroll
      for (int k = 0; k < 4; k++)
        if (code[k] & 3) x[k] = *(const F4*)at[k];
      wait();
      F4 v[4][3]; // four pieces at a time
#pragma unroll
      for (int k = 0; k < 4; k++)
        if (!(code[k] & 3)) x[k] = *(const F4*)at[k];
#pragma unroll 1
      for (int n = 1; n < pieces; n += 3) {
#pragma unroll
        for (int m = 0; m < 3; m++)
#pragma unroll
          for (int k = 0; k < 4; k++)
            if ((code[k] & 3) == 0 && n + m < pieces) v[k][m] = *(const F4*)(at[k] + (n + m) * in_step(p.u));
#pragma unroll
        for (int m = 0; m < 3; m++)
#pragma unroll
          for (int k = 0; k < 4; k++)
            if ((code[k] & 3) == 0 && n + m < pieces) x[k] = add4(x[k], v[k][m]);
      }
      if (tape) *(F4*)(tape + c) = x[3];
      y[i] = conv_row(w[i], x, sum);
    }
    bool scaled = p.ready && (j.query || j.key);
    float f = scaled ? head_scale(p, warp_sum(sum), j.query) : 1.f;
#pragma unroll
    for (int i = 0; i < N; i++) {
      int at = i * 128 + lane * 4;
      if (at >= j.dim) continue;
      if (scaled) y[i] = mul4(y[i], f);
      *(F4*)(p.dst + (u64)row * p.ds + j.first + at) = y[i];
      if (scaled && j.key && tape) *(F4*)(tape + chans + (j.h - d.kheads) * d.kdim + at) = y[i];
    }
  }
  if (!waited) pdl_wait();
}
KERNEL(delta_conv4, ConvArgs, p, 64, 6) { // blocks that find room beside the product before
  if (p.d.kdim <= 128 && p.d.vdim <= 128) conv4<1>(p);
  else conv4<2>(p);
}

// For prompts and heads of 128: a warp has a head of R rows. What those need that follow each other is asked for at
// once, and once.
template <int R> DEV void conv_runs(const ConvArgs& p) { // R: p.run
  const DeltaShape& d = p.d;
  int lane = TID & 31, runs = (p.rows + R - 1) / R;
  pdl_wait();
  pdl_launch();
#pragma unroll 1
  for (int job = BID * (BDIM / 32) + (TID >> 5); job < head_jobs(p, runs); job += GDIM * (BDIM / 32)) {
    HeadJob j = head_job(p, job);
    int row = j.run * R, to = row + R < p.rows ? row + R : p.rows;
    if (j.h >= j.heads) {
      int h = (j.h - j.heads) * 32 + lane;
      if (h < d.vheads)
        for (; row < to; row++) gate(p, row_seg(p, row), row, h, p.a[h], p.dt[h]);
      continue;
    }
    int c = j.first + lane * 4, pieces = in_pieces(p.u, c), stride = p.u.groups ? p.u.groups * 256 : p.u.stride;
    bool scaled = p.ready && (j.query || j.key);
    F4 w[4];
#pragma unroll
    for (int k = 0; k < 4; k++) w[k] = *(const F4*)(p.w + (u64)(c + k) * 4); // the taps of a channel
    int n; // rows from this one on, each of which has the taps of the one before, moved by one
#pragma unroll 1
    for (; row < to; row += n) {
      const int *r = row_of(p.table, row, d.taps), *s = row_seg(p, row);
      const int* l = row_of(p.table, row + lane < to ? row + lane : row, d.taps); // every lane looks at another row
      u32 follows = ballot(lane > 0 && row + lane < to && l[0] == l[-5] && l[1] == l[-3] && l[2] == l[-2] &&
                           l[3] == l[-1]) >> 1;
      n = 1 + popc(follows & ~(follows + 1)); // ones at the end
      F4 x[3 + R], v[3 + R];
      const float *at[3], *own = in_addr(p.u, row, c);
      bool made[3];
#pragma unroll
      for (int k = 0; k < 3; k++) {
        made[k] = (r[1 + k] & 3) == 0;
        at[k] = tap(p, s, r[1 + k], c);
        x[k] = *(const F4*)at[k];
      }
#pragma unroll
      for (int m = 0; m < R; m++)
        if (m < n) x[3 + m] = *(const F4*)(own + (u64)m * stride);
#pragma unroll 1
      for (int k = 1; k < pieces; k++) {
        u64 step = k * in_step(p.u);
#pragma unroll
        for (int m = 0; m < 3; m++)
          if (made[m]) v[m] = *(const F4*)(at[m] + step);
#pragma unroll
        for (int m = 0; m < R; m++)
          if (m < n) v[3 + m] = *(const F4*)(own + step + (u64)m * stride);
#pragma unroll
        for (int m = 0; m < 3; m++)
          if (made[m]) x[m] = add4(x[m], v[m]);
#pragma unroll
        for (int m = 0; m < R; m++)
          if (m < n) x[3 + m] = add4(x[3 + m], v[3 + m]);
      }
      float* tape = s[SEG_FLAGS] & FLAG_PROMPT ? nullptr : seg_write(s, d, p.layer, row - s[SEG_ROW]);
      float sum[R];
#pragma unroll
      for (int m = 0; m < R; m++) { // those that are missing, too: without a branch all run beside each other
        sum[m] = 0;
        v[m] = conv_row(w, x + m, sum[m]);
      }
      if (scaled) {
#pragma unroll
        for (int i = 16; i; i >>= 1)
#pragma unroll
          for (int m = 0; m < R; m++) sum[m] = fadd(sum[m], shfl_xor(sum[m], i));
#pragma unroll
        for (int m = 0; m < R; m++) v[m] = mul4(v[m], head_scale(p, sum[m], j.query));
      }
#pragma unroll
      for (int m = 0; m < R; m++) {
        if (m >= n) continue;
        *(F4*)(p.dst + (u64)(row + m) * p.ds + c) = v[m];
        if (!tape) continue;
        float* t = tape + (u64)m * d.tape_row;
        *(F4*)(t + c) = x[3 + m];
        if (scaled && j.key) *(F4*)(t + channels(d) + (j.h - d.kheads) * d.kdim + lane * 4) = v[m];
      }
    }
  }
}
KERNEL(delta_conv_runs, ConvArgs, p, 64, 8) { conv_runs<4>(p); }

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
      if (h < d.vheads) gate(p, s, row, h, p.a[h], p.dt[h]);
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

// The newest inputs of the convolution move up, from channel c on; the blocks of a row of the grid share the channels of
// a segment.
DEV void shift(const int* s, const In& u, const DeltaShape& d, int layer, int c) {
  int n = d.taps - 1, chans = channels(d);
  float* to = seg_inputs(s, d, layer);
  for (; c < chans; c += GDIM * BDIM) {
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
    if (s[SEG_FLAGS] & FLAG_SHIFT) shift(s, p.u, p.d, p.layer, BID * BDIM + TID);
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

// A head is split over blocks of 16*V values, which are independent of each other. Eight threads share V values: thread
// q has the keys 32i+4q to 32i+4q+3 of each for i < I in registers, so that what it reads of queries and keys serves
// all of them. Rows of the batch pass through shared memory, a tile ahead, and through registers, a row ahead: a row
// depends on the one before, so there is nothing else to do while it waits for its own loads.
//
// A row: d = beta*(v - g*(s.k)), out = g*(s.q) + d*(q.k), s = g*s + d*k. The output comes from the state before, so
// both sums are made in one pass. Order of sums: four chains of I keys in a thread, added, then over the eight threads.
// Applying a row again from the tape makes the same bits. A tree begins every chain at the state and applies its
// ancestors again.
//
// EXACT: kdim is 32*I, vdim a multiple of 16*V, and rows are aligned for copies of 16 bytes.
//
// MANY: there are more blocks than run at once, each with few rows. Their time is that of reading and writing states, so
// blocks take few registers, more of them share a multiprocessor, and rows are asked for together with the state.
template <int I, int V, bool EXACT, bool MANY = false> struct Rule {
  static const int KP = 32 * I;              // keys with padding
  static const int NV = 16 * V;              // values of a block
  static const int STRIDE = 2 * KP + NV + 4; // of a row in shared memory: q, k, v, decay, beta, q.k

  // What a row of the batch brings to a thread, beside its queries.
  struct Row {
    F4 k[I], g; // g: decay, beta, q.k
    float v;    // of value q % V
  };

  const DeltaArgs& p;
  int tid, group, q8, h, kh, value, layer;
  bool live[V];
  F4 q[I];
  float s[V][4 * I];

  DEV_M float* slot(int buf, int i) const { return (float*)smem + (buf * p.tile + i) * STRIDE; }

  // Four keys of a value or a row from k on, which are the keys `at` and after.
  DEV_M F4 keys4(const float* k, int at, bool in) const {
    F4 f = {0, 0, 0, 0};
    if (EXACT) return *(const F4*)k;
    if (in && at < p.d.kdim) f.x = k[0];
    if (in && at + 1 < p.d.kdim) f.y = k[1];
    if (in && at + 2 < p.d.kdim) f.z = k[2];
    if (in && at + 3 < p.d.kdim) f.w = k[3];
    return f;
  }
  DEV_M void load_state(const float* first) {
#pragma unroll
    for (int n = 0; n < V; n++)
#pragma unroll
      for (int i = 0; i < I; i++) {
        F4 f = keys4(first + (u64)n * p.d.kdim + 32 * i, 32 * i + 4 * q8, live[n]);
        s[n][4 * i] = f.x; s[n][4 * i + 1] = f.y; s[n][4 * i + 2] = f.z; s[n][4 * i + 3] = f.w;
      }
  }
  DEV_M void store_state(float* first) {
#pragma unroll
    for (int n = 0; n < V; n++)
#pragma unroll
      for (int i = 0; i < I; i++) {
        float* st = first + (u64)n * p.d.kdim + 32 * i;
        if (EXACT) {
          F4 f = {s[n][4 * i], s[n][4 * i + 1], s[n][4 * i + 2], s[n][4 * i + 3]};
          *(F4*)st = f;
        } else if (live[n])
#pragma unroll
          for (int j = 0; j < 4; j++)
            if (32 * i + 4 * q8 + j < p.d.kdim) st[j] = s[n][4 * i + j];
      }
  }
  // s = g*s + u*k, in two steps: the first needs no sums.
  DEV_M void fade(float g) {
#pragma unroll
    for (int i = 0; i < 4 * I; i++)
#pragma unroll
      for (int n = 0; n < V; n++) s[n][i] = fmul(g, s[n][i]);
  }
  DEV_M void update(const F4 (&k)[I], const float (&u)[V], int from = 0, int to = I) {
#pragma unroll
    for (int i = from; i < to; i++)
#pragma unroll
      for (int n = 0; n < V; n++) {
        s[n][4 * i] = ffma(u[n], k[i].x, s[n][4 * i]);
        s[n][4 * i + 1] = ffma(u[n], k[i].y, s[n][4 * i + 1]);
        s[n][4 * i + 2] = ffma(u[n], k[i].z, s[n][4 * i + 2]);
        s[n][4 * i + 3] = ffma(u[n], k[i].w, s[n][4 * i + 3]);
      }
  }

  // Brings entries [from, to) into buffer buf; a warp has a row at a time. order is null for a chain.
  DEV_M void load(int first, const int* order, int buf, int from, int to) {
    int lane = tid & 31, part = value - group * V;
    for (int e = from + (tid >> 5); e < to; e += 4) {
      int r = first + (order ? order[e] & ENTRY_ROW : e);
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
        if (lane < NV / 4) cp16(a + 8 * KP + 16 * lane, v + 4 * lane);
        if (lane < 2) cp4(a + 8 * KP + 4 * NV + 4 * lane, gt + lane * p.d.vheads);
      } else {
        for (int c = lane; c < KP; c += 32) {
          x[c] = c < p.d.kdim ? q[c] : 0.f;
          x[KP + c] = c < p.d.kdim ? k[c] : 0.f;
        }
        for (int c = lane; c < NV; c += 32) x[2 * KP + c] = part + c < p.d.vdim ? v[c] : 0.f;
        if (lane < 2) x[2 * KP + NV + lane] = gt[lane * p.d.vheads];
      }
    }
    cp_commit();
  }

  // Every row's q.k: warps have every fourth row, and four of them at a time.
  DEV_M void products(int buf, int n) {
    int lane = tid & 31;
    for (int i = tid >> 5; i < n; i += 16) {
      float sum[4];
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const float* x = slot(buf, i + 4 * j < n ? i + 4 * j : i);
        sum[j] = 0;
#pragma unroll
        for (int c = 0; c < KP; c += 32) sum[j] = ffma(x[c + lane], x[KP + c + lane], sum[j]);
      }
#pragma unroll
      for (int m = 16; m; m >>= 1)
#pragma unroll
        for (int j = 0; j < 4; j++) sum[j] = fadd(sum[j], shfl_xor(sum[j], m));
#pragma unroll
      for (int j = 0; j < 4; j++)
        if (lane == 0 && i + 4 * j < n) slot(buf, i + 4 * j)[2 * KP + NV + 2] = sum[j];
    }
  }

  DEV_M void fetch(Row& r, const float* x) const {
#pragma unroll
    for (int i = 0; i < I; i++) r.k[i] = *(const F4*)(x + KP + 4 * q8 + 32 * i);
    r.g = *(const F4*)(x + 2 * KP + NV);
    r.v = x[2 * KP + group * V + (q8 & (V - 1))];
  }
  DEV_M void fetch_queries(const float* x) {
#pragma unroll
    for (int i = 0; i < I; i++) q[i] = *(const F4*)(x + 4 * q8 + 32 * i);
  }
  // Sums over eight threads, of which thread q gets that of value q % V: pairs, then fours, then the caller's eights.
  DEV_M float pair(float a, float b) const { return fadd(q8 & 1 ? b : a, shfl_xor(q8 & 1 ? a : b, 1)); }
  DEV_M void pairs(float (&x)[V]) const {
    x[0] = pair(x[0], x[1]);
    if (V == 4) x[1] = pair(x[V - 2], x[V - 1]);
  }
  DEV_M float fours(const float (&x)[V]) const {
    if (V == 2) return fadd(x[0], shfl_xor(x[0], 2));
    return fadd(q8 & 2 ? x[1] : x[0], shfl_xor(q8 & 2 ? x[0] : x[1], 2));
  }

  // One row of the batch, r, whose queries are in q, which gets those of the next. out and tape are where this thread's
  // result and update are written, if it has them. What waits for other threads stands between what does not.
  DEV_M void step(const Row& r, const float* next, float* out, float* tape) {
    float a[V][4], b[V][4], sk[V], sq[V], u[V];
#pragma unroll
    for (int n = 0; n < V; n++)
#pragma unroll
      for (int j = 0; j < 4; j++) a[n][j] = b[n][j] = 0;
    auto dot = [&](float (&to)[V][4], const F4& x, int i) __attribute__((always_inline)) {
#pragma unroll
      for (int n = 0; n < V; n++) {
        to[n][0] = ffma(s[n][4 * i], x.x, to[n][0]); to[n][1] = ffma(s[n][4 * i + 1], x.y, to[n][1]);
        to[n][2] = ffma(s[n][4 * i + 2], x.z, to[n][2]); to[n][3] = ffma(s[n][4 * i + 3], x.w, to[n][3]);
      }
    };
#pragma unroll
    for (int i = 0; i < I; i++) dot(a, r.k[i], i);
#pragma unroll
    for (int n = 0; n < V; n++) sk[n] = fadd(fadd(a[n][0], a[n][1]), fadd(a[n][2], a[n][3]));
    pairs(sk);
#pragma unroll
    for (int i = 0; i < I / 2; i++) dot(b, q[i], i);
    float k = fours(sk);
#pragma unroll
    for (int i = I / 2; i < I; i++) dot(b, q[i], i);
    fetch_queries(next);
    k = fadd(k, shfl_xor(k, 4));
#pragma unroll
    for (int n = 0; n < V; n++) sq[n] = fadd(fadd(b[n][0], b[n][1]), fadd(b[n][2], b[n][3]));
    pairs(sq);
    float decay = r.g.x, own = fmul(r.g.y, fadd(r.v, -fmul(decay, k)));
    fade(decay);
#pragma unroll
    for (int n = 0; n < V; n++) u[n] = shfl(own, (tid & 24) + n);
    float o = fours(sq);
    update(r.k, u, 0, I / 2);
    o = fadd(o, shfl_xor(o, 4));
    update(r.k, u, I / 2, I);
    o = ffma(decay, o, fmul(own, r.g.z));
    if (out) stg32(out, o);
    if (tape) stg32(tape, own);
  }

  // The entries of a segment, tile by tile. Chains have no order; their rows are the entries.
  template <bool TREE> DEV_M void rows(const int* order, int entries, int first, const float* st, float* tape) {
    int width = p.d.tape_row, os = p.os, tile = p.tile;
    bool mine = q8 < V && (EXACT || value + q8 < p.d.vdim);
    float* out = mine ? p.out + (u64)first * os + h * p.d.vdim + value + q8 : nullptr;
    float* own = tape && mine ? tape + q8 : nullptr;
    if (!MANY && entries) load(first, order, 0, 0, entries < tile ? entries : tile);
#pragma unroll 1
    for (int from = 0, buf = 0; from < entries; from += tile, buf ^= 1) {
      int n = entries - from < tile ? entries - from : tile, next = from + tile;
      if (next < entries) load(first, order, buf ^ 1, next, entries < next + tile ? entries : next + tile);
      else cp_commit();
      cp_wait<1>();
      SYNC();
      products(buf, n);
      SYNC();
      auto entry = [&](int i, const Row& r, const float* x) __attribute__((always_inline)) {
        if (TREE) {
          int e = order[from + i], t = e & ENTRY_ROW;
          if (e & ENTRY_RESTART) {
            load_state(st);
            syncwarp(); // updates that other lanes wrote to the tape
          }
          if (e & ENTRY_QUIET) {
            float u[V];
#pragma unroll
            for (int n = 0; n < V; n++) u[n] = live[n] ? tape[(u64)t * width + n] : 0.f;
            fetch_queries(x);
            fade(r.g.x);
            update(r.k, u);
            return;
          }
          step(r, x, out ? out + (u64)t * os : nullptr, own ? own + (u64)t * width : nullptr);
        } else {
          step(r, x, out, own);
          out = mine ? out + os : nullptr;
          own = own ? own + width : nullptr;
        }
      };
      const float *x = slot(buf, 0), *last = x + (n - 1) * STRIDE;
      Row a, b;
      fetch(a, x);
      fetch_queries(x);
      const bool once = TREE || !EXACT || MANY; // less code where few rows are expected; otherwise a and b take turns
#pragma unroll 1
      for (int i = 0; i < n; i += once ? 1 : 2) {
        x = x < last ? x + STRIDE : last;
        fetch(b, x);
        entry(i, a, x);
        if (once) {
          a = b;
          continue;
        }
        if (i + 1 == n) break;
        x = x < last ? x + STRIDE : last;
        fetch(a, x);
        entry(i + 1, b, x);
      }
      SYNC();
    }
  }

  // Applies the pending rows of a segment.
  DEV_M void apply(const int* g) {
    int chans = channels(p.d), keys = p.d.kheads * p.d.kdim, pending = g[SEG_PENDING];
#pragma unroll 1
    for (int i = 0; i < pending; i++) {
      const float* t = seg_read(g, p.d, layer, p.table[g[SEG_PATH] + i]) + chans;
      float u[V];
      F4 k[I];
#pragma unroll
      for (int n = 0; n < V; n++) u[n] = live[n] ? t[keys + h * p.d.vdim + value + n] : 0.f;
#pragma unroll
      for (int j = 0; j < I; j++) k[j] = keys4(t + kh * p.d.kdim + 4 * q8 + 32 * j, 32 * j + 4 * q8, true);
      fade(t[keys + p.d.vheads * p.d.vdim + h]);
      update(k, u);
    }
  }

  DEV_M void segment(const int* g, bool& waited) {
    int chans = channels(p.d), keys = p.d.kheads * p.d.kdim;
    float* st = seg_state(g, p.d, layer) + ((u64)h * p.d.vdim + value) * p.d.kdim + 4 * q8;
    // In registers: after every store the compiler would read the table again.
    const int* order = g[SEG_ENTRIES] ? p.table + g[SEG_ORDER] : nullptr;
    int entries = order ? g[SEG_ENTRIES] : g[SEG_N], first = g[SEG_ROW];
    if (MANY) {
      if (waited) SYNC(); // the segment before may still be read
      else {
        pdl_wait();
        pdl_launch();
      }
      waited = true;
      if (entries) load(first, order, 0, 0, entries < p.tile ? entries : p.tile);
    }
    load_state(st);
    // No kernel of this step before this one touches the state or the tape it reads, so waiting comes later.
    apply(g);
    bool prompt = g[SEG_FLAGS] & FLAG_PROMPT;
    if (g[SEG_PENDING]) store_state(st);
    // The newest inputs of the convolution of a thread's first channel come before waiting, too, if they are few.
    bool shifts = p.shifts && g[SEG_FLAGS] & FLAG_SHIFT;
    int c = BID * BDIM + tid;
    bool ahead = shifts && p.d.taps <= 4 && c < chans && !waited;
    float x[3];
    if (ahead)
#pragma unroll
      for (int j = 0; j < 3; j++)
        if (j + 1 < p.d.taps && g[SEG_SHIFT + j] & 3) x[j] = source1(g[SEG_SHIFT + j], p.u, g, p.d, layer, c);
    if (!waited) {
      pdl_wait();
      pdl_launch();
    }
    waited = true;
    if (ahead) {
      float* to = seg_inputs(g, p.d, layer);
#pragma unroll
      for (int j = 0; j < 3; j++)
        if (j + 1 < p.d.taps && !(g[SEG_SHIFT + j] & 3)) x[j] = in1(p.u, g[SEG_SHIFT + j] >> 2, c);
#pragma unroll
      for (int j = 0; j < 3; j++)
        if (j + 1 < p.d.taps) to[(u64)j * chans + c] = x[j];
      c += GDIM * BDIM;
    }
    if (shifts) shift(g, p.u, p.d, layer, c);
    float* tape = prompt || !entries ? nullptr : seg_write(g, p.d, layer, 0) + chans + keys + h * p.d.vdim + value;
    if (!MANY) SYNC(); // the segment before may still be read
    if (order) rows<true>(order, entries, first, st, tape);
    else rows<false>(nullptr, entries, first, st, tape);
    if (prompt && entries) store_state(st);
  }

  // A pass of one row: the block makes what the rule needs of it, with the operations of delta_conv4, and there is no
  // kernel before for that. Warp 0 makes the queries, 1 the keys, 2 the block's values, 3 decay and beta. Blocks that
  // share keys make them each; the first of them tapes them, and the last that has read the newest inputs moves those up.
  DEV_M void one(const ConvArgs& c) {
    begin();
    const DeltaShape& d = p.d;
    if (!p.table[0]) {
      pdl_wait();
      return;
    }
    const int *g = seg_of(p.table, 1, d.taps, 0), *r = row_of(p.table, 0, d.taps);
    int warp = tid >> 5, lane = tid & 31, chans = channels(d), keys = d.kheads * d.kdim, part = value - group * V;
    int n = g[SEG_N], ratio = d.vheads / d.kheads; // n: one row, or padding
    bool prompt = g[SEG_FLAGS] & FLAG_PROMPT, moves = g[SEG_FLAGS] & FLAG_SHIFT;
    bool lead = part == 0 && (d.grouped ? h % ratio == 0 : h < d.kheads);
    // Everything that no kernel of this step wrote is asked for at once, before waiting.
    float* st = seg_state(g, d, layer) + ((u64)h * d.vdim + value) * d.kdim + 4 * q8;
    load_state(st);
    bool mine = warp < 2 || warp == 2 && 4 * lane < NV; // four channels from ch on
    int ch = 4 * lane + (warp < 2 ? warp * keys + kh * d.kdim : 2 * keys + h * d.vdim + part), pieces = 0, more = 0;
    const float *own = nullptr, *second = nullptr;
    F4 w[4], x[4];
    float a = 0, dt = 0;
    if (mine) {
#pragma unroll
      for (int k = 0; k < 4; k++) w[k] = *(const F4*)(c.w + (u64)(ch + k) * 4);
#pragma unroll
      for (int k = 0; k < 3; k++) x[k] = *(const F4*)tap(c, g, n ? r[1 + k] : g[SEG_SHIFT + k], ch);
      own = in_addr(c.u, 0, ch);
      pieces = in_pieces(c.u, ch);
    } else if (warp == 3) {
      a = c.a[h], dt = c.dt[h];
      own = in_addr(c.alpha, 0, h), second = in_addr(c.beta, 0, h);
      pieces = in_pieces(c.alpha, h), more = in_pieces(c.beta, h);
    }
    float* at = slot(0, 0);
    if (moves) {
      SYNC(); // all have asked for their inputs
      if (tid == 96) at[2 * KP + NV + 3] = bits_f(atom_inc_gpu((u32*)p.table + p.table[2] + kh));
    }
    apply(g);
    if (g[SEG_PENDING]) store_state(st);
    pdl_wait();
    pdl_launch();
    float* tape = prompt || !n ? nullptr : seg_write(g, d, layer, 0);
    if (mine && n) {
      x[3] = *(const F4*)own;
#pragma unroll 1
      for (int k = 1; k < pieces; k += 3) {
        F4 v[3];
#pragma unroll
        for (int m = 0; m < 3; m++)
          if (k + m < pieces) v[m] = *(const F4*)(own + (k + m) * in_step(c.u));
#pragma unroll
        for (int m = 0; m < 3; m++)
          if (k + m < pieces) x[3] = add4(x[3], v[m]);
      }
      float sum = 0;
      F4 y = conv_row(w, x, sum);
      if (warp < 2) y = mul4(y, head_scale(c, warp_sum(sum), warp == 0));
      *(F4*)(at + warp * KP + 4 * lane) = y;
      if (tape && (lead || warp == 2)) *(F4*)(tape + ch) = x[3];
      if (tape && lead && warp == 1) *(F4*)(tape + chans + kh * d.kdim + 4 * lane) = y;
    } else if (n && tid == 96) {
      float v = 0, b = 0, x[4], y[4]; // four pieces of alpha and beta at a time
#pragma unroll 1
      for (int k = 0; k < pieces || k < more; k += 4) {
#pragma unroll
        for (int m = 0; m < 4; m++) {
          if (k + m < pieces) x[m] = own[(k + m) * in_step(c.alpha)];
          if (k + m < more) y[m] = second[(k + m) * in_step(c.beta)];
        }
#pragma unroll
        for (int m = 0; m < 4; m++) {
          if (k + m < pieces) v = k + m ? fadd(v, x[m]) : x[m];
          if (k + m < more) b = k + m ? fadd(b, y[m]) : y[m];
        }
      }
      v = decay(v, a, dt);
      at[2 * KP + NV] = v;
      at[2 * KP + NV + 1] = sigmoid(b);
      if (tape && part == 0) tape[chans + keys + d.vheads * d.vdim + h] = v;
    }
    SYNC();
    if (n) {
      Row row;
      fetch(row, at);
      fetch_queries(at);
      float qk = 0;
#pragma unroll
      for (int k = 0; k < KP; k += 32) qk = ffma(at[k + lane], at[KP + k + lane], qk);
      row.g.z = warp_sum(qk);
      bool writes = q8 < V;
      step(row, at, writes ? p.out + h * d.vdim + value + q8 : nullptr,
           writes && tape ? tape + chans + keys + h * d.vdim + value + q8 : nullptr);
      if (prompt) store_state(st);
    }
    int blocks = ratio * (d.vdim / NV);
    if (moves && mine && (warp == 2 || (int)(f_bits(at[2 * KP + NV + 3]) % blocks) == blocks - 1)) {
      float* to = seg_inputs(g, d, layer) + ch;
#pragma unroll
      for (int k = 0; k < 3; k++) {
        F4 v = x[k];
        if (prompt && n) v = x[k + 1];
        *(F4*)(to + (u64)k * chans) = v;
      }
    }
  }

  DEV_M void begin() {
    int parts = (p.d.vdim + NV - 1) / NV;
    tid = TID; group = tid >> 3; q8 = tid & 7;
    h = BID / parts;
    value = BID % parts * NV + group * V; // and those after it
#pragma unroll
    for (int n = 0; n < V; n++) live[n] = EXACT || value + n < p.d.vdim;
    kh = p.d.grouped ? h / (p.d.vheads / p.d.kheads) : h % p.d.kheads;
    layer = p.layer + BIDZ;
  }
  DEV_M void run() {
    begin();
    bool waited = false;
    for (int seg = BIDY; seg < p.table[0]; seg += GDIMY) segment(seg_of(p.table, p.rows, p.d.taps, seg), waited);
    if (!waited) pdl_wait();
  }
};
KERNEL(delta_rule_128, DeltaArgs, p, 128, 3) { Rule<4, 2, true>{p}.run(); }
struct OneArgs { ConvArgs c; DeltaArgs r; };
KERNEL(delta_one_128, OneArgs, a, 128, 3) { Rule<4, 2, true>{a.r}.one(a.c); }
KERNEL(delta_rule_128_many, DeltaArgs, p, 128, 4) { Rule<4, 2, true, true>{p}.run(); }
KERNEL(delta_rule_128_by_4, DeltaArgs, p, 128, 2) { Rule<4, 4, true>{p}.run(); }
KERNEL(delta_rule_any_32, DeltaArgs, p, 128, 1) { Rule<1, 2, false>{p}.run(); }
KERNEL(delta_rule_any_64, DeltaArgs, p, 128, 1) { Rule<2, 2, false>{p}.run(); }
KERNEL(delta_rule_any_128, DeltaArgs, p, 128, 1) { Rule<4, 2, false>{p}.run(); }
KERNEL(delta_rule_any_256, DeltaArgs, p, 128, 1) { Rule<8, 2, false>{p}.run(); }
