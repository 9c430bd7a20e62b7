// Checks that NaN and infinities reach exactly the results that depend on them, and that masked or padded elements are
// never read.
#include <gtest/gtest.h>

#include <tuple>

#include "support/nonfinite_checks.hpp"

namespace attend::test {
namespace {

struct Backend {
  const char* compute;
  DType dtype;
};

void PrintTo(const Backend& backend, std::ostream* out) {
  *out << backend.compute << " " << dtype_name(backend.dtype);
}

class NonFinite : public testing::TestWithParam<std::tuple<NonFiniteCheck, Backend>> {};

TEST_P(NonFinite, GoesWhereItHasTo) {
  const auto& [check, backend] = GetParam();
  if (check.against_reference && std::string(backend.compute) == "reference") return;
  check.check(backend.compute, backend.dtype);
}

INSTANTIATE_TEST_SUITE_P(Backends, NonFinite,
                         testing::Combine(testing::ValuesIn(nonfinite_checks()),
                                          testing::Values(Backend{"cpu", DType::kF32}, Backend{"cpu", DType::kF16},
                                                          Backend{"cpu", DType::kBF16},
                                                          Backend{"reference", DType::kF32})),
                         [](const auto& test) {
                           const NonFiniteCheck& check = std::get<0>(test.param);
                           const Backend& backend = std::get<1>(test.param);
                           return std::string(check.name) + "_" + backend.compute + "_" + dtype_name(backend.dtype);
                         });

}  // namespace
}  // namespace attend::test
