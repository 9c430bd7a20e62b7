// All that a forward and a backward pass give, against the same in float64.
#pragma once

#include "support/attention_case.hpp"

namespace attend::test {

/// Prints each largest error and its budget.
/// @param results  budget of o, relative to its largest magnitude; of gradients four times as much
/// @param lse      of lse, likewise
void expect_outputs_near(const Outputs& got, const Outputs& truth, double results, double lse);

}  // namespace attend::test
