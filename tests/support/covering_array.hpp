// Pairwise covering arrays: few cases in which every pair of values of every two factors appears.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace attend::test {

/// One case: the index of the chosen value for each factor.
using Choice = std::vector<int>;

/// True if two values can be in one case. Asked with first_factor < second_factor.
using Compatible = std::function<bool(int first_factor, int first_value, int second_factor, int second_value)>;

/// Greedy construction: every case starts from a pair not yet seen and takes, factor by factor, the value that adds
/// most new pairs. num_values[f] is the number of values of factor f. Deterministic for a seed. Every compatible pair
/// that can be completed to a case without incompatible pairs appears in the result.
[[nodiscard]] std::vector<Choice> covering_array(const std::vector<int>& num_values, const Compatible& compatible,
                                                 std::uint64_t seed);

/// Number of compatible pairs that no case holds.
[[nodiscard]] int uncovered_pairs(const std::vector<int>& num_values, const Compatible& compatible,
                                  const std::vector<Choice>& cases);

}  // namespace attend::test
