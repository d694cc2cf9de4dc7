// Products with stacks of experts for Hopper and later: Q4_K, Q5_K and Q6_K.
// also for sm_90
// emulated as for sm_90
#include "common.h"
#ifdef HOPPER
#include "experts.h"
EXPERTS(k, K_QUANTS)
#endif
