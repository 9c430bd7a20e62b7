// A custom score function, and its captures. A capture is a tensor in host memory that the function reads.
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
    bool is_constant = false;  ///< if true, the capture's gradient is not computed
  };

  /// @throws Error if the text or a capture is not valid. The message names the column of the text, or the capture.
  UserScore(const std::string& text, std::vector<Capture> captures);

  [[nodiscard]] const ScoreFunction& function() const { return function_; }

  /// Returns the same function with copies of the captures. `copy` makes a copy, which must be a dense tensor.
  [[nodiscard]] ScoreFunction of_copies(const std::function<Tensor(const io::HostTensor&)>& copy) const;

  /// Returns the captures that have a gradient. These are the captures of floats that are not constant.
  [[nodiscard]] std::vector<const Capture*> learned_captures() const;

 private:
  std::vector<Capture> captures_;
  ScoreFunction function_;
};

/// Returns views of the captures, for the constructor of a score function.
[[nodiscard]] std::vector<ScoreCapture> views_of(const std::vector<UserScore::Capture>& captures);

/// Returns a dense view of an array.
[[nodiscard]] StridedTensor strided_view(const io::HostTensor& tensor, const std::vector<std::int64_t>& shape);

}  // namespace attend::cli
