// Distribution of heads over ranks: the rows and heads of each rank, and the tensors that must be exchanged.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ring/plan/call.hpp"

namespace attend::ring {

/// Returns the reason, in one line of an Error, why heads cannot be distributed over the ranks, if there is one.
[[nodiscard]] std::optional<std::string> heads_lack(const core::Problem& problem, int num_ranks);

/// Returns the reason why an algorithm by heads does not support a tensor of scores on a GPU, if there is one.
[[nodiscard]] std::optional<std::string> scores_lack(const core::Problem& problem, RingAlgorithm algorithm);

/// The ranks that distribute heads among each other: all ranks, or with kTwoLevel those of a group. Members of a group
/// have separate numbers. Together, the rows of a group are the rows that one rank would hold if there were as many
/// ranks as groups.
class HeadLayout {
 public:
  explicit HeadLayout(const Call& call) : call_(call), is_group_(call.algorithm == RingAlgorithm::kTwoLevel) {}

  [[nodiscard]] int size() const { return is_group_ ? call_.groups.members : call_.plan.num_ranks(); }
  [[nodiscard]] int mine() const { return is_group_ ? call_.groups.member(call_.plan.rank()) : call_.plan.rank(); }
  [[nodiscard]] int rank(int member) const {
    return is_group_ ? call_.groups.rank_of(call_.group_plan.rank(), member) : member;
  }
  /// Returns the rows, or keys, of a member.
  [[nodiscard]] const std::vector<Run>& runs(bool are_keys, int member) const {
    return are_keys ? call_.plan.keys(rank(member)) : call_.plan.rows(rank(member));
  }
  /// Returns the number of rows or keys of all members, in the order of `placed`.
  [[nodiscard]] std::int64_t length(bool are_keys) const;

  struct Place {
    std::int64_t begin, step;  ///< rows of a tensor
  };
  [[nodiscard]] Place placed(bool are_keys, const Run& run) const;

 private:
  const Call& call_;
  bool is_group_;
};

/// A tensor in two forms: some rows of all heads, as its rank has it, and all rows of this rank's heads.
struct Dealt {
  Tensor rows, heads;
  bool is_of_keys;
};

/// Makes tensors for all rows or keys of this rank's heads.
using MakeTensor = std::function<Tensor(DType, const Shape&)>;

/// The call's problem with this rank's heads, and the tensors that are exchanged.
struct Share {
  core::Problem problem;
  std::vector<Dealt> in, out;
};

/// @param lse  of the call, and in the dtype in which it is computed; may be null
[[nodiscard]] Share forward_share(const Call& call, const MakeTensor& make, const Tensor& o, const Tensor* lse);
/// @param deltas  as in make_host_engine; null on a GPU
[[nodiscard]] Share backward_share(const Call& call, const MakeTensor& make, const Tensor* deltas);
/// Makes the share with tensors without memory.
[[nodiscard]] Share share_without_memory(const Call& call);

/// Returns a rank's share of the heads of a tensor that has all heads.
[[nodiscard]] Tensor share_of_heads(const Tensor& t, int rank, int num_ranks);

/// Returns the problem of a single batch entry, for dense (unpacked) problems.
[[nodiscard]] core::Problem batch_entry(const core::Problem& problem, std::int64_t batch);

}  // namespace attend::ring
