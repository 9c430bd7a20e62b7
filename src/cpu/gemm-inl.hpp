// Declares gemm() of the SIMD target being compiled; defined in gemm.cpp. Included once per target.
#if defined(ATTEND_CPU_GEMM_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTEND_CPU_GEMM_INL
#undef ATTEND_CPU_GEMM_INL
#else
#define ATTEND_CPU_GEMM_INL
#endif

#include <hwy/highway.h>

#include "cpu/gemm.hpp"

HWY_BEFORE_NAMESPACE();
namespace attend::cpu::HWY_NAMESPACE {

/// One tile product on one thread. k is expected to be short enough (up to about 128) for n = 64 columns of B to stay
/// in the first-level cache. The order of additions depends on the shape alone.
void gemm(const GemmArgs& args);

}  // namespace attend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
