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
  int run;   // rows that a warp has one after the other
  DeltaShape d;
  float eps;
};

// The decay and beta of one head of a row; a and dt are the head's.
DEV void gate(const ConvArgs& p, const int* s, int row, int h, float a, float dt) {
  float al = fadd(in1(p.alpha, row, h), dt);
  float e = exp_(al), sp = al > 20.f ? al : fmul(lg2(fadd(1.f, e)), LN2); // log(1+e^x)
  if (e < 0.0625f) // 1+e^x would lose the digits of e^x
    sp = fmul(e, ffma(-e, ffma(-e, ffma(-e, ffma(-e, 0.2f, 0.25f), 1.f / 3), 0.5f), 1.f));
  float g = exp_(fmul(a, sp));
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

// The convolution over four tokens for heads of 128 or 256: lane l has channels 4l to 4l+3 of every 128. Everything
// that no kernel before wrote is asked for before waiting, and all inputs at once. A warp has a head of p.run rows, one
// after the other: inputs that the next row reads again, which is all but the newest if rows follow each other, stay in
// registers. Heads have at most N*128 channels.
template <int N> DEV void conv4(const ConvArgs& p) {
  const DeltaShape& d = p.d;
  int lane = TID & 31, chans = channels(d), runs = (p.rows + p.run - 1) / p.run;
  bool waited = false;
  auto wait = [&]() __attribute__((always_inline)) {
    if (waited) return;
    pdl_wait();
    pdl_launch(); // not before: the delta rule's blocks would gather on the few multiprocessors that have room now
    waited = true;
  };
  for (int job = BID * (BDIM / 32) + (TID >> 5); job < head_jobs(p, runs); job += GDIM * (BDIM / 32)) {
    HeadJob j = head_job(p, job);
    int from = j.run * p.run, to = from + p.run < p.rows ? from + p.run : p.rows;
    if (j.h >= j.heads) {
      int h = (j.h - j.heads) * 32 + lane;
      float a = h < d.vheads ? p.a[h] : 0.f, dt = h < d.vheads ? p.dt[h] : 0.f;
      wait();
      for (int row = from; row < to; row++)
        if (h < d.vheads) gate(p, row_seg(p, row), row, h, a, dt);
      continue;
    }
    F4 w[N][4], x[N][4];
    int pieces[N], have[4] = {-1, -1, -1, -1}; // have: the sources of x; none is -1
#pragma unroll
    for (int i = 0; i < N; i++)
      if (i * 128 < j.dim) {
        int c = j.first + i * 128 + lane * 4;
        pieces[i] = in_pieces(p.u, c);
#pragma unroll
        for (int k = 0; k < 4; k++) w[i][k] = *(const F4*)(p.w + (u64)(c + k) * 4); // the taps of a channel
      }
#pragma unroll 1
    for (int row = from; row < to; row++) {
      const int *r = row_of(p.table, row, d.taps), *s = seg_of(p.table, p.rows, d.taps, r[0]);
      float* tape = s[SEG_FLAGS] & FLAG_PROMPT ? nullptr : seg_write(s, d, p.layer, row - s[SEG_ROW]);
      const float *inputs = seg_inputs(s, d, p.layer), *read = seg_read(s, d, p.layer, 0);
      int code[4] = {r[1], r[2], r[3], r[4]};
      // Rows of the batch are the same for all segments, other sources are not.
      bool again = code[0] == have[1] && code[1] == have[2] && code[2] == have[3] &&
                   !((code[0] | code[1] | code[2]) & 3);
      float y[4 * N], sum = 0;
#pragma unroll
      for (int i = 0; i < N; i++) {
        if (i * 128 >= j.dim) continue;
        int c = j.first + i * 128 + lane * 4;
        const float* at[4];
#pragma unroll
        for (int k = 0; k < 4; k++) {
          int n = code[k] >> 2;
          at[k] = (code[k] & 3) == 0   ? in_addr(p.u, n, c)
                  : (code[k] & 3) == 1 ? inputs + (u64)n * chans + c
                                       : read + (u64)n * d.tape_row + c;
        }
        // What no kernel of this step wrote is asked for before waiting: most taps of a pass of few rows.
        if (!again)
#pragma unroll
          for (int k = 0; k < 4; k++)
            if (code[k] & 3) x[i][k] = *(const F4*)at[k];
        wait();
        if (again) {
          x[i][0] = x[i][1];
          x[i][1] = x[i][2];
          x[i][2] = x[i][3];
          x[i][3] = sum4(at[3], in_step(p.u), pieces[i]);
        } else {
          F4 v[4][3]; // four pieces at a time
#pragma unroll
          for (int k = 0; k < 4; k++)
            if (!(code[k] & 3)) x[i][k] = *(const F4*)at[k];
#pragma unroll 1
          for (int n = 1; n < pieces[i]; n += 3) {
#pragma unroll
            for (int m = 0; m < 3; m++)
#pragma unroll
              for (int k = 0; k < 4; k++)
                if ((code[k] & 3) == 0 && n + m < pieces[i]) v[k][m] = *(const F4*)(at[k] + (n + m) * in_step(p.u));
#pragma unroll
            for (int m = 0; m < 3; m++)
#pragma unroll
              for (int k = 0; k < 4; k++)
                if ((code[k] & 3) == 0 && n + m < pieces[i]) x[i][k] = add4(x[i][k], v[k][m]);
          }
        }
        if (tape) *(F4*)(tape + c) = x[i][3];
        const F4(&f)[4] = w[i];
        const F4(&z)[4] = x[i];
        float* o = y + 4 * i;
        o[0] = ffma(f[0].w, z[3].x, ffma(f[0].z, z[2].x, ffma(f[0].y, z[1].x, ffma(f[0].x, z[0].x, 0.f))));
        o[1] = ffma(f[1].w, z[3].y, ffma(f[1].z, z[2].y, ffma(f[1].y, z[1].y, ffma(f[1].x, z[0].y, 0.f))));
        o[2] = ffma(f[2].w, z[3].z, ffma(f[2].z, z[2].z, ffma(f[2].y, z[1].z, ffma(f[2].x, z[0].z, 0.f))));
        o[3] = ffma(f[3].w, z[3].w, ffma(f[3].z, z[2].w, ffma(f[3].y, z[1].w, ffma(f[3].x, z[0].w, 0.f))));
#pragma unroll
        for (int k = 0; k < 4; k++) {
          o[k] = silu(o[k]);
          sum = ffma(o[k], o[k], sum);
        }
      }
#pragma unroll
      for (int k = 0; k < 4; k++) have[k] = code[k];
      bool scaled = p.ready && (j.query || j.key);
      float f = scaled ? head_scale(p, warp_sum(sum), j.query) : 1.f;
#pragma unroll
      for (int i = 0; i < N; i++) {
        int at = i * 128 + lane * 4;
        if (at >= j.dim) continue;
        const float* o = y + 4 * i;
        F4 v = {o[0], o[1], o[2], o[3]};
        if (scaled) v = {fmul(o[0], f), fmul(o[1], f), fmul(o[2], f), fmul(o[3], f)};
        *(F4*)(p.dst + (u64)row * p.ds + j.first + at) = v;
        if (scaled && j.key && tape) *(F4*)(tape + chans + (j.h - d.kheads) * d.kdim + at) = v;
      }
    }
  }
  if (!waited) pdl_wait();
}
KERNEL(delta_conv4, ConvArgs, p, 64, 6) { // blocks that find room beside the product before
  if (p.d.kdim <= 128 && p.d.vdim <= 128) conv4<1>(p);
  else conv4<2>(p);
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

// A head is split over blocks of 32 values, which are independent of each other. Eight threads share two values that
// are 16 apart: thread q has the keys 32i+4q to 32i+4q+3 of both for i < I in registers, so that what it reads of
// queries and keys serves twice. Rows of the batch pass through shared memory, a tile ahead, and through registers, a
// row ahead: a row depends on the one before, so there is nothing else to do while it waits for its own loads.
//
// A row: d = beta*(v - g*(s.k)), out = g*(s.q) + d*(q.k), s = g*s + d*k. The output comes from the state before, so
// both sums are made in one pass. Order of sums: four chains of I keys in a thread, added, then over the eight threads.
// Applying a row again from the tape makes the same bits. A tree begins every chain at the state and applies its
// ancestors again.
//
// EXACT: kdim is 32*I, vdim a multiple of 32, and rows are aligned for copies of 16 bytes.
template <int I, bool EXACT> struct Rule {
  static const int KP = 32 * I;              // keys with padding
  static const int STRIDE = 2 * KP + 32 + 4; // of a row in shared memory: q, k, v, decay, beta, q.k

  // What a row of the batch brings to a thread.
  struct Row {
    F4 q[I], k[I], g; // g: decay, beta, q.k
    float v[2];
  };

  const DeltaArgs& p;
  int tid, row, q8, h, kh, value, layer;
  bool live[2];
  float s[2][4 * I];

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
    for (int n = 0; n < 2; n++)
#pragma unroll
      for (int i = 0; i < I; i++) {
        F4 f = keys4(first + (u64)n * 16 * p.d.kdim + 32 * i, 32 * i + 4 * q8, live[n]);
        s[n][4 * i] = f.x; s[n][4 * i + 1] = f.y; s[n][4 * i + 2] = f.z; s[n][4 * i + 3] = f.w;
      }
  }
  DEV_M void store_state(float* first) {
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
      for (int i = 0; i < I; i++) {
        float* st = first + (u64)n * 16 * p.d.kdim + 32 * i;
        if (EXACT) {
          F4 f = {s[n][4 * i], s[n][4 * i + 1], s[n][4 * i + 2], s[n][4 * i + 3]};
          *(F4*)st = f;
        } else if (live[n])
#pragma unroll
          for (int j = 0; j < 4; j++)
            if (32 * i + 4 * q8 + j < p.d.kdim) st[j] = s[n][4 * i + j];
      }
  }
  // s = g*s + u*k
  DEV_M void update(const F4 (&k)[I], float g, const float (&u)[2]) {
#pragma unroll
    for (int i = 0; i < I; i++)
#pragma unroll
      for (int n = 0; n < 2; n++) {
        s[n][4 * i] = ffma(u[n], k[i].x, fmul(g, s[n][4 * i]));
        s[n][4 * i + 1] = ffma(u[n], k[i].y, fmul(g, s[n][4 * i + 1]));
        s[n][4 * i + 2] = ffma(u[n], k[i].z, fmul(g, s[n][4 * i + 2]));
        s[n][4 * i + 3] = ffma(u[n], k[i].w, fmul(g, s[n][4 * i + 3]));
      }
  }

  // Brings entries [from, to) into buffer buf; a warp has a row at a time. order is null for a chain.
  DEV_M void load(int first, const int* order, int buf, int from, int to) {
    int lane = tid & 31, part = value - row;
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
        if (lane == 0 && i + 4 * j < n) slot(buf, i + 4 * j)[2 * KP + 34] = sum[j];
    }
  }

  DEV_M void fetch(Row& r, const float* x) const {
#pragma unroll
    for (int i = 0; i < I; i++) {
      r.q[i] = *(const F4*)(x + 4 * q8 + 32 * i);
      r.k[i] = *(const F4*)(x + KP + 4 * q8 + 32 * i);
    }
    r.g = *(const F4*)(x + 2 * KP + 32);
    r.v[0] = x[2 * KP + row];
    r.v[1] = x[2 * KP + row + 16];
  }

  // One row of the batch: its result and update. out and tape are where this thread's value is written, if it has one.
  DEV_M void step(const Row& r, float* out, float* tape) {
    float a[2][4], b[2][4], sk[2], sq[2], u[2];
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
      for (int j = 0; j < 4; j++) a[n][j] = b[n][j] = 0;
#pragma unroll
    for (int i = 0; i < I; i++)
#pragma unroll
      for (int n = 0; n < 2; n++) {
        const F4 &k = r.k[i], &q = r.q[i];
        a[n][0] = ffma(s[n][4 * i], k.x, a[n][0]); a[n][1] = ffma(s[n][4 * i + 1], k.y, a[n][1]);
        a[n][2] = ffma(s[n][4 * i + 2], k.z, a[n][2]); a[n][3] = ffma(s[n][4 * i + 3], k.w, a[n][3]);
        b[n][0] = ffma(s[n][4 * i], q.x, b[n][0]); b[n][1] = ffma(s[n][4 * i + 1], q.y, b[n][1]);
        b[n][2] = ffma(s[n][4 * i + 2], q.z, b[n][2]); b[n][3] = ffma(s[n][4 * i + 3], q.w, b[n][3]);
      }
#pragma unroll
    for (int n = 0; n < 2; n++) {
      sk[n] = fadd(fadd(a[n][0], a[n][1]), fadd(a[n][2], a[n][3]));
      sq[n] = fadd(fadd(b[n][0], b[n][1]), fadd(b[n][2], b[n][3]));
    }
#pragma unroll
    for (int m = 1; m < 8; m *= 2) {
      sk[0] = fadd(sk[0], shfl_xor(sk[0], m));
      sk[1] = fadd(sk[1], shfl_xor(sk[1], m));
      sq[0] = fadd(sq[0], shfl_xor(sq[0], m));
      sq[1] = fadd(sq[1], shfl_xor(sq[1], m));
    }
    float decay = r.g.x, beta = r.g.y, qk = r.g.z;
#pragma unroll
    for (int n = 0; n < 2; n++) u[n] = fmul(beta, fadd(r.v[n], -fmul(decay, sk[n])));
    update(r.k, decay, u);
    if (out) {
      float d = q8 ? u[1] : u[0];
      *out = ffma(decay, q8 ? sq[1] : sq[0], fmul(d, qk));
      if (tape) *tape = d;
    }
  }

  // The entries of a segment, tile by tile. Chains have no order; their rows are the entries.
  template <bool TREE> DEV_M void rows(const int* order, int entries, int first, const float* st, float* tape) {
    int width = p.d.tape_row;
    bool mine = q8 == 0 ? live[0] : q8 == 1 && live[1];
    float* out = mine ? p.out + (u64)first * p.os + h * p.d.vdim + value + 16 * q8 : nullptr;
    float* own = tape && mine ? tape + 16 * q8 : nullptr;
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
      auto entry = [&](int i, const Row& r) __attribute__((always_inline)) {
        int t = from + i;
        if (TREE) {
          int e = order[t];
          t = e & ENTRY_ROW;
          if (e & ENTRY_RESTART) {
            load_state(st);
            syncwarp(); // updates that other lanes wrote to the tape
          }
          if (e & ENTRY_QUIET) {
            float u[2];
#pragma unroll
            for (int n = 0; n < 2; n++) u[n] = live[n] ? tape[(u64)t * width + 16 * n] : 0.f;
            update(r.k, r.g.x, u);
            return;
          }
        }
        step(r, out ? out + (u64)t * p.os : nullptr, own ? own + (u64)t * width : nullptr);
      };
      Row a, b;
      fetch(a, slot(buf, 0));
#pragma unroll 1
      for (int i = 0; i < n; i += 2) {
        fetch(b, slot(buf, i + 1 < n ? i + 1 : i));
        entry(i, a);
        if (i + 1 == n) break;
        fetch(a, slot(buf, i + 2 < n ? i + 2 : i));
        entry(i + 1, b);
      }
      SYNC();
    }
  }

  DEV_M void segment(const int* g, bool& waited) {
    int chans = channels(p.d), keys = p.d.kheads * p.d.kdim;
    float* st = seg_state(g, p.d, layer) + ((u64)h * p.d.vdim + value) * p.d.kdim + 4 * q8;
    load_state(st);
    // No kernel of this step before this one touches the state or the tape it reads, so waiting comes later.
    int pending = g[SEG_PENDING];
#pragma unroll 1
    for (int i = 0; i < pending; i++) {
      const float* t = seg_read(g, p.d, layer, p.table[g[SEG_PATH] + i]) + chans;
      float u[2];
      F4 k[I];
#pragma unroll
      for (int n = 0; n < 2; n++) u[n] = live[n] ? t[keys + h * p.d.vdim + value + 16 * n] : 0.f;
#pragma unroll
      for (int j = 0; j < I; j++) k[j] = keys4(t + kh * p.d.kdim + 4 * q8 + 32 * j, 32 * j + 4 * q8, true);
      update(k, t[keys + p.d.vheads * p.d.vdim + h], u);
    }
    bool prompt = g[SEG_FLAGS] & FLAG_PROMPT;
    if (pending) store_state(st);
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
    // In registers: after every store the compiler would read the table again.
    const int* order = g[SEG_ENTRIES] ? p.table + g[SEG_ORDER] : nullptr;
    int entries = order ? g[SEG_ENTRIES] : g[SEG_N], first = g[SEG_ROW];
    float* tape = prompt || !entries ? nullptr : seg_write(g, p.d, layer, 0) + chans + keys + h * p.d.vdim + value;
    SYNC(); // the segment before may still be read
    if (order) rows<true>(order, entries, first, st, tape);
    else rows<false>(nullptr, entries, first, st, tape);
    if (prompt && entries) store_state(st);
  }

  DEV_M void run() {
    int parts = (p.d.vdim + 31) / 32;
    tid = TID; row = tid >> 3; q8 = tid & 7;
    h = BID / parts;
    value = BID % parts * 32 + row; // and the 16th after it
    live[0] = EXACT || value < p.d.vdim;
    live[1] = EXACT || value + 16 < p.d.vdim;
    kh = p.d.grouped ? h / (p.d.vheads / p.d.kheads) : h % p.d.kheads;
    layer = p.layer + BIDZ;
    bool waited = false;
    for (int seg = BIDY; seg < p.table[0]; seg += GDIMY) segment(seg_of(p.table, p.rows, p.d.taps, seg), waited);
    if (!waited) pdl_wait();
  }
};
KERNEL(delta_rule_128, DeltaArgs, p, 128, 3) { Rule<4, true>{p}.run(); }
KERNEL(delta_rule_any_32, DeltaArgs, p, 128, 1) { Rule<1, false>{p}.run(); }
KERNEL(delta_rule_any_64, DeltaArgs, p, 128, 1) { Rule<2, false>{p}.run(); }
KERNEL(delta_rule_any_128, DeltaArgs, p, 128, 1) { Rule<4, false>{p}.run(); }
KERNEL(delta_rule_any_256, DeltaArgs, p, 128, 1) { Rule<8, false>{p}.run(); }
