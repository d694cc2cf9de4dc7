// Choosing columns: the best experts of a row, the largest of many logits.
// also for sm_90
#include "choose.h"

// A value and its column as one number that is larger for the better choice: the larger value, then the lower column. 0
// is for NaN, which is never chosen.
DEV u64 key_of(float v, int c) {
  if (!(v == v)) return 0;
  u32 b = f_bits(fadd(v, 0.f)); // -0 counts as 0
  b = b & 0x80000000u ? ~b : b | 0x80000000u;
  return (u64)b << 32 | (u32)~c;
}
DEV int key_column(u64 k) { return k ? (int)~(u32)k : -1; }
DEV float key_value(u64 k) {
  u32 b = (u32)(k >> 32);
  return bits_f(b & 0x80000000u ? b & 0x7fffffffu : ~b);
}
DEV u64 shfl_xor64(u64 v, int m) { return (u64)shfl_xor((u32)(v >> 32), m) << 32 | shfl_xor((u32)v, m); }
DEV u64 warp_best(u64 k) {
#pragma unroll
  for (int i = 16; i; i >>= 1) {
    u64 o = shfl_xor64(k, i);
    if (o > k) k = o;
  }
  return k;
}

// ---- experts

// A warp has a row.
KERNEL(select_route, RouteArgs, p, 32, 1) {
  pdl_wait();
  pdl_launch();
  float* x = (float*)smem;
  for (int e = TID; e < p.experts; e += 32) x[e] = in1(p.x, BID, e);
  syncwarp();
  route(p, BID, x, TID);
}

// ---- the largest of many columns, in two steps: the best of every 8192 columns, then the best of those. Which columns
// belong together depends on nothing but their number.
#define PART 8192
#define EACH (PART / 256) // columns of a thread

struct SelectArgs {
  int* ids;
  float* logp;    // none for the largest alone
  u64* keys;      // [rows][parts][k]: the best columns of a part, best first
  float* sums;    // [rows][parts][2]: the largest value and the sum of exponentials
  In x;
  int rows, cols, k, parts, ls;
  int keep; // the keys of a row fit into shared memory
};

DEV u64 block_best(u64 k, u64* s) { // s: 8 numbers of shared memory
  k = warp_best(k);
  SYNC();
  if ((TID & 31) == 0) s[TID >> 5] = k;
  SYNC();
  k = s[0];
#pragma unroll
  for (int i = 1; i < 8; i++)
    if (s[i] > k) k = s[i];
  return k;
}

// Column i of thread t in part: quads of columns lie side by side.
DEV int part_column(int part, int i) { return part * PART + 4 * (TID + (i >> 2) * 256) + (i & 3); }

DEV void select_parts(const SelectArgs& p) {
  pdl_wait();
  pdl_launch();
  int part = BID, row = BIDY;
  u64* s = (u64*)smem;
  float v[EACH];
  bool wide = in_aligned(p.x, 4);
#pragma unroll
  for (int i = 0; i < EACH; i += 4) {
    int c = part_column(part, i);
    v[i] = v[i + 1] = v[i + 2] = v[i + 3] = bits_f(0x7fc00000);
    if (c + 3 < p.cols && wide) {
      F4 f = in4(p.x, row, c, in_pieces(p.x, c));
      v[i] = f.x; v[i + 1] = f.y; v[i + 2] = f.z; v[i + 3] = f.w;
    } else {
#pragma unroll
      for (int j = 0; j < 4; j++)
        if (c + j < p.cols) v[i + j] = in1(p.x, row, c + j);
    }
  }
  u64 mine = 0;
#pragma unroll
  for (int i = 0; i < EACH; i++) {
    u64 k = key_of(v[i], part_column(part, i));
    if (k > mine) mine = k;
  }
  u64 best = block_best(mine, s);
  u64* keys = p.keys + ((u64)row * p.parts + part) * p.k;
  float m = best ? key_value(best) : -__builtin_inff(), sum = 0;
#pragma unroll
  for (int i = 0; i < EACH; i++)
    if (part_column(part, i) < p.cols)
      sum = fadd(sum, m == -__builtin_inff() && v[i] == v[i] ? 0.f : exp_(fadd(v[i], -m)));
  sum = warp_sum(sum);
  float* w = (float*)(s + 8);
  if ((TID & 31) == 0) w[TID >> 5] = sum;
  SYNC();
  if (TID == 0) {
    for (int i = 1; i < 8; i++) sum = fadd(sum, w[i]);
    float* to = p.sums + ((u64)row * p.parts + part) * 2;
    to[0] = m;
    to[1] = sum;
  }
  for (int j = 0; j < p.k; j++) {
    if (TID == 0) keys[j] = best;
    if (j + 1 == p.k) break;
    if (mine == best && best) { // the winner looks for its next one
      u64 next = 0;
#pragma unroll
      for (int i = 0; i < EACH; i++) {
        u64 k = key_of(v[i], part_column(part, i));
        if (k < best && k > next) next = k;
      }
      mine = next;
    }
    best = block_best(mine, s);
  }
}
KERNEL(select_top_parts, SelectArgs, p, 256, 1) { select_parts(p); }

// The largest alone, and the sums of pieces as plain rows if somebody may want them. It runs once in a pass, after all
// weights went by: its instructions come from memory, so they are few.
struct MaxArgs {
  SelectArgs s;
  float* plain; // or null
  u32* groups;  // [rows][parts][256], select_groups alone: the largest value of each thread's columns
  int stride, pad;
};
#define NOT_FINITE 0xffffffffu // in groups: a column is NaN or infinite

template <bool GROUPS> DEV void max_parts(const MaxArgs& a) {
  const SelectArgs& p = a.s;
  int part = BID, row = BIDY, base = (p.x.first + part * PART) >> 8;
  int* pieces = (int*)(smem + 64); // of the part's groups, behind what block_best needs
  if (TID <= PART / 256) pieces[TID] = in_pieces(p.x, (base + TID) * 256 - p.x.first);
  SYNC();
  pdl_wait();
  pdl_launch();
  u64 mine = 0;
  bool odd = false;
  auto see = [&](float v, int c) __attribute__((always_inline)) {
    u64 k = key_of(v, c);
    if (k > mine) mine = k;
    if (GROUPS) odd |= (f_bits(v) & 0x7f800000u) == 0x7f800000u;
  };
  const int BATCH = 4;
  if (in_aligned(p.x, 4) && p.cols % 4 == 0) {
#pragma unroll 1
    for (int i = 0; i < EACH; i += 4 * BATCH) {
      F4 v[BATCH];
#pragma unroll
      for (int j = 0; j < BATCH; j++) {
        int c = part_column(part, i + 4 * j);
        if (c < p.cols) v[j] = *(const F4*)in_addr(p.x, row, c);
      }
#pragma unroll
      for (int j = 0; j < BATCH; j++) {
        int c = part_column(part, i + 4 * j);
        if (c >= p.cols) break;
        int n = pieces[((p.x.first + c) >> 8) - base];
#pragma unroll 1
        for (int k = 1; k < n; k++) v[j] = add4(v[j], *(const F4*)(in_addr(p.x, row, c) + k * in_step(p.x)));
        see(v[j].x, c), see(v[j].y, c + 1), see(v[j].z, c + 2), see(v[j].w, c + 3);
        if (a.plain) *(F4*)(a.plain + (u64)row * a.stride + c) = v[j];
      }
    }
  } else {
#pragma unroll 1
    for (int i = 0; i < EACH; i++) {
      int c = part_column(part, i);
      if (c >= p.cols) break;
      float v = in1(p.x, row, c);
      see(v, c);
      if (a.plain) a.plain[(u64)row * a.stride + c] = v;
    }
  }
  if (GROUPS) a.groups[((u64)row * p.parts + part) * 256 + TID] = odd ? NOT_FINITE : (u32)(mine >> 32);
  u64 best = block_best(mine, (u64*)smem);
  if (TID == 0) p.keys[(u64)row * p.parts + part] = best;
}
KERNEL(select_max_parts, MaxArgs, a, 256, 1) { max_parts<false>(a); }
KERNEL(select_groups, MaxArgs, a, 256, 1) { max_parts<true>(a); }

// ---- candidates: what a sampler needs of a row. The groups of select_groups have a maximum each; the LEAST-th largest of
// them is a bound that at least as many columns reach, and hardly more. Only groups that reach it are searched.
#define LEAST_CANDIDATES 128
#define MOST_CANDIDATES 256

struct CandidateArgs {
  int* dst;          // [rows][4 + 2*MOST_CANDIDATES]: number, weight of the row (low, high), bound; ids; bits of values
  const u64* keys;   // [rows][parts]: the largest of every part
  const u32* groups; // [rows][parts][256]
  u64* sums;         // [rows][parts]: the weight of every part, or null
  const float* x;
  const float* table; // weight.Table
  int cols, parts, stride, pad;
};

// weight.Exp, bit for bit, and its units.
DEV u64 weight_units(float x, const float* table) {
  if (!(x > -87.f)) return 0;
  int n = (int)fadd(fmul(x, 92.33248261893209f), -0.5f);
  float r = fadd(fadd(x, -fmul((float)n, 0.010833740234375f)), -fmul((float)n, -3.3155381258549027e-06f));
  float p = fadd(fadd(1.f, r), fmul(fmul(r, r), 0.5f));
  float w = fmul(fmul(table[n & 63], bits_f((u32)((n >> 6) + 127) << 23)), p);
  return (u64)fmul(w, 17592186044416.f);
}

// The weight of every part of a row.
KERNEL(select_weights, CandidateArgs, p, 256, 1) {
  pdl_wait();
  pdl_launch();
  int part = BID, row = BIDY;
  u64* s = (u64*)smem;
  u64 best = 0;
  for (int i = TID & 31; i < p.parts; i += 32) {
    u64 k = p.keys[(u64)row * p.parts + i];
    if (k > best) best = k;
  }
  float top = key_value(warp_best(best));
  const float* x = p.x + (u64)row * p.stride;
  u64 sum = 0;
#pragma unroll 4
  for (int i = 0; i < EACH; i++) {
    int c = part * PART + i * 256 + TID;
    if (c < p.cols) sum += weight_units(fadd(x[c], -top), p.table);
  }
#pragma unroll
  for (int i = 16; i; i >>= 1) sum += shfl_xor64(sum, i);
  if ((TID & 31) == 0) s[TID >> 5] = sum;
  SYNC();
  if (TID == 0) {
    for (int i = 1; i < 8; i++) sum += s[i];
    p.sums[(u64)row * p.parts + part] = sum;
  }
}

// A block has a row.
KERNEL(select_candidates, CandidateArgs, p, 256, 1) {
  pdl_wait();
  pdl_launch();
  int row = BID, lane = TID & 31;
  u64* keys = (u64*)smem;                       // of the candidates
  u32* count = (u32*)(keys + MOST_CANDIDATES);  // by digit
  u32* state = count + 256;                     // digits so far, groups still wanted, candidates, whether a value is odd
  const u32* groups = p.groups + (u64)row * p.parts * 256;
  const float* x = p.x + (u64)row * p.stride;
  int* dst = p.dst + (u64)row * (4 + 2 * MOST_CANDIDATES);
  if (TID < 4) state[TID] = TID == 1 ? LEAST_CANDIDATES : 0;
  // The bound, digit by digit, from the upper eight bits down.
#pragma unroll 1
  for (int shift = 24; shift >= 0; shift -= 8) {
    count[TID] = 0;
    SYNC();
    u32 prefix = state[0], wanted = state[1];
    for (int i = TID; i < p.parts * 256; i += 256) {
      u32 g = groups[i];
      if (g == NOT_FINITE) atom_add_shared(saddr(state + 3), 1);
      if (shift == 24 || g >> (shift + 8) == prefix) atom_add_shared(saddr(count + (g >> shift & 255)), 1);
    }
    SYNC();
    if (TID < 32) { // lane l has digits 8l to 8l+7; the groups with larger digits come first
      u32 own = 0;
      for (int i = 0; i < 8; i++) own += count[8 * lane + i];
      u32 above = own; // of this lane and those after it
#pragma unroll
      for (int i = 1; i < 32; i <<= 1) {
        u32 o = shfl(above, lane + i < 32 ? lane + i : 31);
        if (lane + i < 32) above += o;
      }
      above -= own;
      bool here = above < wanted && (wanted <= above + own || lane == 0);
      if (here) {
        int d = 8 * lane + 7;
        for (; d > 8 * lane && above + count[d] < wanted; d--) above += count[d];
        state[0] = prefix << 8 | d;
        state[1] = wanted - above;
      }
    }
    SYNC();
  }
  // Where there is room for all columns all of them are candidates. The key of a value is never 0.
  u32 bound = p.cols <= MOST_CANDIDATES ? 1 : (state[0] ? state[0] : 1);
  for (int i = TID, part = 0; part < p.parts; i += 256, part++) {
    if (groups[i] < bound) continue;
    for (int j = 0; j < EACH; j++) {
      int c = part_column(part, j);
      if (c >= p.cols) break;
      u64 k = key_of(x[c], c);
      if ((u32)(k >> 32) < bound) continue;
      u32 at = atom_add_shared(saddr(state + 2), 1);
      if (at < MOST_CANDIDATES) keys[at] = k;
    }
  }
  SYNC();
  int n = (int)state[2], size = 2;
  bool odd = state[3] != 0;
  if (TID == 0) {
    u64 total = 0;
    if (p.sums)
      for (int i = 0; i < p.parts; i++) total += p.sums[(u64)row * p.parts + i];
    dst[0] = odd ? -1 : n;
    dst[1] = (int)(u32)total;
    dst[2] = (int)(u32)(total >> 32);
    dst[3] = bound > 1 ? (int)f_bits(key_value((u64)bound << 32)) : (int)0xff800000u;
  }
  if (odd || n > MOST_CANDIDATES) return;
  while (size < n) size *= 2;
  for (int i = n + TID; i < size; i += 256) keys[i] = 0;
  // Bitonic sort, the largest key first.
#pragma unroll 1
  for (int k = 2; k <= size; k *= 2)
#pragma unroll 1
    for (int j = k / 2; j; j /= 2) {
      SYNC();
      for (int i = TID; i < size; i += 256) {
        int o = i ^ j;
        if (o <= i) continue;
        u64 u = keys[i], v = keys[o];
        if ((u < v) == ((i & k) == 0)) keys[i] = v, keys[o] = u;
      }
    }
  SYNC();
  for (int i = TID; i < n; i += 256) {
    dst[4 + i] = key_column(keys[i]);
    dst[4 + MOST_CANDIDATES + i] = (int)f_bits(key_value(keys[i]));
  }
}

// Merges the parts of a row; a warp has a row. The parts' lists are in order, so only their heads compete.
KERNEL(select_merge, SelectArgs, p, 32, 1) {
  pdl_wait();
  pdl_launch();
  int row = BID, lane = TID;
  int* head = (int*)(smem + (p.keep ? 8 * p.parts * p.k : 0));
  const u64* keys = p.keys + (u64)row * p.parts * p.k;
  if (p.keep) {
    for (int i = lane; i < p.parts * p.k; i += 32) ((u64*)smem)[i] = keys[i];
    keys = (const u64*)smem;
  }
  for (int i = lane; i < p.parts; i += 32) head[i] = 0;
  syncwarp();
  float lse = 0;
  if (p.logp) {
    const float* sums = p.sums + (u64)row * p.parts * 2;
    float m = -__builtin_inff(), s = 0;
    for (int i = lane; i < p.parts; i += 32) m = fmax_(m, sums[2 * i]);
    m = warp_max(m);
    // a part of nothing but -Inf adds nothing, one with NaN makes everything NaN
    for (int i = lane; i < p.parts; i += 32) {
      float most = sums[2 * i], sum = sums[2 * i + 1];
      s = fadd(s, most == -__builtin_inff() ? sum : fmul(sum, exp_(fadd(most, -m))));
    }
    s = warp_sum(s);
    lse = fadd(m, fmul(lg2(s), LN2));
    if (m == -__builtin_inff()) lse = s == s ? m : s;
  }
  u64 mine = 0; // the best of this lane's parts
  int from = 0;
  bool look = true;
  for (int j = 0; j < p.k; j++) {
    if (look) {
      mine = 0;
      for (int i = lane; i < p.parts; i += 32)
        if (head[i] < p.k && keys[i * p.k + head[i]] > mine) {
          mine = keys[i * p.k + head[i]];
          from = i;
        }
    }
    u64 best = warp_best(mine);
    look = best && mine == best;
    if (look) head[from]++;
    if (lane == 0) {
      p.ids[row * p.k + j] = key_column(best);
      if (p.logp) {
        float v = best ? key_value(best) : -__builtin_inff();
        p.logp[(u64)row * p.ls + j] = lse == -__builtin_inff() ? v : fadd(v, -lse);
      }
    }
  }
}
