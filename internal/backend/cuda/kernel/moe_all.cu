// Products with stacks of experts for Hopper and later: any format.
// also for sm_90
#include "common.h"
#ifdef HOPPER
#include "experts.h"
EXPERTS(all, ALL_FORMATS)
#endif
