// mma.m16n8k16 of a warp, and its operands. tiles/block_reader.cuh loads the operands from shared memory. PTX ISA, Warp
// level matrix instructions: mma; Matrix Fragments for mma.m16n8k16. Requires sm_80 or newer.
//
// Lane l has four elements of the 16 x 8 result, in the layout of accumulator_mask.cuh. The operands have these
// layouts:
// - A (16 x 16): reg[0] has rows 0-7 and columns 0-7, and reg[1] has rows 8-15 and columns 0-7. reg[2] and reg[3] have
//   the same rows and columns 8-15. In each of them, lane l has columns 2 (l % 4) and 2 (l % 4) + 1 of row l / 4. This
//   is the layout of accumulators, so P becomes an operand without any rearrangement.
// - B (16 x 8): reg[0] has rows 0-7, and reg[1] has rows 8-15. Lane l has rows 2 (l % 4) and 2 (l % 4) + 1 of column l
//   / 4.
#pragma once

#include "../common/element.cuh"
#include "../common/portable.cuh"

namespace attend {

constexpr int kMmaRows = 16;           // number of rows of A
constexpr int kMmaDepth = 16;          // number of columns of A, and of rows of B
constexpr int kMmaColumns = 8;         // number of columns of B
constexpr int kAccumulatorsOfMma = 4;  // number of accumulators of a lane

struct OperandA {
  uint32 reg[4];
};

struct OperandB {
  uint32 reg[2];
};

// Computes d = A B + c. A lane has four of the 16 x 8 elements. All lanes of a warp must call it together. The asm
// accesses only registers, so it is neither volatile nor clobbers memory, and the compiler may move it like arithmetic.
__device__ __forceinline__ void mma_m16n8k16(Float16 /*type*/, float* d, const OperandA& a, const OperandB& b,
                                             const float* c) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%10, %11, %12, %13};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a.reg[0]), "r"(a.reg[1]), "r"(a.reg[2]), "r"(a.reg[3]), "r"(b.reg[0]), "r"(b.reg[1]), "f"(c[0]), "f"(c[1]),
        "f"(c[2]), "f"(c[3]));
}

__device__ __forceinline__ void mma_m16n8k16(BFloat16 /*type*/, float* d, const OperandA& a, const OperandB& b,
                                             const float* c) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%10, %11, %12, %13};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a.reg[0]), "r"(a.reg[1]), "r"(a.reg[2]), "r"(a.reg[3]), "r"(b.reg[0]), "r"(b.reg[1]), "f"(c[0]), "f"(c[1]),
        "f"(c[2]), "f"(c[3]));
}

// Computes d += A B.
template <class Element>
__device__ __forceinline__ void mma_add(float* d, const OperandA& a, const OperandB& b) {
  static_assert(sizeof(typename Element::Storage) == sizeof(Bits16), "a product of depth 16 takes 16 bits");
  mma_m16n8k16(Element{}, d, a, b, d);
}

// Two neighbouring operands, which have 16 columns of B.
struct OperandBPair {
  OperandB half[2];
};

// Packs eight neighbouring accumulators of a lane into the A operand of P V. The accumulators are p of 16 keys.
template <class Element>
[[nodiscard]] __device__ __forceinline__ OperandA pack_operand_a(const float* p) {
  static_assert(sizeof(typename Element::Storage) == sizeof(Bits16), "a register has a pair");
  return {{Element::pack(p[0], p[1]), Element::pack(p[2], p[3]), Element::pack(p[4], p[5]), Element::pack(p[6], p[7])}};
}

// Returns -A if kNegate is set. A kernel that applies |scale| in the exponent uses scores of -q if scale < 0.
template <bool kNegate>
[[nodiscard]] __device__ __forceinline__ OperandA negated(OperandA a) {
  if constexpr (kNegate) {
#pragma unroll
    for (uint32& pair : a.reg) pair ^= 0x80008000u;  // flips both signs
  }
  return a;
}

}  // namespace attend
