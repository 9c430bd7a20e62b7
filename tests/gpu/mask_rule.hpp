// Checks exhaustively which keys a row sees. Covers every pair of lengths up to kMostMaskKeys and every window, with
// and without a causal mask.
#pragma once

#include <string_view>

#include "attend/tensor.hpp"

namespace attend::test {

constexpr std::int64_t kMostMaskKeys = 9;

/// Checks o, lse and, if the family has a backward, dv for each mask against the definition of the mask.
/// @param head_dim_v  must exceed kMostMaskKeys
void check_every_mask(std::string_view compute, DType dtype, std::int64_t head_dim, std::int64_t head_dim_v);

}  // namespace attend::test
