// Attention with 128 dimensions, on Hopper.
// also for sm_90a
#include "flash.h"

#if defined(HOPPER) || defined(EMULATE)
KERNEL(flash128x1, Attn, a, 160, 1) { flash<128, 1, 10>(a); }
KERNEL(flash128x2, Attn, a, 384, 1) { flash<128, 2, 10>(a); }
#endif
