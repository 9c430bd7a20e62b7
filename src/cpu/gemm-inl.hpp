// Declares gemm() for the SIMD target that is being compiled. gemm.cpp defines the function. Included once per target.
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

/// Computes one tile product on one thread. The dimension k should be at most about 128, so that 64 columns of B fit in
/// the first-level cache. The order of additions depends only on the shape.
void gemm(const GemmArgs& args);

}  // namespace attend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
