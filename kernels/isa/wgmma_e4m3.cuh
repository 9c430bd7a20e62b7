// Products of 8-bit floats: D += A B, where A is 64 x 32, B is 32 x N, and D is 64 x N in float32 in registers. The
// elements of A and B are e4m3. wgmma.cuh has the order of calls. PTX ISA: wgmma.mma_async. Requires sm_90a.
//
// Both operands in shared memory lie along the summed dimension (MatrixDescriptor::along_rows). There is no transposed
// form. The tensor cores keep 14 bits of a sum and truncate the rest, so a long sum needs a second level in float32.
#pragma once

#include "wgmma.cuh"

namespace attend {

constexpr int kE4M3Depth = 32;            // number of elements along the summed dimension in one product
constexpr float kE4M3Largest = 448.0f;    // largest number of the type
constexpr uint32 kE4M3Ones = 0x38383838;  // four ones

// Rounds four numbers to e4m3, to nearest, ties to even. The first number becomes the lowest byte. Numbers out of range
// become +-448. PTX ISA, data movement and conversion: cvt. The first source operand becomes the high byte.
[[nodiscard]] __device__ __forceinline__ uint32 pack_e4m3(float a, float b, float c, float d) {
  uint32 four;
  asm("{.reg .b16 low, high;\n"
      "cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
      "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
      "mov.b32 %0, {low, high};}\n"
      : "=r"(four)
      : "f"(a), "f"(b), "f"(c), "f"(d));
  return four;
}

// One product. WgmmaE4M3<N>::ss reads A from shared memory. WgmmaE4M3<N>::rs reads A from registers. With g = lane / 4
// and q = lane % 4, the registers a[0..3] are groups of four elements, which begin at
//   (row g, k 4q), (row g + 8, k 4q), (row g, k 4q + 16), (row g + 8, k 4q + 16).
// kSign is 1 or -1, by which A is multiplied. If `accumulate` is false, D is overwritten.
template <int kColumns>
struct WgmmaE4M3;

// clang-format off: a line of PTX stays a line

// Operands of the accumulators, and their constraints.
#define ATTEND_E4M3_T0 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define ATTEND_E4M3_T1 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define ATTEND_E4M3_T2 ", %32, %33, %34, %35"
#define ATTEND_E4M3_T3 ", %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define ATTEND_E4M3_T4 ", %48, %49, %50, %51"
#define ATTEND_E4M3_T5 ", %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define ATTEND_E4M3_T6 ", %64, %65, %66, %67"
#define ATTEND_E4M3_R4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define ATTEND_E4M3_R16(i) ATTEND_E4M3_R4(i), ATTEND_E4M3_R4(i + 4), ATTEND_E4M3_R4(i + 8), ATTEND_E4M3_R4(i + 12)
#define ATTEND_E4M3_TEXT_36 ATTEND_E4M3_T0 ATTEND_E4M3_T1 ATTEND_E4M3_T2
#define ATTEND_E4M3_REGS_36 ATTEND_E4M3_R16(0), ATTEND_E4M3_R16(16), ATTEND_E4M3_R4(32)
#define ATTEND_E4M3_TEXT_48 ATTEND_E4M3_TEXT_36 ATTEND_E4M3_T3
#define ATTEND_E4M3_REGS_48 ATTEND_E4M3_R16(0), ATTEND_E4M3_R16(16), ATTEND_E4M3_R16(32)
#define ATTEND_E4M3_TEXT_52 ATTEND_E4M3_TEXT_48 ATTEND_E4M3_T4
#define ATTEND_E4M3_REGS_52 ATTEND_E4M3_REGS_48, ATTEND_E4M3_R4(48)
#define ATTEND_E4M3_TEXT_64 ATTEND_E4M3_TEXT_52 ATTEND_E4M3_T5
#define ATTEND_E4M3_REGS_64 ATTEND_E4M3_REGS_48, ATTEND_E4M3_R16(48)
#define ATTEND_E4M3_TEXT_68 ATTEND_E4M3_TEXT_64 ATTEND_E4M3_T6
#define ATTEND_E4M3_REGS_68 ATTEND_E4M3_REGS_64, ATTEND_E4M3_R4(64)

// Defines WgmmaE4M3. `columns` is the number of columns of D. `half` is the number of registers of D. `i0` to `i6` are
// the numbers of the operands that follow them.
#define ATTEND_WGMMA_E4M3(columns, half, i0, i1, i2, i3, i4, i5, i6)                                             \
  template <>                                                                                                    \
  struct WgmmaE4M3<columns> {                                                                                    \
    template <int kSign>                                                                                         \
    static __device__ __forceinline__ void ss(float (&d)[half], MatrixDescriptor a, MatrixDescriptor b,          \
                                              bool accumulate) {                                                 \
      asm volatile(                                                                                              \
          "{.reg .pred p;\n"                                                                                     \
          "setp.ne.b32 p, %" i2                                                                                  \
          ", 0;\n"                                                                                               \
          "wgmma.mma_async.sync.aligned.m64n" #columns "k32.f32.e4m3.e4m3 {" ATTEND_E4M3_TEXT_##half             \
          "}, %" i0 ", %" i1 ", p, %" i3 ", 1;}\n"                                                               \
          : ATTEND_E4M3_REGS_##half                                                                              \
          : "l"(a.bits), "l"(b.bits), "r"(static_cast<int>(accumulate)), "n"(kSign));                            \
    }                                                                                                            \
    static __device__ __forceinline__ void rs(float (&d)[half], const uint32* a, MatrixDescriptor b,             \
                                              bool accumulate) {                                                 \
      asm volatile(                                                                                              \
          "{.reg .pred p;\n"                                                                                     \
          "setp.ne.b32 p, %" i5                                                                                  \
          ", 0;\n"                                                                                               \
          "wgmma.mma_async.sync.aligned.m64n" #columns "k32.f32.e4m3.e4m3 {" ATTEND_E4M3_TEXT_##half             \
          "}, {%" i0 ", %" i1 ", %" i2 ", %" i3 "}, %" i4 ", p, %" i6 ", 1;}\n"                                  \
          : ATTEND_E4M3_REGS_##half                                                                              \
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits), "r"(static_cast<int>(accumulate)), "n"(1)); \
    }                                                                                                            \
  };

ATTEND_WGMMA_E4M3(72, 36, "36", "37", "38", "39", "40", "41", "42")
ATTEND_WGMMA_E4M3(96, 48, "48", "49", "50", "51", "52", "53", "54")
ATTEND_WGMMA_E4M3(104, 52, "52", "53", "54", "55", "56", "57", "58")
ATTEND_WGMMA_E4M3(128, 64, "64", "65", "66", "67", "68", "69", "70")
ATTEND_WGMMA_E4M3(136, 68, "68", "69", "70", "71", "72", "73", "74")

#undef ATTEND_WGMMA_E4M3
#undef ATTEND_E4M3_REGS_68
#undef ATTEND_E4M3_TEXT_68
#undef ATTEND_E4M3_REGS_64
#undef ATTEND_E4M3_TEXT_64
#undef ATTEND_E4M3_REGS_52
#undef ATTEND_E4M3_TEXT_52
#undef ATTEND_E4M3_REGS_48
#undef ATTEND_E4M3_TEXT_48
#undef ATTEND_E4M3_REGS_36
#undef ATTEND_E4M3_TEXT_36
#undef ATTEND_E4M3_R16
#undef ATTEND_E4M3_R4
#undef ATTEND_E4M3_T6
#undef ATTEND_E4M3_T5
#undef ATTEND_E4M3_T4
#undef ATTEND_E4M3_T3
#undef ATTEND_E4M3_T2
#undef ATTEND_E4M3_T1
#undef ATTEND_E4M3_T0
// clang-format on

}  // namespace attend
