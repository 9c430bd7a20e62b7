// Pairwise covering arrays: a small set of cases that contains every pair of values of every two factors.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace attend::test {

/// One case: the index of the chosen value of each factor.
using Choice = std::vector<int>;

/// Returns true if one case can contain both values. Callers pass first_factor < second_factor.
using Compatible = std::function<bool(int first_factor, int first_value, int second_factor, int second_value)>;

/// Builds the cases greedily. Every case starts from a pair not yet covered. Then it takes, factor by factor, the value
/// that adds most new pairs. num_values[f] is the number of values of factor f. The result is deterministic for a seed.
/// It contains every compatible pair that can be completed to a case without incompatible pairs.
[[nodiscard]] std::vector<Choice> covering_array(const std::vector<int>& num_values, const Compatible& compatible,
                                                 std::uint64_t seed);

/// Returns the number of compatible pairs that no case contains.
[[nodiscard]] int uncovered_pairs(const std::vector<int>& num_values, const Compatible& compatible,
                                  const std::vector<Choice>& cases);

}  // namespace attend::test
