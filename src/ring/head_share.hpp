// Heads dealt out to ranks: who has which rows of which heads, and the messages by which tensors change hands.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "ring/engine.hpp"

namespace attend::ring {

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

/// The two ways between them.
class HeadExchange {
 public:
  /// @param in   from rows to heads
  /// @param out  from heads to rows
  HeadExchange(Engine& engine, HeadLayout layout, std::vector<Dealt> in, std::vector<Dealt> out);

  void to_heads();
  void to_rows();

 private:
  enum Way : std::size_t { kSendInputs, kReceiveInputs, kSendResults, kReceiveResults };

  [[nodiscard]] const Parcel& parcel(Way way, int peer) const {
    return parcels_[way * static_cast<std::size_t>(layout_.size()) + static_cast<std::size_t>(peer)];
  }
  template <class Visit>
  void for_each_parcel(const std::vector<Dealt>& all, Way way, Visit visit) const;
  template <class Visit>
  void for_each_run(const Dealt& d, int member, Visit visit) const;
  void exchange(Way sent, Way received);

  Engine& engine_;
  HeadLayout layout_;
  std::vector<Dealt> in_, out_;
  std::vector<Parcel> parcels_;
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

/// Dense problems: one of a single batch entry.
[[nodiscard]] core::Problem batch_entry(const core::Problem& problem, std::int64_t batch);

}  // namespace attend::ring
