// Describes the rows of a rank as runs. Each run has equally spaced positions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attend/ring.hpp"

namespace attend::ring {

/// Rows of a rank that are `step` apart in one sequence. The rank's row local_begin + i is row position + step * i of
/// the sequence.
struct Run {
  std::int64_t sequence;
  std::int64_t local_begin;
  std::int64_t length;
  std::int64_t position;
  std::int64_t step;

  bool operator==(const Run&) const = default;
};

/// Returns the offset of each sequence in the complete tensor. These are the values of cu_seqlens as 64-bit integers,
/// or {0, seqlen} for a dense tensor.
[[nodiscard]] std::vector<std::int64_t> sequence_offsets(std::int64_t seqlen, std::span<const std::int32_t> cu_seqlens);

/// Returns the runs of a rank in the order in memory. No run is empty. Does not check its arguments.
/// @param offsets  the result of sequence_offsets()
[[nodiscard]] std::vector<Run> runs_of(Sharding sharding, std::span<const std::int64_t> offsets, int rank,
                                       int num_ranks);

/// Returns the number of rows in all runs.
[[nodiscard]] std::int64_t num_rows(std::span<const Run> runs);

}  // namespace attend::ring
