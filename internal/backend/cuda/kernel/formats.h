// Repacked weights. A tile is 16 rows x 256 columns, in two halves of 128 columns; its bits lie in the order in which
// the lanes of a warp feed them to the tensor cores, so every load is 512 consecutive bytes per warp.
//
// Lane 4g+t holds rows g and g+8. Of every sub-block of 32 columns it holds the eight columns 8t..8t+7,
// as two steps j of four columns, so activations stay in their natural order. One 32-bit word of nibbles has
// four columns of an even sub-block and the same four of the odd one after it:
//   nibble 0,4,2,6 = even sub-block, columns 0..3 of the step;  nibble 1,5,3,7 = odd sub-block
// or, where nibbles index a table, nibbles 0..3 and 4..7. A quad p (sub-blocks 2p and 2p+1) is
// 32 lanes x {row g j0, row g+8 j0, row g j1, row g+8 j1}. Bytes: the same four words for every sub-block.
//
// Memory: [group of 256 rows][256 columns]{[16 strips] first halves of H0 bytes, [16 strips] second halves of H1
// bytes}.
//
// Two kinds of formats. The scales of the first are integers that multiply the codes in halves; the sum of 256
// columns is scaled in float32 at the end. Those of the second (BLOCK) are float32, after every sub-block.
// MINS: what is subtracted is a tensor-core product of mins and the sums of 32 activations, once for 256 columns.
// MIN16: mins of 16 columns, multiplied like weights.
#pragma once
#include "common.h"

enum { Q4K_, Q5K_, Q6K_, Q2K_, Q3K_, Q8_, Q8M_, N4_, NV4_ }; // Format in backend/gpu

// Fragments of one sub-block (32 columns, two tensor-core steps) of one tile: [step][row g, row g+8; the same,
// columns 2, 3].
struct Frag { u32 a[2][4]; };

// The bits of a nibble alone are a half: the subnormal q * 2^-24. Times a scale of 6 bits it is still one,
// so one AND and one multiplication make a fragment. d and dmin are scaled by 2^24 instead.
static const float TWO24 = 16777216.f;

// Q4_K, 148 bytes per 256. A half: 1024 bytes of nibbles, 64 scales [row][4]; the second also 128 mins [row][8] and
// 64 (d, dmin). Q5_K, 180 bytes: a fifth bit for each code behind the nibbles, 8 bytes a lane; bit i + 8*(odd
// sub-block) of a lane's word for the quad is the first column of fragment word i, bit i+16 the second. Codes times
// scales are below 2048: exact.
template <bool FIVE> struct K45 {
  static const int V = FIVE ? 1280 : 1024, H0 = V + 64, H1 = V + 256;
  static const bool BLOCK = false, MINS = true, MIN16 = false;
  u32 sg, sh;
  U4 q;
  U2 high;
  u32 pg, ph; // scales of the quad's two sub-blocks: sc, sc/16
  DEV_M void begin(u32 tile, int lane, int) {
    int g = lane >> 2;
    sg = lds32(tile + V + g * 4);
    sh = lds32(tile + V + 32 + g * 4);
    if (FIVE) high = lds64(tile + 1024 + lane * 8);
  }
  DEV_M void load(u32 tile, int lane, int sb) {
    if (sb & 1) return;
    q = lds128(tile + (sb >> 1) * 512 + lane * 16);
    u32 sel = sb & 2 ? 0x4342 : 0x4140;
    pg = hfma2(prmt(sg, 0x64646464, sel), 0x2c003c00, 0xd400e400); // (h-1024, h/16-64)
    ph = hfma2(prmt(sh, 0x64646464, sel), 0x2c003c00, 0xd400e400);
  }
  DEV_M void frag(Frag& f, int sb) {
    u32 m = sb & 1 ? 0x00f000f0 : 0x000f000f;
    u32 fg = sb & 1 ? both_hi(pg) : both_lo(pg), fh = sb & 1 ? both_hi(ph) : both_lo(ph);
    u32 ql[8] = {q.x, q.y, q.x >> 8, q.y >> 8, q.z, q.w, q.z >> 8, q.w >> 8};
    u32 w = sb & 2 ? high.y : high.x;
#pragma unroll
    for (int i = 0; i < 8; i++) {
      u32 v = ql[i] & m;
      if (FIVE) v = sb & 1 ? lop_or(w >> i, 0x01000100, v) : lop_or(i < 4 ? w << (4 - i) : w >> (i - 4), 0x00100010, v);
      f.a[i >> 2][i & 3] = hmul2(v, i & 1 ? fh : fg);
    }
  }
  // of the second half: mins of sub-blocks 2t, 2t+1, times 2^-24; d and dmin
  static DEV_M u32 mins(u32 tile, int row, int t) { return prmt(lds16(tile + V + 64 + row * 8 + 2 * t), 0, 0x4140); }
  static DEV_M void d(u32 tile, int row, float& d, float& m) {
    u32 v = lds32(tile + V + 192 + row * 4);
    d = fmul(h2f(v & 0xffff), TWO24);
    m = fmul(h2f(v >> 16), TWO24);
  }
};
typedef K45<false> Q4K;
typedef K45<true> Q5K;

// Q6_K, 210 bytes per 256. A half: 1024 bytes of low nibbles, 512 of high bits, 128 scales+128 [row][columns 0-15,
// 16-31][4]; the second also 32 d. scale*(q-32) needs 12 bits: beyond 2048 it is rounded to 11, relative 2^-12, as
// activations are.
struct Q6K {
  static const int H0 = 1664, H1 = 1696;
  static const bool BLOCK = false, MINS = false, MIN16 = false;
  u32 sg, sh;
  U4 q, hi;
  u32 hg, hh;
  DEV_M void begin(u32 tile, int lane, int) {
    u32 at = tile + 1536 + (lane >> 2) * 8 + (lane >> 1 & 1) * 4;
    sg = lds32(at);
    sh = lds32(at + 64);
  }
  DEV_M void load(u32 tile, int lane, int sb) {
    if (sb & 1) return;
    q = lds128(tile + (sb >> 1) * 512 + lane * 16);
    if (sb == 0) hi = lds128(tile + 1024 + lane * 16);
    hg = sb ? hi.z : hi.x;
    hh = sb ? hi.w : hi.y;
  }
  DEV_M void frag(Frag& f, int sb) {
    u32 sel = 0x4040 + sb * 0x0101;
    u32 cg = hadd2(prmt(sg, 0x64646464, sel), 0xe480e480), ch = hadd2(prmt(sh, 0x64646464, sel), 0xe480e480); // - 1152
    u32 ql[8] = {q.x, q.y, q.x >> 8, q.y >> 8, q.z, q.w, q.z >> 8, q.w >> 8};
    u32 qh[8] = {hg << 4, hh << 4, hg << 2, hh << 2, hg >> 4, hh >> 4, hg >> 6, hh >> 6};
#pragma unroll
    for (int i = 0; i < 8; i++) {
      u32 c = i & 1 ? ch : cg;
      if (sb & 1) { // 64+q, with q in bits 4..9
        u32 h = lop_or(ql[i], 0x00f000f0, lop_or(qh[i], 0x03000300, 0x54005400));
        f.a[i >> 2][i & 3] = hfma2(h, c, hmul2(c, 0xd600d600)); // - 96 c
      } else {
        u32 h = lop_or(ql[i], 0x000f000f, lop_or(qh[i], 0x00300030, 0x64006400));
        f.a[i >> 2][i & 3] = hmul2(hadd2(h, 0xe420e420), c); // - 1056
      }
    }
  }
  static DEV_M u32 mins(u32, int, int) { return 0; }
  static DEV_M void d(u32 tile, int row, float& d, float& m) {
    d = h2f(lds16(tile + 1664 + row * 2));
    m = 0;
  }
};

// Q3_K, 146 bytes per 256. A half: 1024 bytes of nibbles (codes 0 to 7, for -4 to 3), 128 scales+128 as in Q6_K; the
// second also 32 d.
struct Q3K {
  static const int H0 = 1152, H1 = 1184;
  static const bool BLOCK = false, MINS = false, MIN16 = false;
  u32 sg, sh;
  U4 q;
  DEV_M void begin(u32 tile, int lane, int) {
    u32 at = tile + 1024 + (lane >> 2) * 8 + (lane >> 1 & 1) * 4;
    sg = lds32(at);
    sh = lds32(at + 64);
  }
  DEV_M void load(u32 tile, int lane, int sb) {
    if (!(sb & 1)) q = lds128(tile + (sb >> 1) * 512 + lane * 16);
  }
  DEV_M void frag(Frag& f, int sb) {
    u32 sel = 0x4040 + sb * 0x0101;
    u32 cg = hadd2(prmt(sg, 0x64646464, sel), 0xe480e480), ch = hadd2(prmt(sh, 0x64646464, sel), 0xe480e480); // - 1152
    u32 ql[8] = {q.x, q.y, q.x >> 8, q.y >> 8, q.z, q.w, q.z >> 8, q.w >> 8};
#pragma unroll
    for (int i = 0; i < 8; i++) {
      u32 h = sb & 1 ? hadd2(lop_or(ql[i], 0x00f000f0, 0x54005400), 0xd440d440)  // 64+q, - 68
                     : hadd2(lop_or(ql[i], 0x000f000f, 0x64006400), 0xe404e404); // 1024+q, - 1028
      f.a[i >> 2][i & 3] = hmul2(h, i & 1 ? ch : cg);
    }
  }
  static DEV_M u32 mins(u32, int, int) { return 0; }
  static DEV_M void d(u32 tile, int row, float& d, float& m) {
    d = h2f(lds16(tile + 1152 + row * 2));
    m = 0;
  }
};

// The byte that the four nibbles in the low (high) half of w select from a table of 16, as 4 bytes.
DEV u32 look_up(u32 w, const U4& tab) {
  u32 low = prmt(tab.x, tab.y, w & 0x7777), high = prmt(tab.z, tab.w, w & 0x7777);
  return prmt(low, high, 0x3210 | (w & 0x8888) >> 1);
}
// Tables, plus 128: code-8; IQ4; FP4 times two; code-1; 2*code-1.
DEV U4 table_of(int k) {
  U4 t = {0x7b7a7978, 0x7f7e7d7c, 0x83828180, 0x87868584};
  if (k == 1) t = {0x3f2d1801, 0x766a5d4f, 0xa6998d81, 0xf1d9c5b5};
  if (k == 2) t = {0x83828180, 0x8c888684, 0x7d7e7f80, 0x74787a7c};
  if (k == 3) t = {0x8281807f, 0x86858483, 0x8a898887, 0x8e8d8c8b};
  if (k == 4) t = {0x8583817f, 0x8d8b8987, 0x9593918f, 0x9d9b9997};
  return t;
}
// Four bytes (plus 128) as halves.
DEV void bytes_to_halves(u32 w, u32& lo, u32& hi) {
  lo = hadd2(prmt(w, 0x64646464, 0x4140), 0xe480e480); // 1024+b, - 1152
  hi = hadd2(prmt(w, 0x64646464, 0x4342), 0xe480e480);
}

// NVFP4, 160 bytes per 256. A half: 1024 bytes of nibbles, scales as halves [row][columns 0-15, 16-31][4]. Values times
// scales have 6 bits: exact halves.
struct NV4 {
  static const int H0 = 1280, H1 = 1280;
  static const bool BLOCK = false, MINS = false, MIN16 = false;
  U2 sg, sh;
  U4 q;
  DEV_M void begin(u32 tile, int lane, int) {
    u32 at = tile + 1024 + (lane >> 2) * 16 + (lane >> 1 & 1) * 8;
    sg = lds64(at);
    sh = lds64(at + 128);
  }
  DEV_M void load(u32 tile, int lane, int sb) {
    if (!(sb & 1)) q = lds128(tile + (sb >> 1) * 512 + lane * 16);
  }
  DEV_M void frag(Frag& f, int sb) {
    U4 tab = table_of(2);
    u32 wg = sb & 2 ? sg.y : sg.x, wh = sb & 2 ? sh.y : sh.x;
    u32 cg = sb & 1 ? both_hi(wg) : both_lo(wg), ch = sb & 1 ? both_hi(wh) : both_lo(wh);
    u32 w[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
      u32 lo, hi, c = i & 1 ? ch : cg;
      bytes_to_halves(look_up(sb & 1 ? w[i] >> 16 : w[i], tab), lo, hi);
      f.a[i >> 1][i & 1] = hmul2(lo, c);
      f.a[i >> 1][2 + (i & 1)] = hmul2(hi, c);
    }
  }
  static DEV_M u32 mins(u32, int, int) { return 0; }
  static DEV_M void d(u32, int, float& d, float& m) { d = 1; m = 0; }
};

// Q2_K, 168 bytes per 256. A half: 1024 bytes of nibbles, 128 scales, 128 mins, both [row][columns 0-15, 16-31][4],
// 64 (d, dmin).
struct Q2K {
  static const int H0 = 1344, H1 = 1344;
  static const bool BLOCK = true, MINS = false, MIN16 = true;
  u32 sg, sh, mg, mh;
  float dg, dh, ng, nh;
  U4 q;
  DEV_M void begin(u32 tile, int lane, int) {
    int g = lane >> 2;
    u32 at = tile + 1024 + g * 8 + (lane >> 1 & 1) * 4;
    sg = lds32(at);
    sh = lds32(at + 64);
    mg = lds32(at + 128);
    mh = lds32(at + 192);
    u32 v = lds32(tile + 1280 + g * 4), w = lds32(tile + 1312 + g * 4);
    dg = fmul(h2f(v & 0xffff), TWO24);
    ng = fmul(h2f(v >> 16), -TWO24);
    dh = fmul(h2f(w & 0xffff), TWO24);
    nh = fmul(h2f(w >> 16), -TWO24);
  }
  DEV_M void load(u32 tile, int lane, int sb) {
    if (!(sb & 1)) q = lds128(tile + (sb >> 1) * 512 + lane * 16);
  }
  DEV_M void frag(Frag& f, int sb) {
    u32 sel = 0x4040 + sb * 0x0101, m = sb & 1 ? 0x00f000f0 : 0x000f000f;
    u32 mul = sb & 1 ? 0x2c002c00 : 0x3c003c00, sub = sb & 1 ? 0xd400d400 : 0xe400e400; // h/16-64, h-1024
    u32 cg = hfma2(prmt(sg, 0x64646464, sel), mul, sub), ch = hfma2(prmt(sh, 0x64646464, sel), mul, sub);
    u32 ql[8] = {q.x, q.y, q.x >> 8, q.y >> 8, q.z, q.w, q.z >> 8, q.w >> 8};
#pragma unroll
    for (int i = 0; i < 8; i++) f.a[i >> 2][i & 3] = hmul2(ql[i] & m, i & 1 ? ch : cg);
  }
  DEV_M void min_frag(u32& ag, u32& ah, int sb) { // times 2^-24
    ag = prmt(mg, 0, 0x4040 + sb * 0x0101);
    ah = prmt(mh, 0, 0x4040 + sb * 0x0101);
  }
  DEV_M void scale(u32, int, int, float& s, float& r) { s = dg; r = dh; }
  static DEV_M u32 mins(u32, int, int) { return 0; }
};

// Q8_0 and Q5_0, 272 bytes per 256. A half: 2048 bytes, value + 128; scales as halves [row][4]. With mins (Q4_1,
// Q5_1; 288 bytes) the second half also has what is added, as halves [row][8].
template <bool M> struct Bytes {
  static const int H0 = 2176, H1 = M ? 2432 : 2176;
  static const bool BLOCK = true, MINS = M, MIN16 = false;
  U4 q;
  U2 sg, sh;
  DEV_M void begin(u32 tile, int lane, int) {
    sg = lds64(tile + 2048 + (lane >> 2) * 8);
    sh = lds64(tile + 2112 + (lane >> 2) * 8);
  }
  DEV_M void load(u32 tile, int lane, int sb) { q = lds128(tile + sb * 512 + lane * 16); }
  DEV_M void frag(Frag& f, int) {
    u32 w[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
    for (int i = 0; i < 4; i++) bytes_to_halves(w[i], f.a[i >> 1][i & 1], f.a[i >> 1][2 + (i & 1)]);
  }
  DEV_M void min_frag(u32&, u32&, int) {}
  DEV_M void scale(u32, int, int sb, float& s, float& r) {
    u32 v = sb & 2 ? sg.y : sg.x, w = sb & 2 ? sh.y : sh.x;
    s = h2f(sb & 1 ? v >> 16 : v & 0xffff);
    r = h2f(sb & 1 ? w >> 16 : w & 0xffff);
  }
  static DEV_M u32 mins(u32 tile, int row, int t) { return lds32(tile + 2176 + row * 16 + t * 4); }
};
typedef Bytes<false> Q8;
typedef Bytes<true> Q8M;

// Nibbles that index a table (Q4_0, IQ4_NL, IQ4_XS, MXFP4 and types of fewer bits), 160 bytes per 256. A half: 1024
// bytes, scales f32 [row][4].
struct N4 {
  static const int H0 = 1280, H1 = 1280;
  static const bool BLOCK = true, MINS = false, MIN16 = false;
  U4 q, tab;
  DEV_M void begin(u32, int, int table) { tab = table_of(table); }
  DEV_M void load(u32 tile, int lane, int sb) {
    if (!(sb & 1)) q = lds128(tile + (sb >> 1) * 512 + lane * 16);
  }
  DEV_M void frag(Frag& f, int sb) {
    u32 w[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
    for (int i = 0; i < 4; i++)
      bytes_to_halves(look_up(sb & 1 ? w[i] >> 16 : w[i], tab), f.a[i >> 1][i & 1], f.a[i >> 1][2 + (i & 1)]);
  }
  DEV_M void min_frag(u32&, u32&, int) {}
  DEV_M void scale(u32 tile, int g, int sb, float& s, float& r) {
    s = lds_f(tile + 1024 + g * 16 + sb * 4);
    r = lds_f(tile + 1152 + g * 16 + sb * 4);
  }
  static DEV_M u32 mins(u32, int, int) { return 0; }
};
