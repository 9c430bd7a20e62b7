// Matrix products of a warpgroup: D += A B, where A is 64 x 16, B is 16 x N, and D is 64 x N in float32 in registers.
// PTX ISA, "Asynchronous warpgroup level matrix instructions": wgmma.mma_async, .fence, .commit_group, .wait_group.
// Requires sm_90a. All 128 threads of a warpgroup must execute each of these instructions together.
//
// The order of calls is wgmma_fence(), products, wgmma_commit(), wgmma_wait<pending>(D). Between the fence and the
// wait, the registers of D must not be accessed. The same holds for A, if it is in registers.
#pragma once

#include "../common/config_enums.cuh"
#include "../common/portable.cuh"
#include "smem_address.cuh"

namespace attend {

constexpr int kWarpgroup = 128;     // number of threads
constexpr int kWarpgroupRows = 64;  // number of rows of D
constexpr int kWgmmaDepth = 16;     // number of elements along the summed dimension in one product. An element has 16
                                    // bits

// Location of an operand in shared memory, in panels of 64 columns with the 128-byte swizzle (smem_address.cuh). PTX
// ISA, "Matrix-descriptor": bits 0-13 are address / 16, bits 16-29 the leading byte offset / 16, bits 32-45 the stride
// byte offset / 16, and bits 62-63 the swizzle (1 means 128 bytes). A tile can be read in two directions.
struct MatrixDescriptor {
  uint64 bits;

  // Describes a tile whose rows run along the summed dimension, for example q and k in q k^T. Groups of 8 rows are
  // kSwizzleAtom apart, and the leading offset is not used. advance(32) moves to the next 16 elements, in up to 4 steps
  // of a panel. Then the next panel follows.
  [[nodiscard]] static __device__ __forceinline__ MatrixDescriptor along_rows(uint32 address) {
    return {encode(address, 16)};
  }
  // Describes a tile whose columns run along the summed dimension, for example v in p v. Panels are `panel_bytes`
  // apart. advance(16 * kSwizzleBytes) moves to the next 16 elements.
  [[nodiscard]] static __device__ __forceinline__ MatrixDescriptor down_columns(uint32 address, uint32 panel_bytes) {
    return {encode(address, panel_bytes)};
  }
  // Advances the address. The sum cannot carry into the next field, because shared memory is smaller than the range of
  // the address field.
  [[nodiscard]] __device__ __forceinline__ MatrixDescriptor advance(uint32 bytes) const {
    return {bits + (bytes >> 4)};
  }
  // Returns the same as advance(), but adds only the lower word, which contains the address. This takes half the
  // instructions of a 64-bit addition.
  [[nodiscard]] __device__ __forceinline__ MatrixDescriptor advance_low(uint32 bytes) const {
    return {(bits & ~uint64{0xffffffff}) | (static_cast<uint32>(bits) + (bytes >> 4))};
  }

 private:
  [[nodiscard]] static __device__ __forceinline__ uint64 encode(uint32 address, uint32 leading_bytes) {
    return static_cast<uint64>((address & 0x3ffff) >> 4) | static_cast<uint64>(leading_bytes >> 4) << 16 |
           static_cast<uint64>(kSwizzleAtom >> 4) << 32 | static_cast<uint64>(1) << 62;
  }
};

// Stops the compiler from moving uses of these registers across this place, and marks them as changed. The compiler
// cannot see that tensor cores write them between the product and the wait.
template <int kCount>
__device__ __forceinline__ void pin_registers(float (&value)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(value[i])::"memory");
}

// Orders writes of D or A by ordinary instructions before the following products. Called before the first product, and
// again if such writes have followed a product. The clobber "memory" keeps earlier stores to shared memory, which the
// products read, before the fence.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

// Puts the products since the last commit into one group.
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most the kPending youngest groups are in flight. `d` is the accumulator that is then complete.
template <int kPending, int kCount>
__device__ __forceinline__ void wgmma_wait(float (&d)[kCount]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
  pin_registers(d);
}

// Makes ordinary writes to shared memory, including those of cp.async, visible to wgmma and TMA, which read through the
// async proxy. Each writing thread calls it before the barrier at which the reader waits. PTX ISA: fence.proxy.async.
__device__ __forceinline__ void fence_smem_for_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// One product. WgmmaOp<type, N>::ss reads A from shared memory. WgmmaOp<type, N>::rs reads A from registers. With g =
// lane / 4 and q = lane % 4, the registers a[0..3] are the pairs
//   (row g, k 2q), (row g + 8, k 2q), (row g, k 2q + 8), (row g + 8, k 2q + 8).
// So accumulators become A operands if neighbours are packed. B lies in shared memory. kTransposeB is set if
// down_columns() returned the descriptor of B. kSign is 1 or -1, by which A is multiplied. If `accumulate` is false, D
// is overwritten. There is no memory clobber, because fence, commit and wait order the product relative to other
// accesses.
template <ElementType kElement, int kColumns>
struct WgmmaOp;

// clang-format off: a line of PTX stays a line

// Text of the accumulator operands: %0 to %31, or %0 to %63.
#define ATTEND_WGMMA_TEXT_32                                               \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define ATTEND_WGMMA_TEXT_64                                                         \
  ATTEND_WGMMA_TEXT_32                                                               \
  ", "                                                                               \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define ATTEND_WGMMA_D8(i)                                                                                    \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7])
#define ATTEND_WGMMA_D32(i) ATTEND_WGMMA_D8(i), ATTEND_WGMMA_D8(i + 8), ATTEND_WGMMA_D8(i + 16), ATTEND_WGMMA_D8(i + 24)
#define ATTEND_WGMMA_D64(i) ATTEND_WGMMA_D32(i), ATTEND_WGMMA_D32(i + 32)

// Defines WgmmaOp. `type` is f16 or bf16. `columns` is the number of columns of D. `text` and `outputs` are the
// registers of D. `i0` to `i7` are the numbers of the operands that follow them.
#define ATTEND_WGMMA_OP(element, type, columns, text, outputs, i0, i1, i2, i3, i4, i5, i6, i7)                      \
  template <>                                                                                                       \
  struct WgmmaOp<ElementType::element, columns> {                                                                   \
    template <bool kTransposeB, int kSign>                                                                          \
    static __device__ __forceinline__ void ss(float (&d)[columns / 2], MatrixDescriptor a, MatrixDescriptor b,      \
                                              bool accumulate) {                                                    \
      asm volatile(                                                                                                 \
          "{.reg .pred p;\n"                                                                                        \
          "setp.ne.b32 p, %" i2                                                                                     \
          ", 0;\n"                                                                                                  \
          "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." type "." type                                     \
          " "                                                                                                       \
          "{" text "}, %" i0 ", %" i1 ", p, %" i3 ", 1, 0, %" i4 ";}\n"                                             \
          : outputs                                                                                                 \
          : "l"(a.bits), "l"(b.bits), "r"(static_cast<int>(accumulate)), "n"(kSign), "n"(kTransposeB ? 1 : 0));     \
    }                                                                                                               \
    template <bool kTransposeB, int kSign>                                                                          \
    static __device__ __forceinline__ void rs(float (&d)[columns / 2], const uint32* a, MatrixDescriptor b,         \
                                              bool accumulate) {                                                    \
      asm volatile(                                                                                                 \
          "{.reg .pred p;\n"                                                                                        \
          "setp.ne.b32 p, %" i5                                                                                     \
          ", 0;\n"                                                                                                  \
          "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." type "." type                                     \
          " "                                                                                                       \
          "{" text "}, {%" i0 ", %" i1 ", %" i2 ", %" i3 "}, %" i4 ", p, %" i6 ", 1, %" i7 ";}\n"                   \
          : outputs                                                                                                 \
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits), "r"(static_cast<int>(accumulate)), "n"(kSign), \
            "n"(kTransposeB ? 1 : 0));                                                                              \
    }                                                                                                               \
  };
#define ATTEND_WGMMA_OPS(element, type)                                                                              \
  ATTEND_WGMMA_OP(element, type, 64, ATTEND_WGMMA_TEXT_32, ATTEND_WGMMA_D32(0), "32", "33", "34", "35", "36", "37",  \
                  "38", "39")                                                                                        \
  ATTEND_WGMMA_OP(element, type, 128, ATTEND_WGMMA_TEXT_64, ATTEND_WGMMA_D64(0), "64", "65", "66", "67", "68", "69", \
                  "70", "71")

ATTEND_WGMMA_OPS(kF16, "f16")
ATTEND_WGMMA_OPS(kBF16, "bf16")

#undef ATTEND_WGMMA_OPS
#undef ATTEND_WGMMA_OP
#undef ATTEND_WGMMA_D64
#undef ATTEND_WGMMA_D32
#undef ATTEND_WGMMA_D8
#undef ATTEND_WGMMA_TEXT_64
#undef ATTEND_WGMMA_TEXT_32
// clang-format on

}  // namespace attend
