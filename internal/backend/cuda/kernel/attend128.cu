// Attention with 128 dimensions, on the tensor cores of all devices.
// also for sm_90
#include "attend.h"

KERNEL(attend128x1, Attn, a, 128, 1) { attend<128, 1>(a); }
KERNEL(attend128x4, Attn, a, 128, 1) { attend<128, 4>(a); }
