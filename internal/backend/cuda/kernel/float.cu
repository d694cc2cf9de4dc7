// Products with float weights: see float.h.
// also for sm_90
#include "float.h"

#define FLOATS(type, TYPE) \
  KERNEL(float_wide_##type##_1, FloatArgs, p, 256, 2) { wide<TYPE, 1, true>(p); } \
  KERNEL(float_wide_##type##_4, FloatArgs, p, 256, 2) { wide<TYPE, 4, true>(p); } \
  KERNEL(float_wide_##type##_8, FloatArgs, p, 256, 2) { wide<TYPE, 8, true>(p); } \
  KERNEL(float_wide_##type##_16, FloatArgs, p, 256, 1) { wide<TYPE, 16, true>(p); } \
  KERNEL(float_wide_##type##_odd, FloatArgs, p, 256, 1) { wide<TYPE, 1, false>(p); } \
  KERNEL(float_narrow_##type##_1, FloatArgs, p, 256, 2) { narrow<TYPE, 1, true>(p, BID * 4); } \
  KERNEL(float_narrow_##type##_8, FloatArgs, p, 256, 2) { narrow<TYPE, 8, true>(p, BID * 4); } \
  KERNEL(float_narrow_##type##_odd, FloatArgs, p, 256, 1) { narrow<TYPE, 1, false>(p, BID * 4); }
FLOATS(f32, F32)
FLOATS(f16, F16)
FLOATS(bf16, BF16)
