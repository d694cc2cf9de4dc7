// Rows of a matrix by their number, in float32: exactly the values that were stored, times a factor.
// also for sm_90
#include "formats.h"

enum { F32_ = 100, F16_, BF16_ };

struct EmbedArgs {
  float* dst;
  const u8* w;
  const int* ids;
  int stride, rows, cols, n, format, table;
  float scale;
  int pad;
};

DEV float half_at(const u8* p) { return h2f(ldg16(p)); }
DEV int byte_at(const u8* p) { return *p; }
// A value of a table of nibbles.
DEV float entry(const U4& t, int q) {
  u32 w = q & 8 ? (q & 4 ? t.w : t.z) : (q & 4 ? t.y : t.x);
  return (float)((int)(w >> (8 * (q & 3)) & 255) - 128);
}

// Row r, column c of a tile whose halves begin at h[0], h[1] (formats.h describes them).
DEV float tile_value(int format, int table, const u8* first, const u8* second, int r, int c) {
  const u8* h = c < 128 ? first : second;
  int sb = c >> 5 & 3, t = c >> 3 & 3, j = c >> 2 & 1, i = c & 3, lane = 4 * (r & 7) + t, hi = r >> 3, half = c >> 7;
  int of16 = r * 8 + (c >> 4 & 1) * 4 + sb; // of what belongs to 16 columns
  if (format == Q8_ || format == Q8M_) {
    int q = byte_at(h + sb * 512 + lane * 16 + (2 * j + hi) * 4 + i) - 128;
    float v = fmul((float)q, half_at(h + 2048 + r * 8 + sb * 2));
    return format == Q8_ ? v : fadd(v, half_at(second + 2176 + r * 16 + c / 32 * 2));
  }
  u32 word = ldg32(h + (sb >> 1) * 512 + lane * 16 + (2 * j + hi) * 4);
  if (format == N4_ || format == NV4_) {
    float v = entry(table_of(format == NV4_ ? 2 : table), word >> (4 * (i + 4 * (sb & 1))) & 15);
    if (format == NV4_) return fmul(v, half_at(h + 1024 + 2 * of16));
    return fmul(v, bits_f(ldg32(h + 1024 + r * 16 + sb * 4)));
  }
  int nibble = (i >> 1) * 2 + (i & 1) * 4 + (sb & 1), q = word >> (4 * nibble) & 15;
  switch (format) {
  case Q4K_:
  case Q5K_: {
    int at = 1024;
    if (format == Q5K_) {
      at = 1280;
      q |= (ldg32(h + 1024 + lane * 8 + (sb >> 1) * 4) >> (4 * j + (i >> 1) * 2 + hi + 8 * (sb & 1) + 16 * (i & 1)) & 1) << 4;
    }
    float d = fmul(half_at(second + at + 192 + r * 4), (float)byte_at(h + at + r * 4 + sb));
    float m = fmul(half_at(second + at + 194 + r * 4), (float)byte_at(second + at + 64 + r * 8 + 4 * half + sb));
    return fadd(fmul(d, (float)q), -m);
  }
  case Q6K_: {
    int pair = 2 * j + (i >> 1), field = (pair & 1) + (pair >> 1) * 4 + 2 * (sb & 1);
    q |= (ldg32(h + 1024 + lane * 16 + (2 * (sb >> 1) + hi) * 4) >> (2 * field + 16 * (i & 1)) & 3) << 4;
    return fmul(fmul(half_at(second + 1664 + r * 2), (float)(byte_at(h + 1536 + of16) - 128)), (float)(q - 32));
  }
  case Q2K_: {
    float d = fmul(half_at(h + 1280 + r * 4), (float)byte_at(h + 1024 + of16));
    float m = fmul(half_at(h + 1282 + r * 4), (float)byte_at(h + 1152 + of16));
    return fadd(fmul(d, (float)q), -m);
  }
  }
  return fmul(fmul(half_at(second + 1152 + r * 2), (float)(byte_at(h + 1024 + of16) - 128)), (float)(q - 4)); // Q3_K
}

DEV int half_size(int format, int second) {
  switch (format) {
  case Q4K_: return second ? Q4K::H1 : Q4K::H0;
  case Q5K_: return second ? Q5K::H1 : Q5K::H0;
  case Q6K_: return second ? Q6K::H1 : Q6K::H0;
  case Q2K_: return Q2K::H0;
  case Q3K_: return second ? Q3K::H1 : Q3K::H0;
  case Q8_: return Q8::H0;
  case Q8M_: return second ? Q8M::H1 : Q8M::H0;
  case N4_: return N4::H0;
  }
  return NV4::H0;
}

// A block has 256 columns of a row, a thread one of them.
KERNEL(embed, EmbedArgs, p, 256, 1) {
  pdl_launch();
  pdl_wait();
  int c = BID * 256 + TID, id = p.ids[BIDY];
  if (c >= p.cols) return;
  if (id < 0) id = 0; // a row without a single number has no best token: -1
  float v = 0;
  if (id < p.rows) {
    u64 at = (u64)id * p.cols + c;
    if (p.format == F32_) v = ((const float*)p.w)[at];
    else if (p.format == F16_) v = half_at(p.w + 2 * at);
    else if (p.format == BF16_) v = bits_f(ldg16(p.w + 2 * at) << 16);
    else {
      int h0 = half_size(p.format, 0), h1 = half_size(p.format, 1), strip = (id & 255) >> 4;
      const u8* stage = p.w + ((u64)(id >> 8) * GDIM + BID) * (16 * (h0 + h1));
      v = tile_value(p.format, p.table, stage + strip * h0, stage + 16 * h0 + strip * h1, id & 15, TID);
    }
  }
  p.dst[(u64)BIDY * p.stride + c] = p.scale == 1.f ? v : fmul(v, p.scale);
}
