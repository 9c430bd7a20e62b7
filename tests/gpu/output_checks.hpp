// Compares all outputs of forward and backward with float64.
#pragma once

#include <vector>

#include "support/attention_case.hpp"

namespace attend::test {

/// Compares and prints the largest error and its budget, which is relative to the largest magnitude.
void expect_near(const char* name, const std::vector<double>& got, const std::vector<double>& truth, double budget);
/// Also checks that nothing was written between the elements.
void expect_near(const char* name, const TensorBuffer& got, const TensorBuffer& truth, double budget);

/// Inputs of 512 query rows and 768 keys, with NaN in keys 256 to 511. The mask hides those keys, and hides all keys
/// from rows 256 to 383.
struct UnseenNaN {
  static constexpr const char* kMask = "k // 256 != 1 && q // 128 != 2";
  Inputs poisoned, clean;

  [[nodiscard]] static UnseenNaN of(AttentionCase c);
};
/// Expects equal outputs for poisoned and clean inputs, and the outputs of empty rows in rows that see no key.
void expect_left_out(const Outputs& of_poisoned, const Outputs& of_clean);

/// Prints each largest error and its budget.
/// @param results  budget of o relative to its largest magnitude; gradients have four times this budget
/// @param lse      budget of lse relative to its largest magnitude
void expect_outputs_near(const Outputs& got, const Outputs& truth, double results, double lse);

}  // namespace attend::test
