// Attention with 128 dimensions, on Hopper.
// also for sm_90a
#include "flash.h"

#if defined(HOPPER) || defined(EMULATE)
KERNEL(flash128x1, Attn, a, 160, 1) { flash<128, 1, 10, false>(a); }
KERNEL(flash128x2, Attn, a, 384, 1) { flash<128, 2, 10, false>(a); }
KERNEL(flash128x3_80, Attn, a, 512, 1) { flash<128, 3, 10, false, 80>(a); }
KERNEL(packed128x1, Attn, a, 256, 1) { flash<128, 1, 10, true>(a); }
KERNEL(packed128x2, Attn, a, 384, 1) { flash<128, 2, 10, true>(a); }
#endif
