// The schedule: which rank computes what in which step. It is a pure function, so every rank computes the same plan
// without communication.
//
// In step t, rank r holds the keys that rank (r - t) mod N owns. A block of keys travels on as long as a later rank
// sees part of it. The visible part of a block is a list of pieces, each of one run of rows against one run of keys.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/problem.hpp"
#include "ring/plan/sharding.hpp"

namespace attend::ring {

/// A run of this rank's rows against a run of keys in a block, with equal steps. Under causal and window masks, each
/// row sees at least one of the keys, and each key is seen by at least one of the rows.
///
/// If only masks depend on positions, runs that are adjacent in memory, but not in the sequence, are joined into one
/// piece. This applies to rows that see all of the same keys, and to keys that the same rows see completely, followed
/// by further keys. The positions of a joined piece are those of the first rows and of the last keys. Under a causal
/// mask, a rank's rows and its own keys are one piece too, as if they were contiguous in their sequence.
struct Piece {
  Run rows;
  Run keys;
  core::Placement placement;
};

/// Split of the pieces with a rank's own keys, on a GPU, if gradients travel. `first` runs before the pieces with other
/// ranks' keys and hides the transfer of the first keys. `last` runs after them and hides the return of the gradients
/// of this rank's keys.
struct OwnPieces {
  std::vector<Piece> first, last;
};

/// Returns whether positions of rows and keys may change as long as the mask stays the same. False with ALiBi and
/// dropout, and if a bias or a mask tensor has a column for each key.
[[nodiscard]] bool only_masks_ask_for_positions(const core::Problem& problem);

/// Groups of equal size. The rows of a group are those that one rank would hold if there were `count` ranks. A group
/// consists of neighbours, or, with striped tokens, of every count-th rank.
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

  /// @param problem  of the rank, made with WholeLengths `whole`
  Plan(const core::Problem& problem, const core::WholeLengths& whole, Sharding sharding, int rank, int num_ranks);

  /// Returns the plan of the same problem with each group as one rank.
  [[nodiscard]] Plan of_groups(const Groups& groups) const;

  [[nodiscard]] Sharding sharding() const { return sharding_; }
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int num_ranks() const { return num_ranks_; }
  [[nodiscard]] int next() const { return (rank_ + 1) % num_ranks_; }
  [[nodiscard]] int previous() const { return (rank_ + num_ranks_ - 1) % num_ranks_; }

  /// Returns the owner of the keys that this rank holds in a step, if it holds any.
  [[nodiscard]] int owner(int step) const { return (rank_ + num_ranks_ - step % num_ranks_) % num_ranks_; }

  /// Returns the last step in which some rank sees the owner's keys. In a step, rank (owner + step) mod N holds them.
  [[nodiscard]] int last_step(int owner) const { return last_steps_[static_cast<std::size_t>(owner)]; }

  /// Returns whether this rank holds keys in the step, and whether it sends them on at the beginning of the step.
  [[nodiscard]] bool holds(int step) const { return step < num_ranks_ && step <= last_step(owner(step)); }
  [[nodiscard]] bool sends(int step) const { return step < last_step(owner(step)); }

  /// Return the number of rows in a rank's share of k and v, and in this rank's share of q.
  [[nodiscard]] std::int64_t num_keys(int owner) const;
  [[nodiscard]] std::int64_t num_rows_q() const;

  /// Returns pieces(rank, rank) in two parts. A single piece is split by its rows.
  [[nodiscard]] OwnPieces own_pieces(int rank) const;

  /// Return the pieces of the owner's keys that this rank, or another one, sees.
  [[nodiscard]] std::vector<Piece> pieces(int owner) const { return pieces(rank_, owner); }
  [[nodiscard]] std::vector<Piece> pieces(int rank, int owner) const;
  [[nodiscard]] bool sees(int rank, int owner) const { return !pieces(rank, owner).empty(); }

  /// Return the rows and keys of a rank: their place in its tensors (local_begin) and in their sequences.
  [[nodiscard]] const std::vector<Run>& rows(int rank) const { return rows_by_rank_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] const std::vector<Run>& keys(int rank) const { return keys_by_rank_[static_cast<std::size_t>(rank)]; }

  /// Return the offsets of the sequences in the complete tensor.
  [[nodiscard]] const std::vector<std::int64_t>& offsets_q() const { return offsets_q_; }
  [[nodiscard]] const std::vector<std::int64_t>& offsets_k() const { return offsets_k_; }

  /// Returns the keys of an owner in a tensor with the keys of all ranks; local_begin is the place in that tensor. Keys
  /// are in sequence order, so that a row's keys are contiguous. Striped keys are ordered by owner instead, because
  /// rows and keys of a piece must have equal steps.
  [[nodiscard]] std::vector<Run> gathered_keys(int owner) const;
  /// Returns the pieces of that tensor that a rank's rows see. The tensor must contain the keys of all owners that the
  /// rank sees.
  [[nodiscard]] std::vector<Piece> gathered_pieces(int rank) const;

 private:
  void deal_out();  ///< requires the offsets
  [[nodiscard]] std::vector<Piece> pieces_of(int rank, const std::vector<Run>& keys) const {
    return pieces_of(rows(rank), keys);
  }
  [[nodiscard]] std::vector<Piece> pieces_of(const std::vector<Run>& all_rows, const std::vector<Run>& keys) const;
  /// Returns the visible part of rows and keys of one sequence.
  [[nodiscard]] std::optional<Piece> piece_of(const Run& rows, const Run& keys) const;
  [[nodiscard]] bool sees_all(const Piece& piece) const;
  [[nodiscard]] std::vector<Piece> joined(const std::vector<Piece>& pieces) const;

  Sharding sharding_ = Sharding::kContiguous;
  std::int64_t window_left_ = kOpenWindow;
  std::int64_t window_right_ = kOpenWindow;
  bool may_join_ = false;
  /// causal, rows and keys have the same positions, and only the mask depends on positions
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
