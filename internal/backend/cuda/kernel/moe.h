// Products with stacks of experts. A kernel of its own groups the pairs (token, expert) by expert; then every
// distinct expert is read once for each 8*NT of its pairs.
//
// Tables: the number of items; then items {expert, first entry of the order, entries, 0}; then the order: pairs by
// expert. Work is cut into units, a group of 256 rows and 1/cuts of the columns, of every matrix of an item; blocks
// get equal runs of them. How a row's sum is cut depends on the matrix alone, so a pair's bits do not depend on the
// others.
#pragma once
#include "choose.h"
#include "product.h"

struct MoeJob {
  const u8* w;
  float* part;         // [piece][pair][row]
  const float* scales; // of the results of each expert, or null
  int groups, cuts, table;
  float scale;
};
// Two jobs of the experts that rows chose, and two of one that all rows share: its pairs are the rows.
struct MoeArgs {
  MoeJob job[4];
  const u8 *act, *act2;   // packed row by row, act2 of the shared expert; or null:
  In gate, up;            // what is multiplied is act(gate) * up, a row for each pair
  In gate2, up2;          // the same of the shared expert
  const int* tables;
  RouteArgs route;        // if it has experts: of one row, which every block chooses for itself
  const float* sumsq;     // [row][kb] sums of squares of x: results are divided by their root mean square (or null)
  const float* sumsq2;    // the same of the shared expert's x
  int jobs, jobs2;        // of the experts (1 or 2), of the shared one (0 to 2)
  int format, format2;    // of all their matrices
  int first, second;      // bytes of the halves of their tiles
  int first2, second2;
  int cost, cost2;        // bytes of an item's matrices, in units of 1024
  int rows, pairs;
  int div;                // the row of activations of pair p is p/div
  int most;               // items there is room for
  int kb, cols;           // of the activations
  int kb2, cols2;         // of those of the shared expert
  int kept;               // bytes of tables, if they are copied to shared memory, or 0
  int depth;
  int gelu;
  int early;              // the tables were complete before the kernel before this one began
  float eps, eps2, mean, mean2;
};

// Where a block is: the current unit and stage.
template <class F> struct Walk {
  const MoeArgs& a;
  const Expert* items;
  int per0, per;              // units of the first job, and of an item
  int u, end;                 // this block's units
  int item, job, grp, cut;    // of unit u
  int kb, kend;               // stages that are left of it
  Expert x;
  const u8* w;
  DEV_M Walk(const MoeArgs& a) : a(a) {
    items = (const Expert*)(a.tables + 4);
    per0 = a.job[0].groups * a.job[0].cuts;
    per = per0 + (a.jobs > 1 ? a.job[1].groups * a.job[1].cuts : 0);
    u32 total = (u32)a.tables[0] * (u32)per;
    u = (int)((u64)total * BID / GDIM);
    end = (int)((u64)total * (BID + 1) / GDIM);
    if (u < end) open();
  }
  DEV_M void open() {
    item = u / per;
    int v = u - item * per;
    job = v >= per0;
    if (job) v -= per0;
    const u8* base = job ? a.job[1].w : a.job[0].w;
    int cuts = job ? a.job[1].cuts : a.job[0].cuts, groups = job ? a.job[1].groups : a.job[0].groups;
    grp = v / cuts;
    cut = v - grp * cuts;
    kb = cut * a.kb / cuts;
    kend = (cut + 1) * a.kb / cuts;
    x = items[item];
    w = base + ((u64)x.expert * (groups * a.kb) + grp * a.kb + kb) * (STRIPS * (F::H0 + F::H1));
  }
  DEV_M bool more() const { return u < end; }
  // Goes to the next stage, if there is one.
  DEV_M void next() {
    w += STRIPS * (F::H0 + F::H1);
    if (++kb < kend) return;
    if (++u < end) open();
  }
  DEV_M bool last() const { return kb + 1 == kend; } // stage of its unit
  DEV_M int pair(int i) const { return a.tables[4 + 4 * a.most + x.first + i]; }
  DEV_M const u8* row(int i) const { return a.act + ((u64)(pair(i) / a.div) * a.kb + kb) * ROW; }

  // A warp's results of the unit.
  template <int NT> DEV_M void store(float (&acc)[NT][4], int warp, int lane) const {
    int g = lane >> 2, t = lane & 3;
    const float* scales = job ? a.job[1].scales : a.job[0].scales;
    float all = job ? a.job[1].scale : a.job[0].scale;
    if (scales) all = fmul(all, scales[x.expert]);
    float f[NT][2];
#pragma unroll
    for (int nt = 0; nt < NT; nt++) f[nt][0] = f[nt][1] = all;
    for (int k = 0; a.sumsq && k < x.count; k++) {
      float r = fmul(all, rms_factor(a.sumsq + (u64)(pair(k) / a.div) * a.kb, a.kb, a.mean, a.eps, lane));
#pragma unroll
      for (int nt = 0; nt < NT; nt++) {
        if (k == nt * 8 + 2 * t) f[nt][0] = r;
        if (k == nt * 8 + 2 * t + 1) f[nt][1] = r;
      }
    }
    int rows = (job ? a.job[1].groups : a.job[0].groups) * 256;
    float* y = (job ? a.job[1].part : a.job[0].part) + (u64)cut * a.pairs * rows + grp * 256 + warp * 16 + g;
#pragma unroll
    for (int nt = 0; nt < NT; nt++)
#pragma unroll
      for (int i = 0; i < 2; i++) {
        int tok = nt * 8 + 2 * t + i;
        if (tok < x.count) {
          float* p = y + (u64)pair(tok) * rows;
          p[0] = fmul(acc[nt][i], f[nt][i]);
          p[8] = fmul(acc[nt][i + 2], f[nt][i]);
        }
      }
  }
};
