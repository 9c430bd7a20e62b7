// Defines WgmmaOp for further widths, in addition to the 64 and 128 columns of wgmma.cuh. D is 64 x kColumns, with
// kColumns / 2 registers in each thread. PTX ISA: wgmma.mma_async. Requires sm_90a.
#pragma once

#include "wgmma.cuh"

namespace attend {

// clang-format off: a line of PTX stays a line

// Operands of the accumulators, eight in each macro: %0 to %127, and their constraints.
#define ATTEND_WGMMA_T0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define ATTEND_WGMMA_T1 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define ATTEND_WGMMA_T2 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define ATTEND_WGMMA_T3 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define ATTEND_WGMMA_T4 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define ATTEND_WGMMA_T5 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define ATTEND_WGMMA_T6 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define ATTEND_WGMMA_T7 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define ATTEND_WGMMA_T8 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define ATTEND_WGMMA_T9 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define ATTEND_WGMMA_T10 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define ATTEND_WGMMA_T11 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define ATTEND_WGMMA_T12 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define ATTEND_WGMMA_T13 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define ATTEND_WGMMA_T14 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define ATTEND_WGMMA_T15 ", %120, %121, %122, %123, %124, %125, %126, %127"
#define ATTEND_WGMMA_R8(i)                                                                                    \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7])
#define ATTEND_WGMMA_TEXT_40 ATTEND_WGMMA_T0 ATTEND_WGMMA_T1 ATTEND_WGMMA_T2 ATTEND_WGMMA_T3 ATTEND_WGMMA_T4
#define ATTEND_WGMMA_REGS_40 \
  ATTEND_WGMMA_R8(0), ATTEND_WGMMA_R8(8), ATTEND_WGMMA_R8(16), ATTEND_WGMMA_R8(24), ATTEND_WGMMA_R8(32)
#define ATTEND_WGMMA_TEXT_48 ATTEND_WGMMA_TEXT_40 ATTEND_WGMMA_T5
#define ATTEND_WGMMA_REGS_48 ATTEND_WGMMA_REGS_40, ATTEND_WGMMA_R8(40)
#define ATTEND_WGMMA_TEXT_56 ATTEND_WGMMA_TEXT_48 ATTEND_WGMMA_T6
#define ATTEND_WGMMA_REGS_56 ATTEND_WGMMA_REGS_48, ATTEND_WGMMA_R8(48)
#define ATTEND_WGMMA_TEXT_72 ATTEND_WGMMA_TEXT_56 ATTEND_WGMMA_T7 ATTEND_WGMMA_T8
#define ATTEND_WGMMA_REGS_72 ATTEND_WGMMA_REGS_56, ATTEND_WGMMA_R8(56), ATTEND_WGMMA_R8(64)
#define ATTEND_WGMMA_TEXT_80 ATTEND_WGMMA_TEXT_72 ATTEND_WGMMA_T9
#define ATTEND_WGMMA_REGS_80 ATTEND_WGMMA_REGS_72, ATTEND_WGMMA_R8(72)
#define ATTEND_WGMMA_TEXT_88 ATTEND_WGMMA_TEXT_80 ATTEND_WGMMA_T10
#define ATTEND_WGMMA_REGS_88 ATTEND_WGMMA_REGS_80, ATTEND_WGMMA_R8(80)
#define ATTEND_WGMMA_TEXT_96 ATTEND_WGMMA_TEXT_88 ATTEND_WGMMA_T11
#define ATTEND_WGMMA_REGS_96 ATTEND_WGMMA_REGS_88, ATTEND_WGMMA_R8(88)
#define ATTEND_WGMMA_TEXT_128 ATTEND_WGMMA_TEXT_96 ATTEND_WGMMA_T12 ATTEND_WGMMA_T13 ATTEND_WGMMA_T14 ATTEND_WGMMA_T15
#define ATTEND_WGMMA_REGS_128 \
  ATTEND_WGMMA_REGS_96, ATTEND_WGMMA_R8(96), ATTEND_WGMMA_R8(104), ATTEND_WGMMA_R8(112), ATTEND_WGMMA_R8(120)

// Defines WgmmaOp. `type` is f16 or bf16. `columns` is the number of columns of D. `half` is the number of registers of
// D. `i0` to `i7` are the numbers of the operands that follow them.
#define ATTEND_WGMMA_WIDTH(element, type, columns, half, i0, i1, i2, i3, i4, i5, i6, i7)                            \
  template <>                                                                                                       \
  struct WgmmaOp<ElementType::element, columns> {                                                                   \
    template <bool kTransposeB, int kSign>                                                                          \
    static __device__ __forceinline__ void ss(float (&d)[half], MatrixDescriptor a, MatrixDescriptor b,             \
                                              bool accumulate) {                                                    \
      asm volatile(                                                                                                 \
          "{.reg .pred p;\n"                                                                                        \
          "setp.ne.b32 p, %" i2                                                                                     \
          ", 0;\n"                                                                                                  \
          "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." type "." type " {" ATTEND_WGMMA_TEXT_##half       \
          "}, %" i0 ", %" i1 ", p, %" i3 ", 1, 0, %" i4 ";}\n"                                                      \
          : ATTEND_WGMMA_REGS_##half                                                                                \
          : "l"(a.bits), "l"(b.bits), "r"(static_cast<int>(accumulate)), "n"(kSign), "n"(kTransposeB ? 1 : 0));     \
    }                                                                                                               \
    template <bool kTransposeB, int kSign>                                                                          \
    static __device__ __forceinline__ void rs(float (&d)[half], const uint32* a, MatrixDescriptor b,                \
                                              bool accumulate) {                                                    \
      asm volatile(                                                                                                 \
          "{.reg .pred p;\n"                                                                                        \
          "setp.ne.b32 p, %" i5                                                                                     \
          ", 0;\n"                                                                                                  \
          "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." type "." type " {" ATTEND_WGMMA_TEXT_##half       \
          "}, {%" i0 ", %" i1 ", %" i2 ", %" i3 "}, %" i4 ", p, %" i6 ", 1, %" i7 ";}\n"                            \
          : ATTEND_WGMMA_REGS_##half                                                                                \
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits), "r"(static_cast<int>(accumulate)), "n"(kSign), \
            "n"(kTransposeB ? 1 : 0));                                                                              \
    }                                                                                                               \
  };
#define ATTEND_WGMMA_WIDTHS(element, type)                                                       \
  ATTEND_WGMMA_WIDTH(element, type, 80, 40, "40", "41", "42", "43", "44", "45", "46", "47")      \
  ATTEND_WGMMA_WIDTH(element, type, 96, 48, "48", "49", "50", "51", "52", "53", "54", "55")      \
  ATTEND_WGMMA_WIDTH(element, type, 112, 56, "56", "57", "58", "59", "60", "61", "62", "63")     \
  ATTEND_WGMMA_WIDTH(element, type, 144, 72, "72", "73", "74", "75", "76", "77", "78", "79")     \
  ATTEND_WGMMA_WIDTH(element, type, 160, 80, "80", "81", "82", "83", "84", "85", "86", "87")     \
  ATTEND_WGMMA_WIDTH(element, type, 176, 88, "88", "89", "90", "91", "92", "93", "94", "95")     \
  ATTEND_WGMMA_WIDTH(element, type, 192, 96, "96", "97", "98", "99", "100", "101", "102", "103") \
  ATTEND_WGMMA_WIDTH(element, type, 256, 128, "128", "129", "130", "131", "132", "133", "134", "135")

ATTEND_WGMMA_WIDTHS(kF16, "f16")
ATTEND_WGMMA_WIDTHS(kBF16, "bf16")

#undef ATTEND_WGMMA_WIDTHS
#undef ATTEND_WGMMA_WIDTH
#undef ATTEND_WGMMA_TEXT_40
#undef ATTEND_WGMMA_REGS_40
#undef ATTEND_WGMMA_TEXT_48
#undef ATTEND_WGMMA_REGS_48
#undef ATTEND_WGMMA_TEXT_56
#undef ATTEND_WGMMA_REGS_56
#undef ATTEND_WGMMA_TEXT_72
#undef ATTEND_WGMMA_REGS_72
#undef ATTEND_WGMMA_TEXT_80
#undef ATTEND_WGMMA_REGS_80
#undef ATTEND_WGMMA_TEXT_88
#undef ATTEND_WGMMA_REGS_88
#undef ATTEND_WGMMA_TEXT_96
#undef ATTEND_WGMMA_REGS_96
#undef ATTEND_WGMMA_TEXT_128
#undef ATTEND_WGMMA_REGS_128
#undef ATTEND_WGMMA_R8
#undef ATTEND_WGMMA_T0
#undef ATTEND_WGMMA_T1
#undef ATTEND_WGMMA_T2
#undef ATTEND_WGMMA_T3
#undef ATTEND_WGMMA_T4
#undef ATTEND_WGMMA_T5
#undef ATTEND_WGMMA_T6
#undef ATTEND_WGMMA_T7
#undef ATTEND_WGMMA_T8
#undef ATTEND_WGMMA_T9
#undef ATTEND_WGMMA_T10
#undef ATTEND_WGMMA_T11
#undef ATTEND_WGMMA_T12
#undef ATTEND_WGMMA_T13
#undef ATTEND_WGMMA_T14
#undef ATTEND_WGMMA_T15
// clang-format on

}  // namespace attend
