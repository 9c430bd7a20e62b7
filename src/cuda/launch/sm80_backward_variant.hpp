// Compile-time facts of sm80_backward's kernels, and the choice of their tiles.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cuda/launch/fields.hpp"
#include "kernels/sm80/sm80_backward_shape.cuh"

namespace attend::cuda {

struct Sm80BackwardVariant : Facts {
  /// 16, 4 or 2: all addresses, strides and row lengths are multiples of this value.
  std::int32_t copy_bytes = 16;
  std::int32_t has_dbias = 0;
  ElementType dbias = ElementType::kF32;
  std::int32_t dbias_over_rows = 0;  ///< whether dbias is a sum over the rows
  Sm80BackwardTile keys = {};
  Sm80BackwardTile queries = {};
  Sm80BackwardTile bias = {};

  /// Sets the type of dbias.
  /// @param over_rows  dbias is a sum over the rows
  void set_dbias(ElementType type, bool over_rows);
  [[nodiscard]] int widest() const { return std::max(head_dim, head_dim_v); }
  /// Returns whether one kernel computes both dk and dv. In this case either both sums fit in registers, or warps of
  /// two roles compute one sum each.
  [[nodiscard]] bool keys_and_values() const { return widest() <= 128 || keys.roles != kSm80General; }
};

/// Config constants, beyond the facts, of a kernel with tiles.
struct Sm80GradientKernel {
  Sm80BackwardTile tile = {};
  Sm80Gradient gradient = Sm80Gradient::kKeysValues;
  std::int32_t sums_bias = 0;  ///< whether the kernel sums dbias over the rows
  std::int32_t copy_bytes = 16;
  std::int32_t has_lse_rounding = 0;
  std::int32_t smem_bytes = 0;

  /// Returns whether the kernel adds to dq. Only a block that computes both dk and dv has all of ds.
  [[nodiscard]] int adds_dq() const { return gradient == Sm80Gradient::kKeysValues ? tile.adds_dq : 0; }
};

inline constexpr Field<Sm80GradientKernel> kSm80GradientFields[] = {
    {nullptr, "kGradient", number<&Sm80GradientKernel::gradient>},
    {nullptr, "kThreads", number<&Sm80GradientKernel::tile, &Sm80BackwardTile::threads>},
    {"warps", "kWarps", number<&Sm80GradientKernel::tile, &Sm80BackwardTile::warps>},
    {"row_groups", "kRowGroups", number<&Sm80GradientKernel::tile, &Sm80BackwardTile::row_groups>},
    {"streamed", "kStreamed", number<&Sm80GradientKernel::tile, &Sm80BackwardTile::streamed>},
    {"step", "kStep", number<&Sm80GradientKernel::tile, &Sm80BackwardTile::step>},
    {"min_blocks", nullptr, unread<&Sm80GradientKernel::tile, &Sm80BackwardTile::min_blocks>},
    {"roles", "kRoles", number<&Sm80GradientKernel::tile, &Sm80BackwardTile::roles>},
    {"parts", "kParts", number<&Sm80GradientKernel::tile, &Sm80BackwardTile::parts>},
    {nullptr, "kSumsDterms", flag<&Sm80GradientKernel::sums_bias>},
    {"adds_dq", nullptr, unread<&Sm80GradientKernel::tile, &Sm80BackwardTile::adds_dq>},
    {nullptr, "kAddsDq", flag<&Sm80GradientKernel::adds_dq>},
    {nullptr, "kCopyBytes", number<&Sm80GradientKernel::copy_bytes>},
    {nullptr, "kHasLseRounding", flag<&Sm80GradientKernel::has_lse_rounding>},
    {nullptr, "kSmemBytes", number<&Sm80GradientKernel::smem_bytes>},
};
static_assert(covers<Sm80GradientKernel>(kSm80GradientFields));

/// Returns the tiles for the facts. Uses one pass if the sum for dq needs no fixed order, otherwise two passes.
/// @param has_dbias  the caller calls set_dbias() afterwards
[[nodiscard]] Sm80BackwardVariant sm80_backward_variant(const Facts& facts, int copy_bytes, int max_smem,
                                                        bool is_deterministic, bool has_dbias = false);

}  // namespace attend::cuda
