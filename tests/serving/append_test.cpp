// Compares attend::append with float64 on a pairwise covering array of its options. Also checks every byte that must
// not change.
#include <gtest/gtest.h>

#include "serving/append_checks.hpp"

namespace attend::test {
namespace {

class Append : public testing::TestWithParam<AppendCase> {};

TEST_P(Append, WritesItsRowsAndNothingElse) {
  check_append(make_append_inputs(GetParam()), [](const AppendInputs& in) { append(in.call()); });
}

INSTANTIATE_TEST_SUITE_P(CoveringArray, Append, testing::ValuesIn(append_cases()),
                         [](const auto& test) { return std::to_string(test.index); });

}  // namespace
}  // namespace attend::test
