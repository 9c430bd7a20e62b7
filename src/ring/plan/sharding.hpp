// Which rows a rank holds, as runs of equally spaced positions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attend/ring.hpp"

namespace attend::ring {

/// Rows of a rank that lie `step` apart in one sequence: local row local_begin + i is the sequence's row
/// position + step * i.
struct Run {
  std::int64_t sequence;
  std::int64_t local_begin;
  std::int64_t length;
  std::int64_t position;
  std::int64_t step;

  bool operator==(const Run&) const = default;
};

/// Offsets of the sequences in the whole: cu_seqlens widened, or {0, seqlen} for a dense tensor.
[[nodiscard]] std::vector<std::int64_t> sequence_offsets(std::int64_t seqlen, std::span<const std::int32_t> cu_seqlens);

/// The rank's rows in the order in which it holds them; no run is empty. Trusts its arguments.
/// @param offsets  of sequence_offsets()
[[nodiscard]] std::vector<Run> runs_of(Sharding sharding, std::span<const std::int64_t> offsets, int rank,
                                       int num_ranks);

/// Rows in all the runs.
[[nodiscard]] std::int64_t num_rows(std::span<const Run> runs);

}  // namespace attend::ring
