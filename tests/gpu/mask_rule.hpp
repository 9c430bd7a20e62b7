// Which keys a row sees, exhaustively: every pair of lengths up to kMostMaskKeys, every window, causal or not.
#pragma once

#include <string_view>

#include "attend/tensor.hpp"

namespace attend::test {

constexpr std::int64_t kMostMaskKeys = 9;

/// o, lse and, where the family has a backward, dv of each mask against the rule.
/// @param head_dim_v  more than kMostMaskKeys
void check_every_mask(std::string_view compute, DType dtype, std::int64_t head_dim, std::int64_t head_dim_v);

}  // namespace attend::test
