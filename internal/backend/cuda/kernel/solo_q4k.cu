// Products of up to 64 tokens at a time for Hopper and later: Q4_K alone. A file for each set, since a driver
// compiles whole files.
// also for sm_90
// emulated as for sm_90
#include "common.h"
#ifdef HOPPER
#include "solo.h"
SOLOS(q4k, ONLY_Q4K)
SOLOS_BETWEEN(q4k, ONLY_Q4K)
// Two blocks of different kernels fit a multiprocessor, and with at most 56 registers (576 threads say so) a small
// one beside them.
KERNEL(solo2_q4k_1, ProductArgs, a, 576, 2) { solo<ONLY_Q4K, 1>(a, Packed{}); }
#endif
