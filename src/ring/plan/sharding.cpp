#include "ring/plan/sharding.hpp"

namespace attend::ring {
namespace {

/// Appends tokens [begin, end) of a sequence as a run. If they directly follow the last run, extends that run.
void append(std::vector<Run>& runs, std::int64_t sequence, std::int64_t begin, std::int64_t end) {
  if (begin == end) return;
  const std::int64_t local = num_rows(runs);
  const bool follows =
      !runs.empty() && runs.back().sequence == sequence && runs.back().position + runs.back().length == begin;
  if (follows) {
    runs.back().length += end - begin;
  } else {
    runs.push_back({sequence, local, end - begin, begin, 1});
  }
}

/// Splits a sequence into num_chunks nearly equal chunks and appends chunk number `chunk`.
void append_chunk(std::vector<Run>& runs, std::int64_t sequence, std::int64_t seqlen, std::int64_t chunk,
                  std::int64_t num_chunks) {
  append(runs, sequence, chunk * seqlen / num_chunks, (chunk + 1) * seqlen / num_chunks);
}

}  // namespace

std::vector<std::int64_t> sequence_offsets(std::int64_t seqlen, std::span<const std::int32_t> cu_seqlens) {
  if (cu_seqlens.empty()) return {0, seqlen};
  return {cu_seqlens.begin(), cu_seqlens.end()};
}

std::vector<Run> runs_of(Sharding sharding, std::span<const std::int64_t> offsets, int rank, int num_ranks) {
  std::vector<Run> runs;
  for (std::size_t s = 0; s + 1 < offsets.size(); ++s) {
    const auto sequence = static_cast<std::int64_t>(s);
    const std::int64_t seqlen = offsets[s + 1] - offsets[s];
    switch (sharding) {
      case Sharding::kContiguous:
        append_chunk(runs, sequence, seqlen, rank, num_ranks);
        break;
      case Sharding::kZigzag:
        append_chunk(runs, sequence, seqlen, rank, 2 * num_ranks);
        append_chunk(runs, sequence, seqlen, 2 * num_ranks - 1 - rank, 2 * num_ranks);
        break;
      case Sharding::kStriped:
        if (rank < seqlen) {
          runs.push_back({sequence, num_rows(runs), (seqlen - rank + num_ranks - 1) / num_ranks, rank, num_ranks});
        }
        break;
    }
  }
  return runs;
}

std::int64_t num_rows(std::span<const Run> runs) {
  return runs.empty() ? 0 : runs.back().local_begin + runs.back().length;
}

}  // namespace attend::ring

namespace attend {

const char* sharding_name(Sharding sharding) noexcept {
  switch (sharding) {
    case Sharding::kContiguous:
      return "contiguous";
    case Sharding::kZigzag:
      return "zigzag";
    case Sharding::kStriped:
      return "striped";
  }
  return "?";
}

const char* algorithm_name(RingAlgorithm algorithm) noexcept {
  switch (algorithm) {
    case RingAlgorithm::kAutomatic:
      return "automatic";
    case RingAlgorithm::kExchange:
      return "exchange";
    case RingAlgorithm::kAllGather:
      return "all_gather";
    case RingAlgorithm::kAllToAll:
      return "all_to_all";
    case RingAlgorithm::kTwoLevel:
      return "two_level";
  }
  return "?";
}

}  // namespace attend
