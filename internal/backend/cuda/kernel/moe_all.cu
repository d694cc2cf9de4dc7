// Products with stacks of experts for Hopper and later: any format.
// also for sm_90
#include "common.h"
#ifdef HOPPER
#include "moe_solo.h"
MOE(all, ALL_FORMATS)
#endif
