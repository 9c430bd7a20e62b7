// Generates random texts of score and mask functions, and the tensors that these texts read.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "expr/evaluate.hpp"
#include "expr/graph.hpp"

namespace attend::test {

/// Returns the captures that random texts may read: table float [4][16], bias float [8], cap float, doc int [32], flags
/// bool [5][3][2][2].
[[nodiscard]] std::vector<expr::Capture> some_captures();

/// Returns an element of some_captures(). The element is computed from its position, so no tensor is stored.
[[nodiscard]] double element_of_capture(std::int32_t capture, std::span<const std::int64_t> subscripts);

/// Returns a random point within the ranges that the random texts assume.
[[nodiscard]] expr::Point random_point(std::mt19937_64& generator);

class RandomText {
 public:
  /// @param is_mask whether the text is a mask, which does not read `score`
  RandomText(std::uint64_t seed, bool is_mask) : generator_(seed), is_mask_(is_mask) {}

  [[nodiscard]] std::string of_float(int depth);
  [[nodiscard]] std::string of_int(int depth);
  [[nodiscard]] std::string of_bool(int depth);

 private:
  int draw(int count) { return static_cast<int>(generator_() % static_cast<unsigned>(count)); }

  std::mt19937_64 generator_;
  bool is_mask_;
};

}  // namespace attend::test
