#include "ring/plan/plan.hpp"

#include <algorithm>

namespace attend::ring {
namespace {

std::span<const std::int32_t> as_span(const std::int32_t* cu_seqlens, const core::Problem& problem) {
  return {cu_seqlens, static_cast<std::size_t>(problem.num_sequences) + 1};
}

/// Returns the part of `run` that consists of its rows or keys [begin, end).
Run part_of(const Run& run, std::int64_t begin, std::int64_t end) {
  return {run.sequence, run.local_begin + begin, end - begin, run.position + run.step * begin, run.step};
}

/// Returns whether `second` is stored directly after `first`.
bool follows(const Run& second, const Run& first) {
  return second.sequence == first.sequence && second.step == first.step &&
         second.local_begin == first.local_begin + first.length;
}

/// Joins two runs of rows as if their positions were contiguous. The result begins at the position of the first run.
Run joined_rows(const Run& first, const Run& second) {
  return {first.sequence, first.local_begin, first.length + second.length, first.position, first.step};
}
Run joined_keys(const Run& first, const Run& second) {
  const std::int64_t position = second.position - second.step * first.length;
  return {first.sequence, first.local_begin, first.length + second.length, position, second.step};
}

/// Joins runs that are adjacent in memory, as if their positions in the sequence were contiguous.
std::vector<Run> closed_up(const std::vector<Run>& runs) {
  std::vector<Run> all;
  for (const Run& next : runs) {
    if (!all.empty() && follows(next, all.back())) {
      all.back() = joined_rows(all.back(), next);
    } else {
      all.push_back(next);
    }
  }
  return all;
}

}  // namespace

bool only_masks_ask_for_positions(const core::Problem& problem) {
  return !problem.alibi_slopes && problem.dropout_p == 0 && !problem.bias && !problem.mask && !problem.dbias;
}

Plan::Plan(const core::Problem& problem, const core::WholeLengths& whole, Sharding sharding, int rank, int num_ranks)
    : sharding_(sharding),
      window_left_(problem.window_left),
      window_right_(problem.window_right),
      may_join_(problem.window_left < 0 && only_masks_ask_for_positions(problem)),
      rank_(rank),
      num_ranks_(num_ranks) {
  const std::optional<Varlen>& varlen = problem.varlen;
  offsets_q_ =
      varlen ? sequence_offsets(0, as_span(varlen->cu_seqlens_q, problem)) : sequence_offsets(whole.seqlen_q, {});
  offsets_k_ =
      varlen ? sequence_offsets(0, as_span(varlen->cu_seqlens_k, problem)) : sequence_offsets(whole.seqlen_k, {});
  sees_up_to_itself_ = may_join_ && window_right_ == 0 && offsets_q_ == offsets_k_;
  deal_out();
}

void Plan::deal_out() {
  rows_by_rank_.clear();
  keys_by_rank_.clear();
  last_steps_.clear();
  for (int r = 0; r < num_ranks_; ++r) {
    rows_by_rank_.push_back(runs_of(sharding_, offsets_q_, r, num_ranks_));
    keys_by_rank_.push_back(runs_of(sharding_, offsets_k_, r, num_ranks_));
  }
  for (int owner = 0; owner < num_ranks_; ++owner) {
    int last = num_ranks_ - 1;
    while (last > 0 && !sees((owner + last) % num_ranks_, owner)) --last;
    last_steps_.push_back(last);
  }
}

Plan Plan::of_groups(const Groups& groups) const {
  Plan plan = *this;
  plan.rank_ = groups.group(rank_);
  plan.num_ranks_ = groups.count;
  plan.deal_out();
  return plan;
}

std::int64_t Plan::num_keys(int owner) const {
  return num_rows(keys_by_rank_[static_cast<std::size_t>(owner)]);
}

std::int64_t Plan::num_rows_q() const {
  return num_rows(rows_by_rank_[static_cast<std::size_t>(rank_)]);
}

std::vector<Run> Plan::gathered_keys(int owner) const {
  std::vector<Run> runs = keys(owner);
  std::int64_t before = 0;
  for (int other = 0; other < owner; ++other) before += num_keys(other);
  for (Run& run : runs) {
    const bool in_order = sharding_ != Sharding::kStriped;
    run.local_begin =
        in_order ? offsets_k_[static_cast<std::size_t>(run.sequence)] + run.position : before + run.local_begin;
  }
  return runs;
}

std::vector<Piece> Plan::gathered_pieces(int rank) const {
  std::vector<Piece> pieces;
  if (sharding_ == Sharding::kStriped) {
    for (int owner = 0; owner < num_ranks_; ++owner) {
      const std::vector<Piece> its = pieces_of(rank, gathered_keys(owner));
      pieces.insert(pieces.end(), its.begin(), its.end());
    }
    return pieces;
  }
  std::vector<Run> sequences;
  for (std::size_t s = 0; s + 1 < offsets_k_.size(); ++s) {
    const std::int64_t length = offsets_k_[s + 1] - offsets_k_[s];
    if (length > 0) sequences.push_back({static_cast<std::int64_t>(s), offsets_k_[s], length, 0, 1});
  }
  return pieces_of(rank, sequences);
}

std::vector<Piece> Plan::pieces(int rank, int owner) const {
  // The position of rows and keys increases with their order in memory. Under a causal mask, a comparison of places in
  // memory therefore gives the same result as a comparison of positions.
  if (rank == owner && sees_up_to_itself_) return pieces_of(closed_up(rows(rank)), closed_up(keys(rank)));
  return joined(pieces_of(rank, keys(owner)));
}

OwnPieces Plan::own_pieces(int rank) const {
  constexpr std::int64_t kCut = 16;  // a multiple of 16 rows preserves the alignment
  std::vector<Piece> all = pieces(rank, rank);
  if (num_ranks_ == 1) return {all, {}};
  if (all.size() == 1) {
    const Piece whole = all[0];
    const std::int64_t cut = whole.rows.length / 2 / kCut * kCut;
    all.clear();
    for (const Run& half : {part_of(whole.rows, 0, cut), part_of(whole.rows, cut, whole.rows.length)}) {
      if (const std::optional<Piece> piece = piece_of(half, whole.keys)) all.push_back(*piece);
    }
  }
  const auto middle = all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2);
  return {{all.begin(), middle}, {middle, all.end()}};
}

std::vector<Piece> Plan::pieces_of(const std::vector<Run>& all_rows, const std::vector<Run>& keys) const {
  std::vector<Piece> pieces;
  // Index of the first run of keys that belongs to the sequence of `rows`. If that sequence has no keys, the run
  // belongs to a later sequence.
  std::size_t first = 0;
  for (const Run& rows : all_rows) {
    while (first < keys.size() && keys[first].sequence < rows.sequence) ++first;
    for (std::size_t n = first; n < keys.size() && keys[n].sequence == rows.sequence; ++n) {
      if (const std::optional<Piece> piece = piece_of(rows, keys[n])) pieces.push_back(*piece);
    }
  }
  return pieces;
}

std::optional<Piece> Plan::piece_of(const Run& rows, const Run& keys) const {
  const auto s = static_cast<std::size_t>(rows.sequence);
  const core::Placement placement = {.sequence_begin = rows.sequence,
                                     .row_begin = rows.position,
                                     .key_begin = keys.position,
                                     .step = rows.step,
                                     .whole_seqlen_q = offsets_q_[s + 1] - offsets_q_[s],
                                     .whole_seqlen_k = offsets_k_[s + 1] - offsets_k_[s]};
  // Row i sees the existing keys among i + band.begin to i + band.end - 1.
  const KeyRange band = placement.window(keys.length, window_left_, window_right_).unbounded_row(0);
  const KeyRange seeing = {std::max<std::int64_t>(0, 1 - band.end), std::min(rows.length, keys.length - band.begin)};
  if (seeing.empty()) return std::nullopt;
  const KeyRange seen = {std::max<std::int64_t>(0, band.begin), std::min(keys.length, rows.length - 1 + band.end)};
  Piece piece = {part_of(rows, seeing.begin, seeing.end), part_of(keys, seen.begin, seen.end), placement};
  piece.placement.row_begin = piece.rows.position;
  piece.placement.key_begin = piece.keys.position;
  return piece;
}

bool Plan::sees_all(const Piece& piece) const {
  const KeyRange band = piece.placement.window(piece.keys.length, window_left_, window_right_).unbounded_row(0);
  return band.begin <= 1 - piece.rows.length && band.end >= piece.keys.length;
}

std::vector<Piece> Plan::joined(const std::vector<Piece>& pieces) const {
  if (!may_join_) return pieces;
  std::vector<Piece> rows_with_keys;  // result of joining consecutive pieces that have the same rows and adjacent keys
  for (const Piece& next : pieces) {
    if (!rows_with_keys.empty()) {
      Piece& last = rows_with_keys.back();
      if (last.rows == next.rows && follows(next.keys, last.keys) && sees_all(last)) {
        last.keys = joined_keys(last.keys, next.keys);
        last.placement.key_begin = last.keys.position;
        continue;
      }
    }
    rows_with_keys.push_back(next);
  }
  std::vector<Piece> all;
  for (const Piece& next : rows_with_keys) {
    if (!all.empty()) {
      Piece& last = all.back();
      const bool has_its_keys = last.keys.local_begin == next.keys.local_begin && last.keys.length == next.keys.length;
      if (has_its_keys && follows(next.rows, last.rows) && sees_all(last) && sees_all(next)) {
        last.rows = joined_rows(last.rows, next.rows);
        continue;
      }
    }
    all.push_back(next);
  }
  return all;
}

}  // namespace attend::ring
