// The compile-time parameters of the kernels of sm80_backward, and the choice of their tiles.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cuda/launch/fields.hpp"
#include "kernels/sm80/sm80_backward_shape.cuh"

namespace attend::cuda {

struct Sm80BackwardVariant : Facts {
  /// 16, 4 or 2. All addresses, strides and row lengths are multiples of this number of bytes.
  std::int32_t copy_bytes = 16;
  std::int32_t has_dbias = 0;
  ElementType dbias = ElementType::kF32;
  std::int32_t dbias_over_rows = 0;  ///< whether dbias is a sum over the query rows
  Sm80BackwardTile keys = {};
  Sm80BackwardTile queries = {};
  Sm80BackwardTile bias = {};

  /// Sets the dtype of dbias, and the tile of the kernel that computes dbias.
  /// @param over_rows  whether dbias is a sum over the query rows
  void set_dbias(ElementType type, bool over_rows);
  [[nodiscard]] int widest() const { return std::max(head_dim, head_dim_v); }
  /// Returns whether one kernel computes both dk and dv. It does if the registers of a warp have room for both
  /// accumulators, or if some warps compute dk and the other warps compute dv.
  [[nodiscard]] bool keys_and_values() const { return widest() <= 128 || keys.roles != kSm80General; }
};

/// The parameters of one kernel with tensor core tiles, in addition to those in Facts. They are constants of its
/// Config.
struct Sm80GradientKernel {
  Sm80BackwardTile tile = {};
  Sm80Gradient gradient = Sm80Gradient::kKeysValues;
  std::int32_t sums_bias = 0;  ///< whether the kernel sums dbias over the query rows
  std::int32_t copy_bytes = 16;
  std::int32_t has_lse_rounding = 0;
  std::int32_t smem_bytes = 0;

  /// Returns whether the kernel adds to dq in memory. This requires a block that computes both dk and dv, because only
  /// that block computes all of ds.
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

/// Returns the variant with its tiles. If the additions to dq need no fixed order, one kernel computes all gradients in
/// one pass over the scores. Otherwise the backward pass computes the scores twice.
/// @param has_dbias  whether the caller calls set_dbias() afterwards
[[nodiscard]] Sm80BackwardVariant sm80_backward_variant(const Facts& facts, int copy_bytes, int max_smem,
                                                        bool is_deterministic, bool has_dbias = false);

}  // namespace attend::cuda
