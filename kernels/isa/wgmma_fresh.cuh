// Products of a warpgroup that initialise an accumulator, and pin_registers() for packed operands (see wgmma.cuh).
//
// WgmmaOp declares its accumulator as read and written, even if the product overwrites it. So the old values occupy
// registers until then. WgmmaFresh declares its accumulator as written only, so its registers are free before the
// product. The backward pass depends on this. When the old values occupied registers, ptxas spilled 128 bytes for each
// thread.
#pragma once

#include "wgmma.cuh"

namespace attend {

// Stops the compiler from moving uses of these registers across this place, as pin_registers() does for floats.
template <int kCount>
__device__ __forceinline__ void pin_registers(uint32 (&value)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(value[i])::"memory");
}

// Computes d = A B, where d is 64 x 64. ss reads A from shared memory, and rs reads it from registers in WgmmaOp's
// layout. kTransposeB is set if down_columns() returned the descriptor b.
template <ElementType kElement>
struct WgmmaFresh;

// clang-format off: a line of PTX stays a line

#define ATTEND_WGMMA_E8(i)                                                                                    \
  "=f"(d[i]), "=f"(d[i + 1]), "=f"(d[i + 2]), "=f"(d[i + 3]), "=f"(d[i + 4]), "=f"(d[i + 5]), "=f"(d[i + 6]), \
      "=f"(d[i + 7])
#define ATTEND_WGMMA_FRESH(element, type)                                                               \
  template <>                                                                                           \
  struct WgmmaFresh<ElementType::element> {                                                             \
    template <bool kTransposeB>                                                                         \
    static __device__ __forceinline__ void ss(float (&d)[32], MatrixDescriptor a, MatrixDescriptor b) { \
      asm volatile(                                                                                     \
          "{.reg .pred p;\n"                                                                            \
          "setp.ne.b32 p, 0, 0;\n"                                                                      \
          "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type                                   \
          " "                                                                                           \
          "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                     \
          "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "           \
          "%32, %33, p, 1, 1, 0, %34;}\n"                                                               \
          : ATTEND_WGMMA_E8(0), ATTEND_WGMMA_E8(8), ATTEND_WGMMA_E8(16), ATTEND_WGMMA_E8(24)            \
          : "l"(a.bits), "l"(b.bits), "n"(kTransposeB ? 1 : 0));                                        \
    }                                                                                                   \
    template <bool kTransposeB>                                                                         \
    static __device__ __forceinline__ void rs(float (&d)[32], const uint32* a, MatrixDescriptor b) {    \
      asm volatile(                                                                                     \
          "{.reg .pred p;\n"                                                                            \
          "setp.ne.b32 p, 0, 0;\n"                                                                      \
          "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type                                   \
          " "                                                                                           \
          "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                     \
          "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "           \
          "{%32, %33, %34, %35}, %36, p, 1, 1, %37;}\n"                                                 \
          : ATTEND_WGMMA_E8(0), ATTEND_WGMMA_E8(8), ATTEND_WGMMA_E8(16), ATTEND_WGMMA_E8(24)            \
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits), "n"(kTransposeB ? 1 : 0));         \
    }                                                                                                   \
  };

ATTEND_WGMMA_FRESH(kF16, "f16")
ATTEND_WGMMA_FRESH(kBF16, "bf16")

#undef ATTEND_WGMMA_FRESH
#undef ATTEND_WGMMA_E8
// clang-format on

}  // namespace attend
