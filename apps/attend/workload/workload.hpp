// One attention problem with all its tensors in host memory, for run, bench and the check.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/problem.hpp"
#include "core/score_options.hpp"
#include "io/host_tensor.hpp"
#include "options/options.hpp"
#include "workload/user_score.hpp"

namespace attend::cli {

/// The tensors of options such as bias, in the order of core::kScoreTensors. An element is unset if the option is not
/// used.
using ScoreTensors = std::array<std::optional<io::HostTensor>, core::kScoreTensors.size()>;

struct Workload {
  AttentionOptions options;

  // Inputs. The shape is (batch, heads, seqlen, head_dim).
  io::HostTensor q, k, v;
  std::optional<io::HostTensor> dout;  // if unset, all elements are 1
  ScoreTensors score_tensors;          // dimensions can be broadcast as in Params
  std::shared_ptr<const UserScore> score;
  std::optional<BlockMask> block_mask;

  // Outputs. Backward also reads o and lse.
  io::HostTensor o, lse, dq, dk, dv;
  ScoreTensors score_gradients;  // gradients of score_tensors, for the tensors that have one
  // Gradients of score->learned_captures(). If a capture has fewer than four dimensions, dimensions of size 1 are
  // added.
  std::vector<io::HostTensor> capture_gradients;

  /// Allocates o and lse and fills them with poison. q and v must have valid shapes, which may contradict each other.
  void allocate_forward();

  /// Allocates dq, dk, dv, score_gradients and capture_gradients and fills them with poison. If dout is unset, also
  /// allocates the row of ones that dout_view() repeats.
  void allocate_backward();

  /// Returns the gradient of o in the form that backward accepts.
  [[nodiscard]] Tensor dout_view() const;

  [[nodiscard]] Params params(std::string_view compute) const;

  /// Call attend::forward and attend::backward. @throws the Error that they throw.
  void forward(std::string_view compute) const;
  void backward(std::string_view compute) const;

  /// Return the validated problem of a pass. allocate_forward() or allocate_backward() must have been called before.
  [[nodiscard]] core::Problem forward_problem() const;
  [[nodiscard]] core::Problem backward_problem() const;

  /// Returns a workload with the same inputs but without results. q, k, v and dout are converted to `dtype`. If `dtype`
  /// is f64, the bias is also converted.
  [[nodiscard]] Workload inputs_as(DType dtype) const;

  /// Returns the row that dout_view() repeats if there is no dout: (1, 1, 1, head_dim_v).
  [[nodiscard]] const io::HostTensor& ones() const { return ones_; }

 private:
  [[nodiscard]] ForwardCall forward_of(std::string_view compute) const;
  [[nodiscard]] BackwardCall backward_of(std::string_view compute) const;
  io::HostTensor ones_;
};

/// Sets the number of threads of the CPU backend. 0 keeps the current number.
void set_threads(std::int64_t threads);

/// Returns the fraction of all pairs of rows and keys that operations() counts. For a causal mask, the fraction is one
/// half. For a window, it is the fraction of the pairs inside the window. For a block mask or a mask of bools, it is
/// the fraction of visible pairs. If several masks are combined, the smallest fraction is returned. Reads all elements
/// of a mask of bools.
[[nodiscard]] double share_seen(const Workload& w);

/// Returns the number of floating-point operations by the usual convention: 2 Sq Sk (D + Dv) for each sequence and head
/// in forward, and 2.5 times that in backward. The number is multiplied by `seen`, the result of share_seen().
[[nodiscard]] double operations(const Workload& w, Mode mode, double seen);

/// Returns the size in bytes of all inputs and outputs of a call, each counted once. A call must transfer at least this
/// number of bytes.
[[nodiscard]] double traffic(const Workload& w, Mode mode);

}  // namespace attend::cli
