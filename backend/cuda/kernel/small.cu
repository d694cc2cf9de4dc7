// Small operations on rows of activations.
// also for sm_90
#include "common.h"

struct AddArgs { float* dst; const float *a, *b; int rows, cols, ds, as, bs; };
KERNEL(add, AddArgs, p, 256, 1) {
  pdl_launch();
  pdl_wait();
  for (int r = BIDY; r < p.rows; r += GDIMY)
    for (int c = BID * BDIM + TID; c < p.cols; c += GDIM * BDIM)
      p.dst[(u64)r * p.ds + c] = fadd(p.a[(u64)r * p.as + c], p.b[(u64)r * p.bs + c]);
}
