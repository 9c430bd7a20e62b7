// The covering array of attend::append, and a comparison of one of its cases with float64, on any machine.
#pragma once

#include <functional>
#include <vector>

#include "serving/append_case.hpp"

namespace attend::test {

/// Every pair of options that go together.
[[nodiscard]] std::vector<AppendCase> append_cases();

/// Has `run` run the call of `in`, and compares every row that it is to write, and every byte that it is not.
void check_append(const AppendInputs& in, const std::function<void(const AppendInputs&)>& run);

}  // namespace attend::test
