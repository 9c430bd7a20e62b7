// Problems in which every pair of values of every two options appears: what a backend that claims every option has to
// pass.
#pragma once

#include <vector>

#include "support/attention_case.hpp"

namespace attend::test {

/// The cases, in a fixed order; under slow sanitizers every ATTEND_TEST_STRIDE-th. $ATTEND_TEST_SEED changes the
/// numbers.
[[nodiscard]] const std::vector<AttentionCase>& option_pair_cases();

/// Number of compatible pairs that none of the cases (without a stride) holds: 0.
[[nodiscard]] int uncovered_option_pairs();

}  // namespace attend::test
