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

/// Builds the cases greedily. Each case starts from a pair that is not covered yet. Then each remaining factor gets the
/// value that covers the most uncovered pairs. num_values[f] is the number of values of factor f. The same seed always
/// gives the same cases. The cases contain every compatible pair that can be extended to a full case without
/// incompatible pairs.
[[nodiscard]] std::vector<Choice> covering_array(const std::vector<int>& num_values, const Compatible& compatible,
                                                 std::uint64_t seed);

/// Returns the number of compatible pairs that no case contains. 0 means that the cases cover all pairs.
[[nodiscard]] int uncovered_pairs(const std::vector<int>& num_values, const Compatible& compatible,
                                  const std::vector<Choice>& cases);

}  // namespace attend::test
