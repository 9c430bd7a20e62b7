// The matrix product of every tile of the `cpu` backend.
//
// A block of C, kRows x kVectors vectors, stays in registers during the loop over k. Each step loads kVectors vectors
// of B, broadcasts kRows scalars of A, and executes kRows * kVectors fused multiply-adds. With AVX-512 the block has 6
// x 4 of the 32 registers. A step then has 10 loads for 24 multiply-adds, which is below the core's limit of two loads
// per cycle. Source of the scheme: Goto, van de Geijn, Anatomy of High-Performance Matrix Multiplication (2008),
// section 4.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/gemm.cpp"
#include <hwy/foreach_target.h>  // compiles this file once per SIMD target
#include <hwy/highway.h>

#include <algorithm>

#include "cpu/gemm-inl.hpp"

#if defined(__clang__)
#define ATTEND_UNROLL _Pragma("clang loop unroll(full)")
#define ATTEND_UNROLL_4 _Pragma("clang loop unroll_count(4)")
#else
#define ATTEND_UNROLL _Pragma("GCC unroll 16")
#define ATTEND_UNROLL_4 _Pragma("GCC unroll 4")
#endif

HWY_BEFORE_NAMESPACE();
namespace attend::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using FloatTag = hn::CappedTag<float, 16>;
using Vector = hn::Vec<FloatTag>;
constexpr FloatTag kFloats;
constexpr int kLanes = hn::MaxLanes(kFloats);

constexpr int kRows = 6;
constexpr int kVectors = HWY_TARGET <= HWY_AVX3 ? 4 : 2;  // 32 registers, or 16

/// Computes R rows and V vectors of columns of C, starting at (row, col), over k in [k_begin, k_end).
template <int R, int V>
HWY_INLINE void register_block(const GemmArgs& g, std::int64_t row, std::int64_t col, std::int64_t k_begin,
                               std::int64_t k_end) {
  Vector sum[R][V];
  ATTEND_UNROLL
  for (int r = 0; r < R; ++r) {
    ATTEND_UNROLL
    for (int v = 0; v < V; ++v) sum[r][v] = hn::Zero(kFloats);
  }
  const std::int64_t a_row = g.a.row_stride;
  const std::int64_t a_step = g.a.col_stride;
  const float* HWY_RESTRICT a = g.a.data + row * a_row + k_begin * a_step;
  const float* HWY_RESTRICT b = g.b.data + k_begin * g.b.row_stride + col;
  // The loop has 16 iterations if k is 64, and 32 if k is 128. With so few iterations, the branch predictor also
  // predicts the end of the loop.
  ATTEND_UNROLL_4
  for (std::int64_t p = k_begin; p < k_end; ++p) {
    Vector b_row[V];
    ATTEND_UNROLL
    for (int v = 0; v < V; ++v) b_row[v] = hn::LoadU(kFloats, b + v * kLanes);
    ATTEND_UNROLL
    for (int r = 0; r < R; ++r) {
      const Vector a_value = hn::Set(kFloats, a[r * a_row]);
      ATTEND_UNROLL
      for (int v = 0; v < V; ++v) sum[r][v] = hn::MulAdd(a_value, b_row[v], sum[r][v]);
    }
    a += a_step;
    b += g.b.row_stride;
  }
  float* HWY_RESTRICT c = g.c + row * g.c_stride + col;
  ATTEND_UNROLL
  for (int r = 0; r < R; ++r) {
    float* c_row = c + r * g.c_stride;
    ATTEND_UNROLL
    for (int v = 0; v < V; ++v) {
      float* at = c_row + v * kLanes;
      if (g.mode == GemmMode::kAccumulate) sum[r][v] = hn::Add(sum[r][v], hn::LoadU(kFloats, at));
      if (g.mode == GemmMode::kScaleAccumulate) {
        sum[r][v] = hn::MulAdd(hn::LoadU(kFloats, at), hn::Set(kFloats, g.row_scale[row + r]), sum[r][v]);
      }
      hn::StoreU(sum[r][v], kFloats, at);
    }
  }
}

using BlockFunction = void (*)(const GemmArgs&, std::int64_t, std::int64_t, std::int64_t, std::int64_t);

template <int R, int V>
void block(const GemmArgs& g, std::int64_t row, std::int64_t col, std::int64_t k_begin, std::int64_t k_end) {
  register_block<R, V>(g, row, col, k_begin, k_end);
}

template <int V>
BlockFunction block_of_rows(int rows) {
  constexpr BlockFunction kTable[kRows] = {block<1, V>, block<2, V>, block<3, V>,
                                           block<4, V>, block<5, V>, block<6, V>};
  return kTable[rows - 1];
}

BlockFunction block_of(int rows, int vectors) {
  if (vectors == 1) return block_of_rows<1>(rows);
  if (vectors == 2) return block_of_rows<2>(rows);
#if HWY_TARGET <= HWY_AVX3
  if (vectors == 3) return block_of_rows<3>(rows);
#endif
  return block_of_rows<kVectors>(rows);
}

/// Returns the number of vectors of the next block if `left` vectors remain. This is the maximum number, with one
/// exception: 5 remaining vectors are split into 3 + 2 instead of 4 + 1.
int next_vectors(std::int64_t left) {
  if (left == kVectors + 1 && kVectors > 2) return kVectors - 1;
  return static_cast<int>(std::min<std::int64_t>(left, kVectors));
}

}  // namespace

void gemm(const GemmArgs& g) {
  for (std::int64_t col = 0; col < g.n;) {
    const int chunk = next_vectors((g.n - col) / kLanes) * kLanes;
    for (std::int64_t row = 0; row < g.m;) {
      const int rows = static_cast<int>(std::min<std::int64_t>(kRows, g.m - row));
      std::int64_t first = col;
      std::int64_t last = col + chunk;
      if (g.columns.begin != nullptr) {
        first = std::max<std::int64_t>(first, g.columns.begin[row]);
        last = std::min<std::int64_t>(last, g.columns.end[row + rows - 1]);
      }
      std::int64_t k_begin = 0;
      std::int64_t k_end = g.k;
      if (g.depth.begin != nullptr) {
        k_begin = g.depth.begin[row];
        k_end = std::max<std::int64_t>(k_begin, g.depth.end[row + rows - 1]);
      }
      if (g.mode == GemmMode::kAccumulate && k_begin >= k_end) last = first;  // nothing to add
      if (first < last) block_of(rows, static_cast<int>((last - first) / kLanes))(g, row, first, k_begin, k_end);
      if (g.prefetch != nullptr) g.prefetch->step();
      row += rows;
    }
    col += chunk;
  }
}

}  // namespace attend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attend::cpu {

HWY_EXPORT(gemm);

void tile_gemm(const GemmArgs& args) {
  HWY_DYNAMIC_DISPATCH(gemm)(args);
}

}  // namespace attend::cpu
#endif
