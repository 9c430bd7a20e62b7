// What the tests on a GPU share.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "attend/tensor.hpp"
#include "cuda/launch/rung.hpp"
#include "support/attention_case.hpp"

namespace attend::test {

/// Why there is no GPU to test on; empty where there is one.
[[nodiscard]] const std::string& missing_gpu();

/// Skips every test of the binary where there is no GPU, and gives TensorBuffers memory that host and GPU both see.
class GpuTest : public testing::Test {
 protected:
  void SetUp() override;
};

/// Does the rung support the case, on this GPU? Asks the library itself.
[[nodiscard]] bool supports(const cuda::Rung& rung, const Inputs& in);

/// Compares a rung with the reference (compare_with_reference), prints a line, and keeps it for the report.
void check_rung(const cuda::Rung& rung, const Inputs& in);

}  // namespace attend::test
