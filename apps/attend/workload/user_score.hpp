// A score function of the user's with the tensors that it reads, in memory.
#pragma once

#include <functional>
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
    bool is_constant = false;  ///< nobody asks for its gradient
  };

  /// @throws Error as ScoreFunction does.
  UserScore(const std::string& text, std::vector<Capture> captures);

  [[nodiscard]] const ScoreFunction& function() const { return function_; }

  /// The same function of copies of the captures, which `copy` makes, each as dense as it is.
  [[nodiscard]] ScoreFunction of_copies(const std::function<Tensor(const io::HostTensor&)>& copy) const;

  /// Those that have a gradient: captures of floats that are no constants.
  [[nodiscard]] std::vector<const Capture*> learned_captures() const;

 private:
  std::vector<Capture> captures_;
  ScoreFunction function_;
};

/// As functions take them.
[[nodiscard]] std::vector<ScoreCapture> views_of(const std::vector<UserScore::Capture>& captures);

/// A dense view of an array.
[[nodiscard]] StridedTensor strided_view(const io::HostTensor& tensor, const std::vector<std::int64_t>& shape);

}  // namespace attend::cli
