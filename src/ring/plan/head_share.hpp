// Heads dealt out to ranks: who has which rows of which heads, and which tensors change hands.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ring/plan/call.hpp"

namespace attend::ring {

/// One line of an Error that says why heads cannot be dealt out to the ranks, or nothing.
[[nodiscard]] std::optional<std::string> heads_lack(const core::Problem& problem, int num_ranks);

/// Likewise: which tensor of scores an algorithm by heads does not take on a GPU.
[[nodiscard]] std::optional<std::string> scores_lack(const core::Problem& problem, RingAlgorithm algorithm);

/// The ranks that deal heads out to each other: all of them, or with kTwoLevel those of a group, whose rows together
/// are what one rank of as many as there are groups would hold. The members of a group have numbers of their own.
class HeadLayout {
 public:
  explicit HeadLayout(const Call& call) : call_(call), is_group_(call.algorithm == RingAlgorithm::kTwoLevel) {}

  [[nodiscard]] int size() const { return is_group_ ? call_.groups.members : call_.plan.num_ranks(); }
  [[nodiscard]] int mine() const { return is_group_ ? call_.groups.member(call_.plan.rank()) : call_.plan.rank(); }
  [[nodiscard]] int rank(int member) const {
    return is_group_ ? call_.groups.rank_of(call_.group_plan.rank(), member) : member;
  }
  /// Rows, or keys, of a member.
  [[nodiscard]] const std::vector<Run>& runs(bool are_keys, int member) const {
    return are_keys ? call_.plan.keys(rank(member)) : call_.plan.rows(rank(member));
  }
  /// Those of all members, in the order that a run's `placed` tells.
  [[nodiscard]] std::int64_t length(bool are_keys) const;

  struct Place {
    std::int64_t begin, step;  ///< rows of a tensor
  };
  [[nodiscard]] Place placed(bool are_keys, const Run& run) const;

 private:
  const Call& call_;
  bool is_group_;
};

/// A tensor as its rank has it, some rows of all heads, and all rows of this rank's heads.
struct Dealt {
  Tensor rows, heads;
  bool is_of_keys;
};

/// Makes tensors of all rows or keys of this rank's heads.
using MakeTensor = std::function<Tensor(DType, const Shape&)>;

/// The call's problem with this rank's heads, and what of it travels.
struct Share {
  core::Problem problem;
  std::vector<Dealt> in, out;
};

/// @param lse  of the call, in which dtype it is computed; may be null
[[nodiscard]] Share forward_share(const Call& call, const MakeTensor& make, const Tensor& o, const Tensor* lse);
/// @param deltas  as make_host_engine has them; null on a GPU
[[nodiscard]] Share backward_share(const Call& call, const MakeTensor& make, const Tensor* deltas);
/// Of tensors without memory.
[[nodiscard]] Share share_without_memory(const Call& call);

/// A rank's share of the heads of a tensor that has all of them.
[[nodiscard]] Tensor share_of_heads(const Tensor& t, int rank, int num_ranks);

/// Dense problems: one of a single batch entry.
[[nodiscard]] core::Problem batch_entry(const core::Problem& problem, std::int64_t batch);

}  // namespace attend::ring
