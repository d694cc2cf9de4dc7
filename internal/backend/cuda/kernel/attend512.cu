// Attention with 512 dimensions, on the tensor cores of all devices.
// also for sm_90
#include "attend.h"

KERNEL(attend512x1, Attn, a, 128, 1) { attend<512, 1>(a); }
KERNEL(attend512x2, Attn, a, 128, 1) { attend<512, 2>(a); }
