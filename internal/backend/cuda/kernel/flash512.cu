// Attention with 512 dimensions, on Hopper.
// also for sm_90a
#include "flash.h"

#if defined(HOPPER) || defined(EMULATE)
KERNEL(flash512x2, Attn, a, 384, 1) { flash<512, 2, 5, false>(a); }
KERNEL(packed512x2, Attn, a, 384, 1) { flash<512, 2, 5, true>(a); }
#endif
