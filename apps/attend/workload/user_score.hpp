// A score function of the user's with the tensors that it reads, in memory.
#pragma once

#include <string>
#include <vector>

#include "attend/score_function.hpp"
#include "io/npy.hpp"

namespace attend::cli {

class UserScore {
 public:
  struct Capture {
    std::string name;
    io::NpyArray array;
  };

  /// @throws Error as ScoreFunction does.
  UserScore(const std::string& text, std::vector<Capture> captures);

  [[nodiscard]] const ScoreFunction& function() const { return function_; }

  /// Those that have a gradient: captures of floats.
  [[nodiscard]] std::vector<const Capture*> captures_of_floats() const;

 private:
  std::vector<Capture> captures_;
  ScoreFunction function_;
};

/// A dense view of an array.
[[nodiscard]] StridedTensor strided_view(const io::HostTensor& tensor, const std::vector<std::int64_t>& shape);

}  // namespace attend::cli
