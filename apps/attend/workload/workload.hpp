// One attention problem with all its tensors in memory: what run and bench compute, and what the check looks at.
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

/// A tensor for each option that is one, in the order of core::kScoreTensors.
using ScoreTensors = std::array<std::optional<io::HostTensor>, core::kScoreTensors.size()>;

struct Workload {
  AttentionOptions options;

  // In. All (batch, heads, seqlen, head_dim).
  io::HostTensor q, k, v;
  std::optional<io::HostTensor> dout;  // none: ones
  ScoreTensors score_tensors;          // broadcast as Params says
  std::shared_ptr<const UserScore> score;
  std::optional<BlockMask> block_mask;

  // Out. Backward also reads o and lse.
  io::HostTensor o, lse, dq, dk, dv;
  ScoreTensors score_gradients;                   // of the tensors above that are given and have one
  std::vector<io::HostTensor> capture_gradients;  // of score->learned_captures(), with ones behind their sizes

  /// Allocates o and lse, poisoned. The shapes of q and v have to be sound enough to multiply, not to agree.
  void allocate_forward();

  /// Allocates dq, dk, dv, score_gradients and capture_gradients, poisoned, and the row of ones where there is no dout.
  void allocate_backward();

  /// The incoming gradient as backward takes it.
  [[nodiscard]] Tensor dout_view() const;

  [[nodiscard]] Params params(std::string_view compute) const;

  /// attend::forward and attend::backward. @throws what they throw.
  void forward(std::string_view compute) const;
  void backward(std::string_view compute) const;

  /// The checked problem, for the implementations of the check. Needs allocate_forward (and _backward).
  [[nodiscard]] core::Problem forward_problem() const;
  [[nodiscard]] core::Problem backward_problem() const;

  /// The same inputs with q, k, v and dout as `dtype` (and the bias, where that is f64), without results.
  [[nodiscard]] Workload inputs_as(DType dtype) const;

  /// (1, 1, 1, head_dim_v): what dout_view() shows in every row where there is no dout.
  [[nodiscard]] const io::HostTensor& ones() const { return ones_; }

 private:
  [[nodiscard]] ForwardCall forward_of(std::string_view compute) const;
  [[nodiscard]] BackwardCall backward_of(std::string_view compute) const;
  io::HostTensor ones_;
};

/// Makes attend::cpu_threads() return `threads`; 0 leaves it alone.
void set_threads(std::int64_t threads);

/// Part of all pairs of rows and keys that counts: half when causal, those inside of a window, and of a block mask or a
/// mask of bools those that it sees, if that is less. Reads a whole mask of bools.
[[nodiscard]] double share_seen(const Workload& w);

/// Floating-point operations by the usual convention: 2 Sq Sk (D + Dv) for each sequence and head forward, 2.5 times as
/// many backward; of these the part `seen`, which is share_seen().
[[nodiscard]] double operations(const Workload& w, Mode mode, double seen);

/// Bytes of all inputs and outputs of a call, each counted once: the least that has to move.
[[nodiscard]] double traffic(const Workload& w, Mode mode);

}  // namespace attend::cli
