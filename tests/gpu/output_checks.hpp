// All that a forward and a backward pass give, against the same in float64.
#pragma once

#include <vector>

#include "support/attention_case.hpp"

namespace attend::test {

/// Prints the largest error and its budget, which is relative to the largest magnitude.
void expect_near(const char* name, const std::vector<double>& got, const std::vector<double>& truth, double budget);
/// The same, and that nothing was written between the elements.
void expect_near(const char* name, const TensorBuffer& got, const TensorBuffer& truth, double budget);

/// Inputs of 512 rows and 768 keys, with NaN in keys 256 to 511, for a mask that leaves out those and rows 256 to 383.
struct UnseenNaN {
  static constexpr const char* kMask = "k // 256 != 1 && q // 128 != 2";
  Inputs poisoned, clean;

  [[nodiscard]] static UnseenNaN of(AttentionCase c);
};
/// Of the poisoned and of the clean ones: that NaN has gone nowhere, and that rows which see nothing say so.
void expect_left_out(const Outputs& of_poisoned, const Outputs& of_clean);

/// Prints each largest error and its budget.
/// @param results  budget of o, relative to its largest magnitude; of gradients four times as much
/// @param lse      of lse, likewise
void expect_outputs_near(const Outputs& got, const Outputs& truth, double results, double lse);

}  // namespace attend::test
