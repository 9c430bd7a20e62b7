// Products of a warpgroup, D += A B, in which the columns of both tiles in shared memory run along the summed
// dimension. wgmma.cuh states the order of calls. PTX ISA: wgmma.mma_async with imm-trans-a = imm-trans-b = 1, which
// exists for elements of 16 bits. Requires sm_90a.
#pragma once

#include "wgmma.cuh"

namespace attend {

// MatrixDescriptor::down_columns() returns the descriptors of A and B. A has 64 columns, which lie in one panel, and B
// has kColumns. If `accumulate` is false, D is overwritten.
template <ElementType kElement, int kColumns>
struct WgmmaTransposed;

// clang-format off: a line of PTX stays a line

#define ATTEND_WGMMA_TEXT_96                                                         \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"             \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31" \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63" \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79" \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define ATTEND_WGMMA_TEXT_128                                                                    \
  ATTEND_WGMMA_TEXT_96                                                                           \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define ATTEND_WGMMA_R8(i)                                                                                    \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7])
#define ATTEND_WGMMA_R32(i) ATTEND_WGMMA_R8(i), ATTEND_WGMMA_R8(i + 8), ATTEND_WGMMA_R8(i + 16), ATTEND_WGMMA_R8(i + 24)
#define ATTEND_WGMMA_REGS_96 ATTEND_WGMMA_R32(0), ATTEND_WGMMA_R32(32), ATTEND_WGMMA_R32(64)
#define ATTEND_WGMMA_REGS_128 ATTEND_WGMMA_REGS_96, ATTEND_WGMMA_R32(96)

// Defines WgmmaTransposed. `half` is the number of registers of D. `i0` to `i2` are the numbers of the operands that
// follow them.
#define ATTEND_WGMMA_TRANSPOSED(element, type, columns, half, i0, i1, i2)                                     \
  template <>                                                                                                 \
  struct WgmmaTransposed<ElementType::element, columns> {                                                     \
    static __device__ __forceinline__ void ss(float (&d)[half], MatrixDescriptor a, MatrixDescriptor b,       \
                                              bool accumulate) {                                              \
      asm volatile(                                                                                           \
          "{.reg .pred p;\n"                                                                                  \
          "setp.ne.b32 p, %" i2                                                                               \
          ", 0;\n"                                                                                            \
          "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." type "." type " {" ATTEND_WGMMA_TEXT_##half \
          "}, %" i0 ", %" i1 ", p, 1, 1, 1, 1;}\n"                                                            \
          : ATTEND_WGMMA_REGS_##half                                                                          \
          : "l"(a.bits), "l"(b.bits), "r"(static_cast<int>(accumulate)));                                     \
    }                                                                                                         \
  };

ATTEND_WGMMA_TRANSPOSED(kF16, "f16", 192, 96, "96", "97", "98")
ATTEND_WGMMA_TRANSPOSED(kF16, "f16", 256, 128, "128", "129", "130")
ATTEND_WGMMA_TRANSPOSED(kBF16, "bf16", 192, 96, "96", "97", "98")
ATTEND_WGMMA_TRANSPOSED(kBF16, "bf16", 256, 128, "128", "129", "130")

#undef ATTEND_WGMMA_TRANSPOSED
#undef ATTEND_WGMMA_REGS_128
#undef ATTEND_WGMMA_REGS_96
#undef ATTEND_WGMMA_R32
#undef ATTEND_WGMMA_R8
#undef ATTEND_WGMMA_TEXT_128
#undef ATTEND_WGMMA_TEXT_96
// clang-format on

}  // namespace attend
