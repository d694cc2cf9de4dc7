// Attention with 256 dimensions, on the tensor cores of all devices.
// also for sm_90
#include "attend.h"

KERNEL(attend256x1, Attn, a, 128, 1) { attend<256, 1>(a); }
KERNEL(attend256x4, Attn, a, 128, 1) { attend<256, 4>(a); }
