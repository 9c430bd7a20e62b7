// Compares all outputs of forward and backward with float64.
#pragma once

#include <vector>

#include "support/attention_case.hpp"

namespace attend::test {

/// Compares two arrays and prints the largest error and its budget. The budget is relative to the largest magnitude in
/// `truth`.
void expect_near(const char* name, const std::vector<double>& got, const std::vector<double>& truth, double budget);
/// Compares two tensors. Also checks that nothing was written between the elements of `got`.
void expect_near(const char* name, const TensorBuffer& got, const TensorBuffer& truth, double budget);

/// Inputs with 512 query rows and 768 keys. Keys 256 to 511 are NaN. The mask hides these keys, and hides all keys from
/// rows 256 to 383.
struct UnseenNaN {
  static constexpr const char* kMask = "k // 256 != 1 && q // 128 != 2";
  Inputs poisoned, clean;

  [[nodiscard]] static UnseenNaN of(AttentionCase c);
};
/// Expects equal outputs for poisoned and clean inputs. In rows that see no key, expects the outputs of empty rows.
void expect_left_out(const Outputs& of_poisoned, const Outputs& of_clean);

/// Compares all outputs. Prints the largest error and the error budget of each output.
/// @param results  budget of o, relative to its largest magnitude; gradients get four times this budget
/// @param lse      budget of lse, relative to its largest magnitude
void expect_outputs_near(const Outputs& got, const Outputs& truth, double results, double lse);

}  // namespace attend::test
