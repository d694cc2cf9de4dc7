// Products with stacks of experts for Hopper and later. 16 warps compute as in solo.h; one more goes through the block's
// units, starts the copies and tells the others, in shared memory, what a stage is and where results go: none of them
// waits for global memory on the way.
//
// Two kinds: packed activations come with the weights, row by row; or (GATED) what is multiplied is act(gate) * up of
// an earlier product. Then the warps make and pack the rows of an item themselves, once for all its units. Since
// weights do not depend on that, their copies may start while the product before still runs.
#pragma once
#include "moe.h"
#include "pack.h"

static const int COMPUTE = 16;                       // warps that compute
static const int FRONT = 2048, META = 32 + 32 * 8;   // shared memory before the tables; what is told of a stage
enum { LAST = 1, FRESH = 2, END = 4 };               // stage of its unit; of an item, the first; stage of the block

// A field of one of the four jobs (see find_job).
DEV float opaque(float v) { return bits_f((u32)opaque((int)f_bits(v))); }
#define PICK(T, f) ((T)(two ? second ? opaque(a.job[3].f) : opaque(a.job[2].f) : second ? opaque(a.job[1].f) : opaque(a.job[0].f)))

// Where the parts of shared memory are: barriers, what is told of stages, rows that a block made, the ring.
struct Places {
  u32 full, empty, told, metas, held, ring;
  DEV_M Places(u32 base, u32 at, int rows) // 8 slots at most
      : full(base), empty(base + 64), told(base + 128), metas(base + 256), held(at), ring(at + rows * ROW) {}
};

// total * i / n. Few of these numbers need 64 bits, whose division is slow.
DEV int share(u32 total, int i, int n) {
  return total < 1u << 20 ? (int)(total * (u32)i / (u32)n) : (int)((u64)total * i / n); // at most 4096 blocks
}
// A block's part of the work: units u to end of those of the experts, or of the shared one (two).
struct Part { bool two; int u, end, per0, per; };
template <int NT> DEV Part part(const MoeArgs& a, int items) {
  int shared = 0; // blocks of the shared expert, which come last
  int tiles = (a.rows + 8 * NT - 1) / (8 * NT);
  if (a.jobs2) {
    u64 one = (u64)items * a.cost, two = (u64)tiles * a.cost2, up = two * GDIM + one + two - 1;
    shared = up >> 32 ? (int)(up / (one + two)) : (int)((u32)up / (u32)(one + two));
    if (shared >= GDIM) shared = GDIM - 1;
  }
  int own = GDIM - shared;
  bool two = BID >= own, second = false;
  int bid = two ? BID - own : BID, blocks = two ? shared : own;
  int per0 = PICK(int, groups) * PICK(int, cuts), per = per0;
  if ((two ? a.jobs2 : a.jobs) > 1) {
    second = true;
    per += PICK(int, groups) * PICK(int, cuts);
  }
  u32 total = (u32)(two ? tiles : items) * (u32)per;
  return {two, share(total, bid, blocks), share(total, bid + 1, blocks), per0, per};
}

// The warp that loads. w0, w1: bytes of the halves of a stage; size: of a slot. all: the factor of the only row, or 0:
// then those of an item's rows are asked for with it.
template <int NT, bool GATED>
DEV void load(const MoeArgs& a, const Part& p, const Places& s, const int* tables, int w0, int w1, float all) {
  int lane = TID & 31, pairs = p.two ? a.rows : a.pairs, kbs = p.two ? a.kb2 : a.kb;
  int size = w1 + (GATED ? 0 : NT * 8 * R1);
  bool two = p.two, second = false;
  int item = -1, expert = 0, count = 0, mine = 0; // mine: this lane's pair
  int slot = 0, par = 1;                          // par: of the round before, when a slot is free again
  bool known = false, round = false;
  float rms = all;
  const u8* act = nullptr;
  fence_async(); // activations were written by plain stores
  for (int u = p.u; u < p.end; u++) {
    int it = u / p.per, v = u - it * p.per;
    second = v >= p.per0;
    if (second) v -= p.per0;
    bool fresh = it != item;
    if (fresh) {
      item = it;
      int first = it * 8 * NT;
      if (two) {
        count = a.rows - first < 8 * NT ? a.rows - first : 8 * NT;
        mine = first + lane;
      } else {
        const Expert& x = ((const Expert*)(tables + 4))[it];
        expert = x.expert;
        count = x.count;
        first = x.first;
        if (lane < count) mine = tables[4 + 4 * a.most + first + lane];
      }
      known = all != 0;
      act = (const u8*)(two ? opaque(a.act2) : opaque(a.act)) + (u64)(two ? mine : mine / a.div) * kbs * ROW;
    }
    int cuts = PICK(int, cuts), groups = PICK(int, groups), grp = v / cuts, cut = v - grp * cuts;
    int kb = cut * kbs / cuts, kend = (cut + 1) * kbs / cuts;
    const u8* w = PICK(const u8*, w) + ((u64)expert * (groups * kbs) + grp * kbs + kb) * (w0 + w1);
    for (; kb < kend; kb++, w += (w0 + w1)) {
      int at = slot >> 1; // depth is even
#pragma unroll
      for (int h = 0; h < 2; h++) {
        if (round) bar_wait(s.empty + slot * 8, par);
        u32 to = s.ring + slot * size, bar = s.full + slot * 8;
        if (lane == 0) {
          bar_expect(bar, (h ? w1 : w0) + (GATED ? 0 : count * (h ? R1 : R0)));
          bulk_hint(to, w + h * w0, h ? w1 : w0, bar, evict_first());
        }
        if (!GATED) {
          syncwarp();
          if (lane < count) bulk(to + w1 + lane * R1, act + kb * ROW + h * R0, h ? R1 : R0, bar);
        }
        if (++slot == a.depth) { slot = 0; par ^= 1; round = true; }
      }
      bool last = kb + 1 == kend;
      u32 m = s.metas + at * META;
      if (last || fresh) {
        float f = PICK(float, scale);
        const float* scales = (const float*)PICK(u64, scales);
        if (scales) f = fmul(f, scales[expert]);
        const float* sumsq = (const float*)(two ? opaque(a.sumsq2) : opaque(a.sumsq));
        if (!GATED && sumsq) {
          float mean = two ? opaque(a.mean2) : opaque(a.mean), eps = two ? opaque(a.eps2) : opaque(a.eps);
#pragma unroll 4
          for (int k = 0; k < count && !known; k++) {
            int pair = shfl(mine, k);
            float r = rms_factor(sumsq + (u64)(two ? pair : pair / a.div) * kbs, kbs, mean, eps, lane);
            if (lane == k) rms = r;
          }
          known = true;
          f = fmul(f, rms);
        }
        if (lane < count) sts64(m + 32 + lane * 8, {(u32)mine, f_bits(f)});
      }
      if (lane == 0) {
        u64 y = PICK(u64, part) + ((u64)cut * pairs * (groups * 256) + grp * 256) * 4;
        u32 flags = (last ? LAST : 0) | (fresh ? FRESH : 0) | (last && u + 1 == p.end ? END : 0);
        sts128(m, {flags | (u32)count << 8 | (u32)kb << 16, (u32)groups * 256, (u32)y, (u32)(y >> 32)});
      }
      fresh = false;
      bar_arrive(s.told + at * 8); // every lane, which releases what it wrote
    }
  }
}

// Notes the experts of the only row as tables would: they are different ones, so each is an item. The product before
// knows them already (known), or they are chosen here. The warp that loads.
DEV void choose(const MoeArgs& a, int* tables, int lane, bool known) {
  auto quad = [&](int c) __attribute__((always_inline)) { return *(const F4*)(a.route.x.p + c); };
  int e = 0;
  if (known) {
    if (lane < a.pairs) e = a.route.ids[lane];
  } else
    e = a.route.experts <= 256 ? route<8>(a.route, 0, quad, lane, false) : route<16>(a.route, 0, quad, lane, false);
  if (lane < a.pairs) {
    ((Expert*)(tables + 4))[lane] = {e, lane, 1, 0};
    tables[4 + 4 * a.most + lane] = lane;
  }
  syncwarp();
}
// Their numbers and weights for others: later, by a block that has little to do.
OUTLINE void weigh(int* ids, float* weights, const float* logits, int experts, int used, float scale, int lane) {
  RouteArgs p = {ids, weights, {}, 1, experts, used, used, scale};
  route(p, 0, [&](int c) __attribute__((always_inline)) { return *(const F4*)(logits + c); }, lane, true);
}

// Makes and packs the rows of an item: act(gate) * up. One copy for all formats.
OUTLINE void make(In gate, In up, int kb, int cols, int act, u32 meta, u32 held, int rows) {
  int count = lds32(meta) >> 8 & 255, lane = TID & 31;
  for (int job = TID >> 5; job < count * kb; job += COMPUTE) {
    int r = job / kb, k = job - r * kb, pair = (int)lds32(meta + 32 + r * 8), c = k * 256 + lane * 8;
    float g[8], v[8];
    take8(g, gate, pair, c, cols);
    take8(v, up, pair, c, cols);
    gate8(v, g, act);
    pack_row({smem + (held - saddr(smem)), 1, -1}, 0, k * rows + r, v, lane);
  }
}

DEV In pick(bool two, const In& a, const In& b) {
  In x = opaque(a), y = opaque(b);
  return {two ? y.p : x.p, two ? y.stride : x.stride, two ? y.groups : x.groups, two ? y.kb : x.kb,
          two ? y.grid : x.grid, two ? y.n : x.n, two ? y.first : x.first};
}

// The same for the first item of the only row, which is known without being told: where it lies is found out before
// waiting for the product that leaves it, and everything is asked for at once. A warp makes 256 columns, if the row has
// as few.
struct First {
  const float *g, *u;
  int ng, nu, gs, us; // pieces, and from one to the next
  bool mine;
  DEV_M First() : ng(0), nu(0), mine(false) {}
  DEV_M bool aim(const MoeArgs& a, const Part& p) {
    In gate = pick(p.two, a.gate, a.gate2), up = pick(p.two, a.up, a.up2);
    int kb = p.two ? a.kb2 : a.kb, cols = p.two ? a.cols2 : a.cols, warp = TID >> 5, c = warp * 256 + (TID & 31) * 8;
    if (p.u >= p.end || kb > COMPUTE || cols % 8 || !in_aligned(gate, 8) || !in_aligned(up, 8)) return false;
    mine = warp < kb;
    if (!mine || c >= cols) return true;
    int pair = p.two ? 0 : p.u / p.per;
    g = in_addr(gate, pair, c);
    u = in_addr(up, pair, c);
    ng = in_pieces(gate, c);
    nu = in_pieces(up, c);
    gs = (int)in_step(gate);
    us = (int)in_step(up);
    return true;
  }
  DEV_M void make(u32 held, int act, int rows) const {
    if (!mine) return;
    float gate[8], up[8];
    sum8_two(gate, up, g, gs, ng, u, us, nu);
    gate8(up, gate, act);
    pack_row({smem + (held - saddr(smem)), 1, -1}, 0, (TID >> 5) * rows, up, TID & 31);
  }
};

// The warps that compute. made: the rows of the first item are there already.
template <class F, int NT, bool GATED>
DEV void compute(const MoeArgs& a, const Part& p, const Places& places, bool made) {
  const int W1 = STRIPS * F::H1, SLOT = W1 + (GATED ? 0 : NT * 8 * R1);
  int warp = TID >> 5, lane = TID & 31;
  bool two = p.two;
  u32 full = places.full, empty = places.empty, told = places.told, metas = places.metas, held = places.held, ring = places.ring;
  int table = two ? opaque(a.job[2].table) : opaque(a.job[0].table);
  float acc[NT][4], c[NT][4];
  clear<4 * NT>((float*)acc);
  int slot = 0, par = 0;
  auto none = []() {};
  auto finish = [&]() __attribute__((always_inline)) {
    syncwarp();
    if (lane == 0) bar_arrive(empty + slot * 8);
    if (++slot == a.depth) { slot = 0; par ^= 1; }
  };
  for (bool more = p.u < p.end; more;) {
    int s = slot >> 1;
    u32 m = metas + s * META, x0 = 0;
    int before = par, tiles = NT;
    if (GATED) {
      bar_wait(told + s * 8, before);
      u32 head = lds32(m), kb = head >> 16;
      if (head & FRESH) {
        bar_named<1, COMPUTE * 32>(); // all are done with the rows of the item before, or have made those of the first
        if (!made) {
          int kb = two ? a.kb2 : a.kb, cols = two ? a.cols2 : a.cols;
          make(pick(two, a.gate, a.gate2), pick(two, a.up, a.up2), kb, cols, a.gelu, m, held, NT * 8);
          bar_named<1, COMPUTE * 32>();
        }
        made = false;
      }
      x0 = held + kb * (NT * 8 * ROW);
    } else if (NT > 1) {
      bar_wait(told + s * 8, before);
      tiles = ((lds32(m) >> 8 & 255) + 7) / 8; // those beyond the item's rows are not computed
    }
    auto half = [&](int h) __attribute__((always_inline)) {
      u32 st = ring + slot * SLOT, tile = st + warp * (h ? F::H1 : F::H0);
      bar_wait(full + slot * 8, par);
      if constexpr (GATED) half_stage<F, NT>(c, tile, Whole{x0 + h * R0}, table, lane, none);
      else half_stage<F, NT>(c, tile, ByRow{st + W1}, table, lane, none, tiles);
      if (!h) return;
      if constexpr (GATED) scale<F, NT>(acc, c, tile, Whole{x0 + R0}, lane);
      else scale<F, NT>(acc, c, tile, ByRow{st + W1}, lane, tiles);
    };
    clear<4 * NT>((float*)c);
    half(0);
    finish();
    half(1);
    if (!GATED && NT == 1) bar_wait(told + s * 8, before);
    U4 head = lds128(m);
    if (head.x & LAST) {
      int g = lane >> 2, t = lane & 3, count = head.x >> 8 & 255;
      float* y = (float*)((u64)head.w << 32 | head.z) + warp * 16 + g;
#pragma unroll
      for (int nt = 0; nt < NT; nt++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
          int tok = nt * 8 + 2 * t + i;
          if (tok < count) {
            U2 to = lds64(m + 32 + tok * 8);
            float* p = y + (u64)to.x * head.y;
            p[0] = fmul(acc[nt][i], bits_f(to.y));
            p[8] = fmul(acc[nt][i + 2], bits_f(to.y));
          }
        }
      clear<4 * NT>((float*)acc);
    }
    finish();
    more = !(head.x & END);
  }
}

// ONE: down of one row, which is a kernel of its own: what it has besides would take registers of the others.
template <int SET, int NT, bool GATED, bool ONE> DEV void experts(const MoeArgs& a) {
  u32 base = saddr(smem);
  if (TID == 0) {
    for (int i = 0; i < a.depth; i++) { bar_init(base + i * 8, 1); bar_init(base + 64 + i * 8, COMPUTE); }
    for (int i = 0; i < a.depth / 2; i++) bar_init(base + 128 + i * 8, 32);
    fence_async();
  }
  bool alone = GATED ? ONE : NT == 1 && a.route.experts, loads = TID >> 5 == COMPUTE;
  // The kernel after this one may rely on those before it being complete. Tables are read past the first-level cache,
  // since this may be before the wait.
  if (!alone) {
    if (!GATED || !a.early) pdl_wait();
    if (!GATED) pdl_launch();
    for (int i = TID * 16; i < a.kept; i += BDIM * 16) *(F4*)(smem + FRONT + i) = ldcg128((const u8*)a.tables + i);
  }
  SYNC();
  int* tables = alone || a.kept ? (int*)(smem + FRONT) : (int*)a.tables;
  Places places(base, base + FRONT + a.kept, GATED ? (a.kb > a.kb2 ? a.kb : a.kb2) * NT * 8 : 0);
  Part p = part<NT>(a, alone ? a.pairs : tables[0]);
  if (loads) {
    float rms = 0;
    if (alone) {
      int lane = TID & 31, kb = p.two ? a.kb2 : a.kb;
      if (!GATED || !p.two) pdl_wait();
      if (!GATED) pdl_launch();
      const float* sumsq = (const float*)(p.two ? opaque(a.sumsq2) : opaque(a.sumsq));
      if (!GATED && sumsq) rms = rms_part(sumsq, kb, lane); // on its way while experts are chosen
      if (!p.two) choose(a, tables, lane, GATED);
      float mean = p.two ? opaque(a.mean2) : opaque(a.mean), eps = p.two ? opaque(a.eps2) : opaque(a.eps);
      if (!GATED && sumsq) rms = rms_whole(rms, mean, eps);
    }
    int w0 = p.two ? a.first2 : a.first, w1 = p.two ? a.second2 : a.second;
    load<NT, GATED>(a, p, places, tables, STRIPS * w0, STRIPS * w1, rms);
    if (alone && !GATED && BID == GDIM - 1) {
      const RouteArgs& r = a.route;
      weigh(r.ids, r.weights, r.x.p, r.experts, r.used, r.scale, TID & 31);
    }
    return;
  }
  bool made = false;
  if (GATED) {
    First first;
    if (alone) made = first.aim(a, p);
    pdl_wait();
    pdl_launch();
    if (made) first.make(places.held, a.gelu, NT * 8);
  }
  with_format<SET>(p.two ? a.format2 : a.format, [&](auto f) __attribute__((always_inline)) {
    compute<decltype(f), NT, GATED>(a, p, places, made);
  });
}
#define EXPERTS(NAME, SET) \
  KERNEL(experts_##NAME##_1, MoeArgs, a, 544, 1) { experts<SET, 1, false, false>(a); } \
  KERNEL(experts_##NAME##_4, MoeArgs, a, 544, 1) { experts<SET, 4, false, false>(a); } \
  KERNEL(gated_##NAME, MoeArgs, a, 544, 1) { experts<SET, 1, true, false>(a); } \
  KERNEL(gated_##NAME##_one, MoeArgs, a, 544, 1) { experts<SET, 1, true, true>(a); }
