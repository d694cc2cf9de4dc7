// Products of up to 64 tokens at a time for Hopper and later: Q4_K alone. A file for each set, since a driver
// compiles whole files.
// also for sm_90
// emulated as for sm_90
#include "common.h"
#ifdef HOPPER
#include "solo.h"
SOLOS(q4k, ONLY_Q4K)
SOLOS_BETWEEN(q4k, ONLY_Q4K)
// Attention's output is seldom multiplied with another format.
KERNEL(solo_q4k_merged, MergedArgs, a, 512, 1) { solo<ONLY_Q4K, 1>(a.p, a.m); }
KERNEL(solo_q4k_merged_then, MergedThenArgs, a, 512, 1) { solo<ONLY_Q4K, 1>(a.p, a.m, a.t); }
#endif
