// Attention with 64 dimensions, on Hopper.
// also for sm_90a
#include "flash.h"

#if defined(HOPPER) || defined(EMULATE)
KERNEL(flash64x1, Attn, a, 160, 1) { flash<64, 1, 16, false>(a); }
KERNEL(flash64x2, Attn, a, 384, 1) { flash<64, 2, 16, false>(a); }
#endif
