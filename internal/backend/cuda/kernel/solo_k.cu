// Products of up to 64 tokens at a time for Hopper and later: Q4_K, Q5_K and Q6_K, which models mix. A file for each
// set, since a driver compiles whole files.
// also for sm_90
// emulated as for sm_90
#include "common.h"
#ifdef HOPPER
#include "solo.h"
SOLOS(k, K_QUANTS)
SOLOS_BETWEEN(k, K_QUANTS)
#endif
