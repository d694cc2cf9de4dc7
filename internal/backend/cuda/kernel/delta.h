// What the kernels of Gated DeltaNet share: the tables of a step (backend/gpu/delta.go makes them) and the memory of a
// sequence.
//
// A sequence has, for every layer, its state [vheads][vdim][kdim], then the newest inputs of the convolution
// [taps-1][channels], oldest first. A tape has rows for every layer: input of the convolution [channels], normalised
// keys [kheads*kdim], updates [vheads*vdim], decays [vheads]. A step reads the accepted rows of one tape and writes its
// own to another: other blocks may still read.
#pragma once
#include "common.h"

// A store that is known to leave shared memory alone: loads from there may pass it.
#if defined(EMULATE) || defined(__HIP__)
DEV void stg32(float* p, float v) { *p = v; }
#else
DEV void stg32(float* p, float v) { asm volatile("st.global.f32 [%0], %1;" ::"l"(p), "f"(v) : "memory"); }
#endif

struct DeltaShape {
  int kheads, vheads, kdim, vdim, taps, grouped;
  int values;   // floats of a layer's state and inputs
  int tape_row; // floats of a row of a tape
};
DEV int channels(const DeltaShape& d) { return 2 * d.kheads * d.kdim + d.vheads * d.vdim; }

// The tables: segments, rows, where a counter for each head of keys is, 0; then for every row its segment and the
// sources of its taps, then for every segment SEG integers.
#define SEG 24
#define SEG_ROW 0      // first row of the batch
#define SEG_N 1        // rows
#define SEG_PENDING 2  // rows of the tape to apply first
#define SEG_FLAGS 3
#define SEG_STATE 4    // addresses, low half first
#define SEG_READ 6     // the tape to apply
#define SEG_WRITE 8    // the tape to write
#define SEG_READ_ROWS 10
#define SEG_WRITE_ROWS 11
#define SEG_ORDER 12   // where the order of a tree's rows is in the table
#define SEG_ENTRIES 13 // its length; 0: rows follow each other
#define SEG_PATH 14    // where the tape rows of the pending tokens are in the table
#define SEG_SHIFT 16   // sources of the newest inputs after this step
#define FLAG_PROMPT 1  // the rows are accepted: keep the state after them, no tape
#define FLAG_SHIFT 2   // the newest inputs change
#define ENTRY_RESTART (1 << 30) // begin again from the state
#define ENTRY_QUIET (1 << 29)   // apply the row again, it was computed before
#define ENTRY_ROW 0xffffff

DEV const int* row_of(const int* table, int row, int taps) { return table + 4 + row * (taps + 1); }
DEV const int* seg_of(const int* table, int rows, int taps, int seg) {
  return table + 4 + rows * (taps + 1) + seg * SEG;
}
DEV float* seg_addr(const int* s, int at) { return (float*)((u64)(u32)s[at] | (u64)(u32)s[at + 1] << 32); }
DEV float* seg_state(const int* s, const DeltaShape& d, int layer) {
  return seg_addr(s, SEG_STATE) + (u64)layer * d.values;
}
DEV float* seg_inputs(const int* s, const DeltaShape& d, int layer) {
  return seg_state(s, d, layer) + (u64)d.vheads * d.vdim * d.kdim;
}
DEV float* seg_read(const int* s, const DeltaShape& d, int layer, int row) {
  return seg_addr(s, SEG_READ) + ((u64)layer * s[SEG_READ_ROWS] + row) * d.tape_row;
}
DEV float* seg_write(const int* s, const DeltaShape& d, int layer, int row) {
  return seg_addr(s, SEG_WRITE) + ((u64)layer * s[SEG_WRITE_ROWS] + row) * d.tape_row;
}

// A source is a row of the batch (0), of the newest inputs (1) or of the tape (2), in the two lowest bits.
DEV float source1(int code, const In& u, const int* s, const DeltaShape& d, int layer, int c) {
  if ((code & 3) == 0) return in1(u, code >> 2, c);
  if ((code & 3) == 1) return seg_inputs(s, d, layer)[(u64)(code >> 2) * channels(d) + c];
  return seg_read(s, d, layer, code >> 2)[c];
}
