// What flash.h needs of Hopper, for the emulation: barriers that count bytes, bulk copies and warpgroup products. Copies and
// products are done at once. Products are made of mma16816, so that their sums have its order.
#pragma once

struct EmuBar {
  u8 phase, count, pending, pad;
  int bytes; // still to come
};
DEV EmuBar* emu_bar(u32 bar) { return (EmuBar*)emu_shared(bar, 8); }
DEV void emu_bar_turn(EmuBar* b) {
  if (b->pending || b->bytes) return;
  b->phase ^= 1;
  b->pending = b->count;
}
DEV void bar_init(u32 bar, u32 n) { *emu_bar(bar) = {0, (u8)n, (u8)n, 0, 0}; }
DEV void bar_arrive(u32 bar) {
  EmuBar* b = emu_bar(bar);
  if (!b->pending--) emu_fail("more threads arrived at a barrier than it counts");
  emu_bar_turn(b);
}
DEV void bar_expect(u32 bar, u32 bytes) {
  emu_bar(bar)->bytes += (int)bytes;
  bar_arrive(bar);
}
DEV void bar_wait(u32 bar, u32 parity) { // whole warps
  for (int i = 0; !ballot(emu_bar(bar)->phase != parity); i++)
    if (i > 1000000) emu_fail("waiting for a barrier in vain");
}
DEV void bulk(u32 dst, const void* src, u32 bytes, u32 bar) {
  if (bytes % 16 || (u64)src % 16) emu_fail("bulk copy of %u bytes from %p", bytes, src);
  for (u32 i = 0; i < bytes; i += 16) memcpy(emu_shared(dst + i, 16), (const u8*)src + i, 16);
  EmuBar* b = emu_bar(bar);
  b->bytes -= (int)bytes;
  emu_bar_turn(b);
}
DEV void fence_async() {}
template <int N> DEV void fewer_registers() {}
template <int N> DEV void more_registers() {}

// Operands in shared memory: byte offsets of lead and stride beside the address.
struct EmuOperand { u32 addr, lead, stride; };
DEV EmuOperand emu_operand(u64 d) { return {(u32)(d & 0x3fff) << 4, (u32)(d >> 16 & 0x3fff) << 4, (u32)(d >> 32 & 0x3fff) << 4}; }
DEV u32 emu_swizzled(u32 a) { a -= EMU_SHARED_BASE; return (a ^ ((a >> 7 & 7) << 4)) + EMU_SHARED_BASE; }
// Columns k, k+1 of row r, the columns being contiguous.
DEV u32 emu_rows(EmuOperand o, int r, int k) { return lds32(emu_swizzled(o.addr + r / 8 * o.stride + r % 8 * 128 + k * 2)); }
// Row n of columns k, k+1, the rows being contiguous.
DEV u32 emu_columns(EmuOperand o, int n, int k) {
  u32 a = o.addr + n / 64 * o.lead + k / 8 * o.stride + k % 8 * 128 + n % 64 * 2;
  return lds16(emu_swizzled(a)) | lds16(emu_swizzled(a + 128)) << 16;
}
DEV void wg_fence() {}
DEV void wg_commit() {}
template <int N> DEV void wg_wait() {}
template <int N> DEV void wg_keep(float (&)[N]) {}
DEV void wg_ss(float (&d)[32], u64 a, u64 b, int add) {
  EmuOperand x = emu_operand(a), y = emu_operand(b);
  int g = (TID & 31) >> 2, t = TID & 3, row = (TID >> 5 & 3) * 16 + g;
  for (int j = 0; j < 8; j++) {
    for (int e = 0; e < 4 && !add; e++) d[4 * j + e] = 0;
    mma16816(d + 4 * j, emu_rows(x, row, 2 * t), emu_rows(x, row + 8, 2 * t), emu_rows(x, row, 2 * t + 8), emu_rows(x, row + 8, 2 * t + 8),
             emu_rows(y, 8 * j + g, 2 * t), emu_rows(y, 8 * j + g, 2 * t + 8));
  }
}
template <int N> DEV void wg_rst(float (&d)[N], u32 a0, u32 a1, u32 a2, u32 a3, u64 b) {
  EmuOperand y = emu_operand(b);
  int g = (TID & 31) >> 2, t = TID & 3;
  for (int j = 0; j < N / 4; j++) mma16816(d + 4 * j, a0, a1, a2, a3, emu_columns(y, 8 * j + g, 2 * t), emu_columns(y, 8 * j + g, 2 * t + 8));
}
