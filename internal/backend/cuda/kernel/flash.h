// Attention on Hopper's warpgroup products, for halves: the same operations in the same order as attend in attend.h.
//
// A warpgroup has 64 rows (tokens x query heads of a KV head): S = Q K' from shared memory, the weights stay in its
// registers, O += P V. With 512 dimensions two warpgroups have the same rows, both compute their scores, and each has
// half of the values' dimensions. One warp copies pages of keys and of values into a ring; pages without slots of
// this step before the kernels before are done. Packed types are unpacked on the way into the ring by four warps, each
// with every fourth tile: with its loads and its arithmetic at different times, they hide behind each other.
#pragma once
#include "attention.h"
#include "wgmma.h"
#if defined(HOPPER) || defined(EMULATE)

// Starts the copy of DIM dimensions of a page as a path sees it: 16 bytes at a time where slots change their place.
template <int DIM>
DEV void gather(const Attn& a, const Item& it, const Walk& w, u64 region, u32 dst, u32 bar, int lane) {
  for (int s = lane; s < 64; s += 32) {
    int from = lies_at(a.paths, it.path + w.k, it.base, w.p * 64 + s);
    const u8* src = (const u8*)a.pages[it.table + (from >> 6)] + region + (from & 63) * 128;
    u32 to = dst + s * 128;
    for (int sub = 0; sub < DIM / 64; sub++, src += 8192, to += 8192) {
      if (!((from ^ s) & 7)) bulk(to, src, 128, bar);
      else
        for (int c = 0; c < 8; c++) bulk(to + ((c ^ (s & 7)) << 4), src + ((c ^ (from & 7)) << 4), 16, bar);
    }
  }
}

// 16 bytes of a slot (of turbo3 12) as they are stored, and their scale.
struct Stored {
  U4 q;
  u32 scale;
};
template <int TYPE, int DIM> DEV Stored fetch(const u8* head, int slot, int d) {
  const int QB = TYPE == KV_Q8 ? DIM : TYPE == KV_T3 ? DIM * 3 / 8 : DIM / 2;
  const u8 *row = head + slot * QB, *sc = head + 64 * QB + slot * scale_bytes(TYPE, DIM) + scale_at(TYPE, d);
  Stored x;
  if (TYPE == KV_T3) {
    U2 low = *(const U2*)(row + (d >> 2));
    x.q = {low.x, low.y, *(const u32*)(row + (DIM >> 2) + (d >> 3)), 0};
  } else x.q = *(const U4*)(row + (TYPE == KV_Q8 ? d : d >> 1));
  x.scale = TYPE == KV_Q4_1 ? *(const u32*)sc : *(const u16*)sc;
  return x;
}
// Unpacks dimensions [d0, d0+DV) of a page, B loads in flight; one warp. A branch between two loads would make the
// second wait for the first, so there is a function for every type.
template <int TYPE, int DIM, int DV, int B>
DEV void unpack_tile(const Attn& a, const Item& it, const Walk& w, u64 region, int d0, u32 dst, int lane) {
  const int VALUES = TYPE == KV_Q8 ? 16 : 32, COLS = DV / VALUES; // of a load; loads of a slot
  bool gathered = w.gathered(it);
  const u8* page = (const u8*)a.pages[it.table + w.p] + region;
#pragma unroll 1
  for (int i0 = lane; i0 < 64 * COLS; i0 += 32 * B) {
    const u8* from[B];
    int slot[B];
    Stored x[B];
#pragma unroll
    for (int b = 0; b < B; b++) { // 8 lanes write to 8 slots: no two to the same banks
      int i = i0 + 32 * b;
      from[b] = page;
      slot[b] = (i & 7) + i / (8 * COLS) * 8;
    }
    if (gathered)
#pragma unroll
      for (int b = 0; b < B; b++) {
        int at = lies_at(a.paths, it.path + w.k, it.base, w.p * 64 + slot[b]);
        from[b] = (const u8*)a.pages[it.table + (at >> 6)] + region;
        slot[b] = at & 63;
      }
#pragma unroll
    for (int b = 0; b < B; b++) x[b] = fetch<TYPE, DIM>(from[b], slot[b], d0 + (i0 + 32 * b) / 8 % COLS * VALUES);
#pragma unroll
    for (int b = 0; b < B; b++) {
      int i = i0 + 32 * b, s = (i & 7) + i / (8 * COLS) * 8, c = i / 8 % COLS * (VALUES / 8);
      const U4& q = x[b].q;
      u32 w[4] = {q.x, q.y, q.z, q.w};
      if (TYPE == KV_T3) {
        w[0] = (q.x & 0xffff) | (q.z << 16 & 0xff0000), w[1] = q.x >> 16 | (q.z << 8 & 0xff0000);
        w[2] = (q.y & 0xffff) | (q.z & 0xff0000), w[3] = q.y >> 16 | (q.z >> 8 & 0xff0000);
      }
#pragma unroll
      for (int k = 0; k < VALUES / 8; k++) {
        U4 h = TYPE == KV_Q8 ? halves8({w[2 * k & 3], w[(2 * k + 1) & 3]}, x[b].scale)
                             : halves8(TYPE, w[k], x[b].scale);
        sts128(dst + ((c + k) >> 3) * 8192 + s * 128 + ((((c + k) & 7) ^ (s & 7)) << 4), h);
      }
    }
  }
}

// DIM dimensions of 64 rows of queries as halves, swizzled, and rotated with TURN if the keys are; 128 threads
template <int DIM, bool TURN>
DEV void load_q(const Attn& a, const float* q, u32 qs, int first, int used, int hs, int tid) {
  const int STEP = 128 / (DIM / 8);              // rows that 128 threads have at once
  const int MOST = TURN ? 4 : 8, B = 64 / STEP < MOST ? 64 / STEP : MOST; // loads in flight
  int c = tid % (DIM / 8), r0 = tid / (DIM / 8);
  bool turn = TURN && turns_keys(a.at.ktype);
  // Rows that are not used hold anything: no row's result depends on another's.
#pragma unroll 1
  for (int k = 0; k < 64 / STEP && first + k * STEP < used; k += B) {
    float v[B][8];
#pragma unroll
    for (int i = 0; i < B; i++) {
      int m = first + r0 + (k + i) * STEP;
#pragma unroll
      for (int j = 0; j < 8; j++) v[i][j] = 0;
      if (m < used) load8(v[i], q + (u64)(m / hs) * a.qstride + m % hs * a.at.kdim + c * 8);
    }
#pragma unroll
    for (int i = 0; i < B; i++) {
      int r = r0 + (k + i) * STEP;
      if (turn) rotate8(v[i], c * 8, DIM < 128 ? DIM : 128, false);
      U4 h = {f2h2(v[i][0], v[i][1]), f2h2(v[i][2], v[i][3]), f2h2(v[i][4], v[i][5]), f2h2(v[i][6], v[i][7])};
      if (first + r < used) sts128(qs + (c >> 3) * 8192 + r * 128 + (((c & 7) ^ (r & 7)) << 4), h);
    }
  }
}

// The slots of a page from s on, a bit each.
DEV u64 from_slot(int s) { return s <= 0 ? ~0ull : s > 63 ? 0 : ~0ull << s; }

// USED: heads are padded with zeros from this dimension on; results are written as far as it.
template <int DIM, int WG, int SLOTS, bool PACKED, int USED = DIM> DEV void flash(const Attn& a) {
  const int H = DIM > 256 ? 2 : 1, DV = DIM / H, TILE = DV * 128; // parts of a page, their dimensions and bytes
  const int D = USED < DV ? USED : DV;                            // dimensions of a part that are computed
  const int B = WG > 1 ? 4 : 8; // loads of a lane in flight
  int warp = TID >> 5, lane = TID & 31;
  u32 qs = (saddr(smem) + 1023) & ~1023u, ring = qs + WG * TILE, full = ring + SLOTS * TILE, empty = full + 8 * SLOTS;
  u32 state = empty + 8 * SLOTS + (H > 1 ? TID >> 7 : 0) * 512;
  if (TID == 0) {
    for (int i = 0; i < SLOTS; i++) {
      bar_init(full + i * 8, 1);
      bar_init(empty + i * 8, WG * 4);
    }
    fence_async();
  }
  SYNC();
  pdl_launch();
  int ys = a.kvheads * a.chunks, units = a.items[0] * ys, slot = 0;
  if (warp >= WG * 4) { // a warp that loads
    if (WG > 1) fewer_registers<56>();
    if (!PACKED && warp > WG * 4) return;
    bool waited = false;
    int par = 1, n = 0;
    for (int u = BID; u < units; u += GDIM) {
      Item it = ((const Item*)a.items)[1 + u / ys];
      u64 region = a.at.off + (u64)(u % ys / a.chunks) * a.at.head;
      int h0 = u % ys / a.chunks * a.group + u % a.chunks * a.chunk;
      for (Walk w = {it.p0, 0}; w.p < it.p1; w.next(a, it, h0)) {
        bool gathered = w.gathered(it);
        if (!waited && (gathered || w.p >= it.fresh)) {
          if (!PACKED && !gathered && lane == 0) { // what is there already comes from the cache then
            const u8* page = (const u8*)a.pages[it.table + w.p] + region;
            prefetch_l2(page, H * TILE);
            prefetch_l2(page + a.at.values, H * TILE);
          }
          pdl_wait();
          waited = true;
        }
        for (int h = 0; h < 2 * H; h++) {
          int type = h < H ? a.at.ktype : a.at.vtype, half = h < H ? h : h - H;
          u64 part = region + (h < H ? 0 : a.at.values);
          bool mine = !PACKED || (n & 3) == warp - WG * 4;
          if (mine && n >= SLOTS) bar_wait(empty + slot * 8, par);
          if (PACKED && mine && type != KV_F16) {
            u32 to = ring + slot * TILE;
            switch (type) {
            case KV_Q8: unpack_tile<KV_Q8, DIM, DV, B>(a, it, w, part, half * DV, to, lane); break;
            case KV_Q4_0: unpack_tile<KV_Q4_0, DIM, DV, B>(a, it, w, part, half * DV, to, lane); break;
            case KV_Q4_1: unpack_tile<KV_Q4_1, DIM, DV, B>(a, it, w, part, half * DV, to, lane); break;
            case KV_T4: unpack_tile<KV_T4, DIM, DV, B>(a, it, w, part, half * DV, to, lane); break;
            default: unpack_tile<KV_T3, DIM, DV, B>(a, it, w, part, half * DV, to, lane);
            }
            fence_async();
            syncwarp();
            if (lane == 0) bar_arrive(full + slot * 8);
          } else if (mine) {
            part += half * TILE;
            if (lane == 0) {
              bar_expect(full + slot * 8, TILE);
              if (!gathered) bulk(ring + slot * TILE, (const u8*)a.pages[it.table + w.p] + part, TILE, full + slot * 8);
            }
            if (gathered) {
              syncwarp();
              gather<DV>(a, it, w, part, ring + slot * TILE, full + slot * 8, lane);
              syncwarp();
            }
          }
          n++;
          if (++slot == SLOTS) {
            slot = 0;
            par ^= 1;
          }
        }
      }
    }
    return;
  }
  if (WG > 1) more_registers<WG == 2 ? 224 : 152>(); // with the loading warps' 56 all there are
  int wg = warp >> 2, g = lane >> 2, t = lane & 3, par = 0;
  int wrow = H > 1 ? 0 : wg * 64, team = H > 1 ? 256 : 128; // its first row; threads that share queries
  u64 dq = desc128(qs + (H > 1 ? 0 : wg * TILE), 16, 1024);
  if (BID < units) { // nobody writes tables in a step: they are in the cache when they are wanted
    const Item* ip = (const Item*)a.items + 1 + BID / ys;
    int row = (int)ldg32(&ip->row), rows = (int)ldg32(&ip->rows);
    ldg32(&ip->base);
    ldg32(&ip->hi);
    if (lane < rows) {
      ldg32(&a.seen[row + lane].lo);
      ldg32(&a.seen[row + lane].block);
    }
  }
  pdl_wait();
  for (int u = BID; u < units; u += GDIM) {
    // Its fields are read again where they are needed: registers are scarce.
    const Item* ip = (const Item*)a.items + 1 + u / ys;
    int kv = u % ys / a.chunks, y = u % a.chunks, hs = heads_of(a, y), used = ip->rows * hs;
    int row0 = wrow + (warp & 3) * 16 + g, p1 = ip->p1, tail = ip->base >> 6;
    int clear0 = (ip->lo + 63) >> 6, clear1 = ip->hi >> 6; // pages that all rows see whole
    auto done = [&]() __attribute__((always_inline)) {
      syncwarp();
      if (lane == 0) bar_arrive(empty + slot * 8);
      if (++slot == SLOTS) {
        slot = 0;
        par ^= 1;
      }
    };
    if (wrow >= used) { // no rows for this warpgroup
      Item it = *ip;
      for (Walk w = {it.p0, 0}; w.p < it.p1; w.next(a, it, kv * a.group + y * a.chunk))
        for (int h = 0; h < 2 * H; h++) {
          bar_wait(full + slot * 8, par);
          done();
        }
      continue;
    }
    bar_named(H > 1 ? 1 : 1 + wg, team); // all warps are done with the queries before
    const float* q = a.q + (u64)ip->row * a.qstride + (kv * a.group + y * a.chunk) * DIM + (H > 1 ? wg * DV : 0);
    load_q<DV, PACKED>(a, q, qs + wg * TILE, wrow, used, hs, TID & 127);
    fence_async();
    bar_named(H > 1 ? 1 : 1 + wg, team);
    float o[D / 2];
#pragma unroll
    for (int i = 0; i < D / 2; i++) o[i] = 0;
    float m[2] = {NOTHING, NOTHING}, l[2] = {0, 0};
    for (int p = ip->p0, path = 0; p < p1;) {
      float s[32];
#pragma unroll
      for (int h = 0; h < H; h++) {
        bar_wait(full + slot * 8, par);
        u64 dk = desc128(ring + slot * TILE, 16, 1024);
        wg_keep(s);
        wg_fence();
#pragma unroll
        for (int d = 0; d < D / 16; d++) {
          int at = (d >> 2) * (8192 >> 4) + (d & 3) * 2;
          wg_ss(s, dq + h * (TILE >> 4) + at, dk + at, h > 0 || d > 0);
        }
        wg_commit();
        wg_wait<0>();
        wg_keep(s);
        done();
      }
      if (p >= tail || p < clear0 || p >= clear1) {
        int here = (int)ldg32(&ip->path) + path, row = (int)ldg32(&ip->row);
#pragma unroll
        for (int r = 0; r < 2; r++) {
          int k = row0 + r * 8;
          const Seen* see = a.seen + row + (k < used ? k : used - 1) / hs;
          u64 seen = p >= tail && see->path != here ? 0 : from_slot(see->lo - p * 64) & ~from_slot(see->hi - p * 64);
          seen >>= 2 * t;
#pragma unroll
          for (int j = 0; j < 8; j++)
#pragma unroll
            for (int e = 0; e < 2; e++)
              if (!(seen >> (8 * j + e) & 1)) s[4 * j + 2 * r + e] = NOTHING;
        }
      }
      float f[2];
      u32 pr[16];
#pragma unroll
      for (int r = 0; r < 2; r++) {
        float top = NOTHING;
#pragma unroll
        for (int j = 0; j < 8; j++) top = fmax_(top, fmax_(s[4 * j + 2 * r], s[4 * j + 2 * r + 1]));
        top = fmax_(top, shfl_xor(top, 1));
        top = fmax_(top, shfl_xor(top, 2));
        float n = fmax_(m[r], exponent(top, a.scale)), z = none_seen(n) ? 0.f : n, c[8];
        f[r] = ex2z(fadd(m[r], -n));
        m[r] = n;
#pragma unroll
        for (int j = 0; j < 8; j++) {
          float x = weight(s[4 * j + 2 * r], a.scale, z), y = weight(s[4 * j + 2 * r + 1], a.scale, z);
          c[j] = fadd(x, y);
          pr[2 * j + r] = f2h2(x, y);
        }
        float sum = fadd(fadd(fadd(c[0], c[4]), fadd(c[1], c[5])), fadd(fadd(c[2], c[6]), fadd(c[3], c[7])));
        l[r] = ffma(l[r], f[r], sum);
      }
      if (ballot(f[0] != 1.f || f[1] != 1.f)) {
#pragma unroll
        for (int j = 0; j < D / 2; j++) o[j] = fmul(o[j], f[(j >> 1) & 1]);
      }
#pragma unroll
      for (int h = 0; h < H; h++) {
        bar_wait(full + slot * 8, par);
        if (H == 1 || h == wg) {
          u64 dv = desc128(ring + slot * TILE, 8192, 1024);
          wg_keep(o);
          wg_fence();
#pragma unroll
          for (int k = 0; k < 4; k++)
            wg_rst(o, pr[4 * k], pr[4 * k + 1], pr[4 * k + 2], pr[4 * k + 3], dv + k * (2048 >> 4));
          wg_commit();
          wg_wait<0>();
          wg_keep(o);
        }
        done();
      }
      if (p >= tail && ++path < (int)ldg32(&ip->paths)) continue; // the same page once more, for another path
      path = 0;
      int per = (int)ldg32(&ip->per), split = p / per, first = (int)ldg32(&ip->row);
      p = next_page(a, first, kv * a.group + y * a.chunk, p, p1);
      if (p < p1 && p / per == split) continue;
#pragma unroll
      for (int r = 0; r < 2; r++) {
        float sm = m[r], sl = l[r], f = 0, fg = 1, last = 1;
        sl = fadd(sl, shfl_xor(sl, 1));
        sl = fadd(sl, shfl_xor(sl, 2));
        int row = row0 + r * 8, tok = first + row / hs, head = kv * a.group + y * a.chunk + row % hs;
        int heads = a.kvheads * a.group;
        Seen seen = {};
        if (row < used) seen = a.seen[tok];
        int nth = split - seen.split0;
        if (nth >= 0 && nth < seen.splits) {
          float* d;
          if (seen.part >= 0) {
            u64 at = (u64)(seen.part + nth) * heads + head;
            if (t == 0 && (H == 1 || wg == 0)) {
              a.ml[at * 2] = m[r];
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
          d += 2 * t + (H > 1 ? wg * DV : 0);
          bool add = seen.part < 0 && nth > 0, end = seen.part < 0 && nth == seen.splits - 1;
          if (add) {
#pragma unroll
            for (int j = 0; j < D / 8; j++) {
              U2 v = *(const U2*)(d + 8 * j);
              o[4 * j + 2 * r] = ffma(bits_f(v.x), f, fmul(o[4 * j + 2 * r], fg));
              o[4 * j + 2 * r + 1] = ffma(bits_f(v.y), f, fmul(o[4 * j + 2 * r + 1], fg));
            }
          }
          if (end) {
#pragma unroll
            for (int j = 0; j < D / 8; j++) {
              o[4 * j + 2 * r] = fmul(o[4 * j + 2 * r], last);
              o[4 * j + 2 * r + 1] = fmul(o[4 * j + 2 * r + 1], last);
            }
          }
#pragma unroll
          for (int j = 0; j < D / 8; j++) {
            U2 v = {f_bits(o[4 * j + 2 * r]), f_bits(o[4 * j + 2 * r + 1])};
            *(U2*)(d + 8 * j) = v;
          }
        }
        syncwarp(); // four lanes share a row's state
        if (t == 0) {
          sts_f(state + row * 8, sm);
          sts_f(state + row * 8 + 4, sl);
        }
        syncwarp();
        m[r] = NOTHING;
        l[r] = 0;
#pragma unroll
        for (int j = 0; j < D / 8; j++) o[4 * j + 2 * r] = o[4 * j + 2 * r + 1] = 0;
      }
    }
  }
}
#endif
