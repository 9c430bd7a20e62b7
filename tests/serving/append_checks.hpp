// The covering array of options of attend::append, and a comparison of its cases with float64. Works on any device.
#pragma once

#include <functional>
#include <vector>

#include "serving/append_case.hpp"

namespace attend::test {

/// Returns cases that contain every compatible pair of option values.
[[nodiscard]] std::vector<AppendCase> append_cases();

/// Runs the call of `in` with `run`. Compares every row that the call must write with float64, and checks that no other
/// byte changed.
void check_append(const AppendInputs& in, const std::function<void(const AppendInputs&)>& run);

}  // namespace attend::test
