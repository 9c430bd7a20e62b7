// Distribution of heads over ranks: the rows and heads of each rank, and the tensors that the ranks must exchange.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ring/plan/call.hpp"

namespace attend::ring {

/// Returns the reason why heads cannot be distributed over the ranks, as one line for an Error. Returns nothing if they
/// can.
[[nodiscard]] std::optional<std::string> heads_lack(const core::Problem& problem, int num_ranks);

/// Returns the reason why the algorithm does not support the problem's bias or mask. On a GPU, algorithms that
/// distribute heads support neither. Returns nothing if the problem is supported.
[[nodiscard]] std::optional<std::string> scores_lack(const core::Problem& problem, RingAlgorithm algorithm);

/// Describes the ranks that distribute heads among each other. They are called members. With kTwoLevel, the members are
/// the ranks of one group; otherwise they are all ranks. Members are numbered from 0. Together, the members of a group
/// hold the rows that one rank would hold if each group were a single rank.
class HeadLayout {
 public:
  explicit HeadLayout(const Call& call) : call_(call), is_group_(call.algorithm == RingAlgorithm::kTwoLevel) {}

  [[nodiscard]] int size() const { return is_group_ ? call_.groups.members : call_.plan.num_ranks(); }
  [[nodiscard]] int mine() const { return is_group_ ? call_.groups.member(call_.plan.rank()) : call_.plan.rank(); }
  [[nodiscard]] int rank(int member) const {
    return is_group_ ? call_.groups.rank_of(call_.group_plan.rank(), member) : member;
  }
  /// Returns the runs of rows, or of keys, that a member holds.
  [[nodiscard]] const std::vector<Run>& runs(bool are_keys, int member) const {
    return are_keys ? call_.plan.keys(rank(member)) : call_.plan.rows(rank(member));
  }
  /// Returns the number of rows, or of keys, that all members hold together. placed() states their order.
  [[nodiscard]] std::int64_t length(bool are_keys) const;

  struct Place {
    std::int64_t begin, step;  ///< first row of the run, and distance between its rows
  };
  [[nodiscard]] Place placed(bool are_keys, const Run& run) const;

 private:
  const Call& call_;
  bool is_group_;
};

/// A tensor in two forms. `rows` has some rows of all heads, as the rank's caller passes it. `heads` has all rows of
/// this rank's heads.
struct Dealt {
  Tensor rows, heads;
  bool is_of_keys;
};

/// A function that makes a tensor for all rows or keys of this rank's heads.
using MakeTensor = std::function<Tensor(DType, const Shape&)>;

/// The call's problem, restricted to this rank's heads. The ranks exchange the tensors `in` before they run the
/// problem, and the tensors `out` afterwards.
struct Share {
  core::Problem problem;
  std::vector<Dealt> in, out;
};

/// @param lse  the call's lse, in the dtype in which it is computed; may be null
[[nodiscard]] Share forward_share(const Call& call, const MakeTensor& make, const Tensor& o, const Tensor* lse);
/// @param deltas  the argument `deltas` of make_host_engine(); null on a GPU
[[nodiscard]] Share backward_share(const Call& call, const MakeTensor& make, const Tensor* deltas);
/// Returns the same Share with tensors that have no memory.
[[nodiscard]] Share share_without_memory(const Call& call);

/// Returns the heads of a tensor that belong to a rank. `t` has all heads.
[[nodiscard]] Tensor share_of_heads(const Tensor& t, int rank, int num_ranks);

/// Returns the problem of one batch entry. The problem must be dense (not packed).
[[nodiscard]] core::Problem batch_entry(const core::Problem& problem, std::int64_t batch);

}  // namespace attend::ring
