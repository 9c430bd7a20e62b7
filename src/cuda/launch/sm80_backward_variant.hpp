// What sm80_backward's kernels are compiled for, and which tiles they take for which facts.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cuda/launch/fields.hpp"
#include "kernels/sm80/sm80_backward_shape.cuh"

namespace attend::cuda {

struct Sm80BackwardVariant : Facts {
  std::int32_t copy_bytes = 16;  ///< all addresses, strides and row lengths are multiples of it: 16, 4 or 2
  std::int32_t has_dbias = 0;
  ElementType dbias = ElementType::kF32;
  std::int32_t dbias_over_rows = 0;  ///< it is a sum over the rows
  Sm80BackwardTile keys = {};
  Sm80BackwardTile queries = {};
  Sm80BackwardTile bias = {};

  /// With a dbias of that type. @param over_rows  it is a sum over the rows
  void set_dbias(ElementType type, bool over_rows);
  [[nodiscard]] int widest() const { return std::max(head_dim, head_dim_v); }
  /// dk and dv in one kernel: their sums fit into registers side by side, or warps of two roles have one each.
  [[nodiscard]] bool keys_and_values() const { return widest() <= 128 || keys.roles != kSm80General; }
};

/// All that the Config of one kernel with tiles says beyond the facts.
struct Sm80GradientKernel {
  Sm80BackwardTile tile = {};
  Sm80Gradient gradient = Sm80Gradient::kKeysValues;
  std::int32_t sums_bias = 0;  ///< the gradient of a bias that is a sum over the rows
  std::int32_t copy_bytes = 16;
  std::int32_t has_lse_rounding = 0;
  std::int32_t smem_bytes = 0;

  /// Only a block that makes dk and dv has all of ds.
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

/// The tiles for the facts: in one pass if dq may be added up in no fixed order, otherwise in two.
/// @param has_dbias  set_dbias() follows
[[nodiscard]] Sm80BackwardVariant sm80_backward_variant(const Facts& facts, int copy_bytes, int max_smem,
                                                        bool is_deterministic, bool has_dbias = false);

}  // namespace attend::cuda
