// Who computes what in which step: the same pure function on every rank, so that nobody has to ask.
//
// In step t rank r holds the keys that rank (r - t) mod N owns. A block of keys travels as long as some rank further on
// sees part of it; what a rank sees of a block are pieces, each of one run of rows against one run of keys.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/problem.hpp"
#include "ring/plan/sharding.hpp"

namespace attend::ring {

/// Rows of this rank against keys of a block, with equal steps: causal and window masks show each row at least one of
/// the keys, and each key to at least one of the rows. Where nothing but a mask asks for positions, what lies side by
/// side in memory is one piece, although not in its sequence: rows that see all of the same keys, and keys that the
/// same rows see all of, before more of them. Its positions are then those of the first rows and of the last keys.
/// Under a causal mask a rank's own rows and keys are one piece too, as if they followed each other in their sequence.
struct Piece {
  Run rows;
  Run keys;
  core::Placement placement;
};

/// Of the pieces with its own keys a rank on a GPU takes some before others' keys where gradients go round, and the
/// rest after them: those hide the way of the first keys that come, these that of its keys' gradients home.
struct OwnPieces {
  std::vector<Piece> first, last;
};

/// May the positions of rows and keys be other than they are, as long as the mask stays? Not with ALiBi and dropout,
/// and not where a bias or a mask tensor has a column for each key.
[[nodiscard]] bool only_masks_ask_for_positions(const core::Problem& problem);

/// Ranks in groups of as many members each, so that a group's rows are what a rank of `count` would hold: of
/// neighbours, with striped tokens of every count-th rank.
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
  Plan() = default;  ///< of no ranks

  /// @param problem  of the rank, made with WholeLengths `whole`
  Plan(const core::Problem& problem, const core::WholeLengths& whole, Sharding sharding, int rank, int num_ranks);

  /// The same problem with a group for a rank.
  [[nodiscard]] Plan of_groups(const Groups& groups) const;

  [[nodiscard]] Sharding sharding() const { return sharding_; }
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int num_ranks() const { return num_ranks_; }
  [[nodiscard]] int next() const { return (rank_ + 1) % num_ranks_; }
  [[nodiscard]] int previous() const { return (rank_ + num_ranks_ - 1) % num_ranks_; }

  /// The owner of the keys that this rank holds in a step, if it holds any.
  [[nodiscard]] int owner(int step) const { return (rank_ + num_ranks_ - step % num_ranks_) % num_ranks_; }

  /// The last step in which somebody sees the owner's keys: then rank (owner + step) mod N holds them.
  [[nodiscard]] int last_step(int owner) const { return last_steps_[static_cast<std::size_t>(owner)]; }

  /// Does this rank hold keys in the step, and does it send them on at its beginning?
  [[nodiscard]] bool holds(int step) const { return step < num_ranks_ && step <= last_step(owner(step)); }
  [[nodiscard]] bool sends(int step) const { return step < last_step(owner(step)); }

  /// Rows of a rank's share of k and v, and of this rank's of q.
  [[nodiscard]] std::int64_t num_keys(int owner) const;
  [[nodiscard]] std::int64_t num_rows_q() const;

  /// pieces(rank, rank) in two; where it is but one, by its rows.
  [[nodiscard]] OwnPieces own_pieces(int rank) const;

  /// What this rank, or another, sees of the owner's keys.
  [[nodiscard]] std::vector<Piece> pieces(int owner) const { return pieces(rank_, owner); }
  [[nodiscard]] std::vector<Piece> pieces(int rank, int owner) const;
  [[nodiscard]] bool sees(int rank, int owner) const { return !pieces(rank, owner).empty(); }

  /// Rows and keys of a rank, where it holds them (local_begin) and in their sequences.
  [[nodiscard]] const std::vector<Run>& rows(int rank) const { return rows_by_rank_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] const std::vector<Run>& keys(int rank) const { return keys_by_rank_[static_cast<std::size_t>(rank)]; }

  /// Where sequences begin in the whole.
  [[nodiscard]] const std::vector<std::int64_t>& offsets_q() const { return offsets_q_; }
  [[nodiscard]] const std::vector<std::int64_t>& offsets_k() const { return offsets_k_; }

  /// The keys of all ranks in one tensor: in their own order, so that a row's are neighbours; striped ones by owner, as
  /// rows and keys of a piece are equally far apart. Here local_begin is the place in that tensor.
  [[nodiscard]] std::vector<Run> gathered_keys(int owner) const;
  /// What a rank's rows see of it, where it has at least the keys of those owners whom the rank sees.
  [[nodiscard]] std::vector<Piece> gathered_pieces(int rank) const;

 private:
  void deal_out();  ///< offsets are there
  [[nodiscard]] std::vector<Piece> pieces_of(int rank, const std::vector<Run>& keys) const {
    return pieces_of(rows(rank), keys);
  }
  [[nodiscard]] std::vector<Piece> pieces_of(const std::vector<Run>& all_rows, const std::vector<Run>& keys) const;
  /// What of rows and keys of a sequence see each other.
  [[nodiscard]] std::optional<Piece> piece_of(const Run& rows, const Run& keys) const;
  [[nodiscard]] bool sees_all(const Piece& piece) const;
  [[nodiscard]] std::vector<Piece> joined(const std::vector<Piece>& pieces) const;

  Sharding sharding_ = Sharding::kContiguous;
  std::int64_t window_left_ = kOpenWindow;
  std::int64_t window_right_ = kOpenWindow;
  bool may_join_ = false;
  bool sees_up_to_itself_ = false;  ///< causal, rows and keys are the same positions, and nothing else asks for them
  int rank_ = 0;
  int num_ranks_ = 0;
  std::vector<std::int64_t> offsets_q_;
  std::vector<std::int64_t> offsets_k_;
  std::vector<std::vector<Run>> rows_by_rank_;
  std::vector<std::vector<Run>> keys_by_rank_;
  std::vector<int> last_steps_;
};

}  // namespace attend::ring
