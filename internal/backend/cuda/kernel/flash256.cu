// Attention with 256 dimensions, on Hopper.
// also for sm_90a
#include "flash.h"

#if defined(HOPPER) || defined(EMULATE)
KERNEL(flash256x1, Attn, a, 160, 1) { flash<256, 1, 5>(a); }
KERNEL(flash256x2, Attn, a, 384, 1) { flash<256, 2, 5>(a); }
#endif
