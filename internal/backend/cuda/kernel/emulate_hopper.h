// Warpgroup products for the emulation, done at once. Products are made of mma16816, so that their sums have its order.
#pragma once

template <int N> DEV void fewer_registers() {}
template <int N> DEV void more_registers() {}

// Operands in shared memory: byte offsets of lead and stride beside the address.
struct EmuOperand { u32 addr, lead, stride; };
DEV EmuOperand emu_operand(u64 d) {
  return {(u32)(d & 0x3fff) << 4, (u32)(d >> 16 & 0x3fff) << 4, (u32)(d >> 32 & 0x3fff) << 4};
}
DEV u32 emu_swizzled(u32 a) { a -= EMU_SHARED_BASE; return (a ^ ((a >> 7 & 7) << 4)) + EMU_SHARED_BASE; }
// Columns k, k+1 of row r, the columns being contiguous.
DEV u32 emu_rows(EmuOperand o, int r, int k) {
  return lds32(emu_swizzled(o.addr + r / 8 * o.stride + r % 8 * 128 + k * 2));
}
// Row n of columns k, k+1, the rows being contiguous.
DEV u32 emu_columns(EmuOperand o, int n, int k) {
  u32 a = o.addr + n / 64 * o.lead + k / 8 * o.stride + k % 8 * 128 + n % 64 * 2;
  return lds16(emu_swizzled(a)) | lds16(emu_swizzled(a + 128)) << 16;
}
DEV void wg_fence() {}
DEV void wg_commit() { emu_wgmma_commit(); }
template <int N> DEV void wg_wait() { emu_wgmma_wait(N); }
// While it lives, its thread's loads are those of a warpgroup product.
struct EmuProduct {
  DEV_M EmuProduct() { emu_wgmma(true); }
  DEV_M ~EmuProduct() { emu_wgmma(false); }
};
template <int N> DEV void wg_keep(float (&)[N]) {}
template <int N> DEV void wg_ss(float (&d)[N], u64 a, u64 b, int add) {
  EmuProduct product;
  EmuOperand x = emu_operand(a), y = emu_operand(b);
  int g = (TID & 31) >> 2, t = TID & 3, row = (TID >> 5 & 3) * 16 + g;
  for (int j = 0; j < N / 4; j++) {
    for (int e = 0; e < 4 && !add; e++) d[4 * j + e] = 0;
    mma16816(d + 4 * j, emu_rows(x, row, 2 * t), emu_rows(x, row + 8, 2 * t), emu_rows(x, row, 2 * t + 8),
             emu_rows(x, row + 8, 2 * t + 8),
             emu_rows(y, 8 * j + g, 2 * t), emu_rows(y, 8 * j + g, 2 * t + 8));
  }
}
template <int N> DEV void wg_rst(float (&d)[N], u32 a0, u32 a1, u32 a2, u32 a3, u64 b) {
  EmuProduct product;
  EmuOperand y = emu_operand(b);
  int g = (TID & 31) >> 2, t = TID & 3;
  for (int j = 0; j < N / 4; j++)
    mma16816(d + 4 * j, a0, a1, a2, a3, emu_columns(y, 8 * j + g, 2 * t), emu_columns(y, 8 * j + g, 2 * t + 8));
}
// A in registers, B token by token with or without swizzle: bits 7 to 9 of an address are added to bits 4 to 6.
DEV u32 emu_token(u64 desc, int token, int chunk) {
  EmuOperand o = emu_operand(desc);
  if (!(desc >> 62)) return o.addr + token / 8 * o.stride + chunk * o.lead + token % 8 * 16;
  u32 at = o.addr + token / 8 * o.stride + token % 8 * 128 + chunk * 16;
  return at ^ (at >> 7 & 7) << 4;
}
template <int N> DEV void wg_rs(float (&d)[N], u32 a0, u32 a1, u32 a2, u32 a3, u64 b, int add) {
  EmuProduct product;
  int g = (TID & 31) >> 2, t = TID & 3;
  for (int nt = 0; nt < N / 4; nt++) {
    float* p = d + 4 * nt;
    if (!add) p[0] = p[1] = p[2] = p[3] = 0;
    mma16816(p, a0, a1, a2, a3, lds32(emu_token(b, nt * 8 + g, 0) + 4 * t), lds32(emu_token(b, nt * 8 + g, 1) + 4 * t));
  }
}
