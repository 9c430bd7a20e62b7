// A Plan is the schedule of a ring: it determines which rank computes which products in which step. The plan depends
// only on the call, so every rank makes the same plan without communication.
//
// In step t, rank r holds the keys that rank (r - t) mod N owns, where N is the number of ranks. A block of keys
// travels on as long as a later rank sees some of its keys. A rank splits the visible part of a block into pieces. A
// piece is one run of rows and one run of keys.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/problem.hpp"
#include "ring/plan/sharding.hpp"

namespace attend::ring {

/// A run of this rank's rows and a run of keys in a block. Both runs have the same step. Under causal and window masks,
/// each of these rows sees at least one of the keys, and each key is seen by at least one of the rows.
///
/// If only masks depend on positions, two pieces may be joined although their runs are adjacent only in memory and not
/// in the sequence. Two runs of rows are joined if all their rows see all keys of the same run. Two runs of keys are
/// joined if the rows see all keys of the first run. Positions in a joined piece are counted from its first rows and
/// from its last keys. Under a causal mask, all rows of a rank and its own keys form one piece, as if they were
/// contiguous in their sequence.
struct Piece {
  Run rows;
  Run keys;
  core::Placement placement;
};

/// The pieces with a rank's own keys, split into two halves. A backward pass on GPUs uses the halves. `first` runs
/// before the pieces with other ranks' keys, while the first keys are transferred. `last` runs after those pieces,
/// while the gradients of this rank's keys return.
struct OwnPieces {
  std::vector<Piece> first, last;
};

/// Returns whether only causal and window masks depend on the positions of rows and keys. Returns false with ALiBi,
/// dropout, or a bias or mask tensor that has a column for each key.
[[nodiscard]] bool only_masks_ask_for_positions(const core::Problem& problem);

/// Groups of ranks of equal size. There are `count` groups of `members` ranks. A group holds the rows that one rank
/// would hold if there were `count` ranks. The ranks of a group are neighbours. If tokens are striped, a group instead
/// consists of every count-th rank.
struct Groups {
  int members = 1, count = 1;
  bool strided = false;

  [[nodiscard]] int group(int rank) const { return strided ? rank % count : rank / members; }
  [[nodiscard]] int member(int rank) const { return strided ? rank / count : rank % members; }
  [[nodiscard]] int rank_of(int group, int member) const {
    return strided ? member * count + group : group * members + member;
  }
};

class Plan {
 public:
  Plan() = default;  ///< a plan without ranks

  /// @param problem  the rank's problem, which was made with the lengths `whole`
  Plan(const core::Problem& problem, const core::WholeLengths& whole, Sharding sharding, int rank, int num_ranks);

  /// Returns the plan of the same problem in which each group acts as one rank.
  [[nodiscard]] Plan of_groups(const Groups& groups) const;

  [[nodiscard]] Sharding sharding() const { return sharding_; }
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int num_ranks() const { return num_ranks_; }
  [[nodiscard]] int next() const { return (rank_ + 1) % num_ranks_; }
  [[nodiscard]] int previous() const { return (rank_ + num_ranks_ - 1) % num_ranks_; }

  /// Returns the owner of the keys that this rank holds in a step. The result is meaningful only if holds(step).
  [[nodiscard]] int owner(int step) const { return (rank_ + num_ranks_ - step % num_ranks_) % num_ranks_; }

  /// Returns the last step in which a rank sees the owner's keys. In step t, rank (owner + t) mod N holds them.
  [[nodiscard]] int last_step(int owner) const { return last_steps_[static_cast<std::size_t>(owner)]; }

  /// Return whether this rank holds keys in the step, and whether it sends them on at the beginning of the step.
  [[nodiscard]] bool holds(int step) const { return step < num_ranks_ && step <= last_step(owner(step)); }
  [[nodiscard]] bool sends(int step) const { return step < last_step(owner(step)); }

  /// Return the number of rows of k and v that `owner` holds, and the number of rows of q that this rank holds.
  [[nodiscard]] std::int64_t num_keys(int owner) const;
  [[nodiscard]] std::int64_t num_rows_q() const;

  /// Returns pieces(rank, rank) in two halves. If there is only one piece, its rows are split.
  [[nodiscard]] OwnPieces own_pieces(int rank) const;

  /// Return the pieces that this rank, or rank `rank`, computes with the owner's keys.
  [[nodiscard]] std::vector<Piece> pieces(int owner) const { return pieces(rank_, owner); }
  [[nodiscard]] std::vector<Piece> pieces(int rank, int owner) const;
  [[nodiscard]] bool sees(int rank, int owner) const { return !pieces(rank, owner).empty(); }

  /// Return the runs of rows and keys of a rank. Run::local_begin is the place in the rank's tensors, and Run::position
  /// is the place in the sequence.
  [[nodiscard]] const std::vector<Run>& rows(int rank) const { return rows_by_rank_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] const std::vector<Run>& keys(int rank) const { return keys_by_rank_[static_cast<std::size_t>(rank)]; }

  /// Return the offset of each sequence in the complete tensor of all ranks.
  [[nodiscard]] const std::vector<std::int64_t>& offsets_q() const { return offsets_q_; }
  [[nodiscard]] const std::vector<std::int64_t>& offsets_k() const { return offsets_k_; }

  /// Returns the runs of an owner's keys in a tensor that has the keys of all ranks. Run::local_begin is the place in
  /// that tensor. The tensor has the keys in sequence order, so that the keys of a row are contiguous. If tokens are
  /// striped, the tensor is instead ordered by owner, because the rows and keys of a piece must have the same step.
  [[nodiscard]] std::vector<Run> gathered_keys(int owner) const;
  /// Returns the pieces that a rank computes with the tensor of gathered_keys(). The tensor must contain the keys of
  /// all owners that the rank sees.
  [[nodiscard]] std::vector<Piece> gathered_pieces(int rank) const;

 private:
  void deal_out();  ///< computes the runs of all ranks from the offsets, which must be set
  [[nodiscard]] std::vector<Piece> pieces_of(int rank, const std::vector<Run>& keys) const {
    return pieces_of(rows(rank), keys);
  }
  [[nodiscard]] std::vector<Piece> pieces_of(const std::vector<Run>& all_rows, const std::vector<Run>& keys) const;
  /// Returns the visible part of a run of rows and a run of keys of one sequence, or nothing if no key is visible.
  [[nodiscard]] std::optional<Piece> piece_of(const Run& rows, const Run& keys) const;
  [[nodiscard]] bool sees_all(const Piece& piece) const;
  [[nodiscard]] std::vector<Piece> joined(const std::vector<Piece>& pieces) const;

  Sharding sharding_ = Sharding::kContiguous;
  std::int64_t window_left_ = kOpenWindow;
  std::int64_t window_right_ = kOpenWindow;
  bool may_join_ = false;
  /// True if the mask is causal, rows and keys have the same positions, and only the mask depends on positions.
  bool sees_up_to_itself_ = false;
  int rank_ = 0;
  int num_ranks_ = 0;
  std::vector<std::int64_t> offsets_q_;
  std::vector<std::int64_t> offsets_k_;
  std::vector<std::vector<Run>> rows_by_rank_;
  std::vector<std::vector<Run>> keys_by_rank_;
  std::vector<int> last_steps_;
};

}  // namespace attend::ring
