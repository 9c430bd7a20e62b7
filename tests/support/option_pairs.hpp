// Problems in which every pair of values of every two options appears. A backend must pass them if it claims to support
// every option.
#pragma once

#include <vector>

#include "support/attention_case.hpp"

namespace attend::test {

/// Returns the cases in a fixed order. Slow sanitizer builds set ATTEND_TEST_STRIDE to run only every n-th case.
/// $ATTEND_TEST_SEED changes the random numbers.
[[nodiscard]] const std::vector<AttentionCase>& option_pair_cases();

/// Returns the number of compatible pairs that no case contains if no case is skipped. Must be 0.
[[nodiscard]] int uncovered_option_pairs();

}  // namespace attend::test
