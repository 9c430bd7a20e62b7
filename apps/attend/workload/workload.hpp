// One attention problem with all its tensors in memory, for run, bench and the check.
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

/// A tensor for each option that takes one, in the order of core::kScoreTensors.
using ScoreTensors = std::array<std::optional<io::HostTensor>, core::kScoreTensors.size()>;

struct Workload {
  AttentionOptions options;

  // Inputs, all (batch, heads, seqlen, head_dim).
  io::HostTensor q, k, v;
  std::optional<io::HostTensor> dout;  // none: ones
  ScoreTensors score_tensors;          // broadcast as Params says
  std::shared_ptr<const UserScore> score;
  std::optional<BlockMask> block_mask;

  // Outputs. Backward also reads o and lse.
  io::HostTensor o, lse, dq, dk, dv;
  ScoreTensors score_gradients;                   // for the tensors above that are given and have a gradient
  std::vector<io::HostTensor> capture_gradients;  // of score->learned_captures(), their shapes padded with ones

  /// Allocates o and lse, poisoned. The shapes of q and v must be valid, but need not agree.
  void allocate_forward();

  /// Allocates dq, dk, dv, score_gradients and capture_gradients, poisoned, and a row of ones if there is no dout.
  void allocate_backward();

  /// Returns the incoming gradient as backward takes it.
  [[nodiscard]] Tensor dout_view() const;

  [[nodiscard]] Params params(std::string_view compute) const;

  /// Call attend::forward and attend::backward. @throws what they throw.
  void forward(std::string_view compute) const;
  void backward(std::string_view compute) const;

  /// Return the checked problem, for the implementations in the check. They need allocate_forward (and _backward).
  [[nodiscard]] core::Problem forward_problem() const;
  [[nodiscard]] core::Problem backward_problem() const;

  /// Returns the same inputs with q, k, v and dout as `dtype` (and the bias too if that is f64), without results.
  [[nodiscard]] Workload inputs_as(DType dtype) const;

  /// (1, 1, 1, head_dim_v): the row that dout_view() repeats if there is no dout.
  [[nodiscard]] const io::HostTensor& ones() const { return ones_; }

 private:
  [[nodiscard]] ForwardCall forward_of(std::string_view compute) const;
  [[nodiscard]] BackwardCall backward_of(std::string_view compute) const;
  io::HostTensor ones_;
};

/// Sets attend::cpu_threads() to `threads`; 0 changes nothing.
void set_threads(std::int64_t threads);

/// Returns the part of all pairs of rows and keys that counts: half if causal, and those inside a window. For a block
/// mask or a mask of bools it is the part that the mask keeps, if that is smaller. Reads the complete mask of bools.
[[nodiscard]] double share_seen(const Workload& w);

/// Returns the floating-point operations by the usual convention: 2 Sq Sk (D + Dv) for each sequence and head in
/// forward, 2.5 times that in backward; multiplied by `seen`, which is share_seen().
[[nodiscard]] double operations(const Workload& w, Mode mode, double seen);

/// Returns the bytes of all inputs and outputs of a call, each counted once: the least that must be transferred.
[[nodiscard]] double traffic(const Workload& w, Mode mode);

}  // namespace attend::cli
