// Products of up to 64 tokens at a time for Hopper and later: any formats in one launch. A file for each set, since a
// driver compiles whole files.
// also for sm_90
// emulated as for sm_90
#include "common.h"
#ifdef HOPPER
#include "solo.h"
SOLOS(all, ALL_FORMATS)
#endif
