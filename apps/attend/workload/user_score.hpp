// A custom score function, and the tensors in host memory that it reads.
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
    bool is_constant = false;  ///< if true, its gradient is not computed
  };

  /// @throws Error naming the column of the text, or the capture, that is not valid.
  UserScore(const std::string& text, std::vector<Capture> captures);

  [[nodiscard]] const ScoreFunction& function() const { return function_; }

  /// Returns the same function with copies of the captures. `copy` makes the copies, which must have the strides of a
  /// dense tensor.
  [[nodiscard]] ScoreFunction of_copies(const std::function<Tensor(const io::HostTensor&)>& copy) const;

  /// Returns the captures that have a gradient. Their elements are floats, and they are not constant.
  [[nodiscard]] std::vector<const Capture*> learned_captures() const;

 private:
  std::vector<Capture> captures_;
  ScoreFunction function_;
};

/// Returns the captures as the type that score functions accept.
[[nodiscard]] std::vector<ScoreCapture> views_of(const std::vector<UserScore::Capture>& captures);

/// Returns a dense view of an array.
[[nodiscard]] StridedTensor strided_view(const io::HostTensor& tensor, const std::vector<std::int64_t>& shape);

}  // namespace attend::cli
