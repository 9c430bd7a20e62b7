// Problems in which every pair of values of every two options appears. A backend that claims every option must pass
// them.
#pragma once

#include <vector>

#include "support/attention_case.hpp"

namespace attend::test {

/// Returns the cases in a fixed order. Slow sanitizer builds keep every ATTEND_TEST_STRIDE-th case. $ATTEND_TEST_SEED
/// changes the random numbers.
[[nodiscard]] const std::vector<AttentionCase>& option_pair_cases();

/// Returns the number of compatible pairs that no case contains (at stride 1). Must be 0.
[[nodiscard]] int uncovered_option_pairs();

}  // namespace attend::test
