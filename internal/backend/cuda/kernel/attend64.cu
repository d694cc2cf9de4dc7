// Attention with 64 dimensions, on the tensor cores of all devices.
// also for sm_90
#include "attend.h"

KERNEL(attend64x1, Attn, a, 128, 1) { attend<64, 1>(a); }
KERNEL(attend64x4, Attn, a, 128, 1) { attend<64, 4>(a); }
