// Exhaustive check of which keys a row sees: every pair of lengths up to kMostMaskKeys, every window, causal or not.
#pragma once

#include <string_view>

#include "attend/tensor.hpp"

namespace attend::test {

constexpr std::int64_t kMostMaskKeys = 9;

/// Checks o, lse and, if the family has a backward, dv of each mask against the definition.
/// @param head_dim_v  must exceed kMostMaskKeys
void check_every_mask(std::string_view compute, DType dtype, std::int64_t head_dim, std::int64_t head_dim_v);

}  // namespace attend::test
