// Attention with 256 dimensions, on Hopper.
// also for sm_90a
#include "flash.h"

#if defined(HOPPER) || defined(EMULATE)
KERNEL(flash256x1, Attn, a, 160, 1) { flash<256, 1, 5, false>(a); }
KERNEL(flash256x2, Attn, a, 384, 1) { flash<256, 2, 5, false>(a); }
KERNEL(packed256x1, Attn, a, 256, 1) { flash<256, 1, 5, true>(a); }
KERNEL(packed256x2, Attn, a, 384, 1) { flash<256, 2, 5, true>(a); }
#endif
