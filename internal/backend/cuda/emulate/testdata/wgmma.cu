// Warpgroup products with races (n is 0) and without.
#include "wgmma.h"

struct ProductArgs { float* out; const float* in; u32* counter; int n; };

// n 0: plain stores that the asynchronous proxy need not see.
KERNEL(race_wgmma_fence, ProductArgs, a, 128, 1) {
  u32 s = (saddr(smem) + 1023) & ~1023u;
  for (int i = TID; i < 4096; i += 128) sts32(s + i * 4, 0);
  if (a.n) fence_async();
  SYNC();
  float d[32];
  wg_fence();
  wg_ss(d, desc128(s, 16, 1024), desc128(s + 8192, 16, 1024), 0);
  wg_commit();
  wg_wait<0>();
  a.out[TID] = d[0];
}
// n 0: an operand is overwritten while a product may still read it.
KERNEL(race_wgmma_wait, ProductArgs, a, 128, 1) {
  u32 s = (saddr(smem) + 1023) & ~1023u;
  for (int i = TID; i < 4096; i += 128) sts32(s + i * 4, 0);
  fence_async();
  SYNC();
  float d[32];
  wg_fence();
  wg_ss(d, desc128(s, 16, 1024), desc128(s + 8192, 16, 1024), 0);
  wg_commit();
  if (a.n) wg_wait<0>();
  SYNC();
  sts32(s + TID * 4, 1);
  wg_wait<0>();
  a.out[TID] = d[0];
}
