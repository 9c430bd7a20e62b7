// Implements shard and unshard, which copy the rows of a rank out of a complete tensor and back. Also implements
// shard_seqlen and shard_positions, which describe these rows.
#include <cstring>

#include "attend/ring.hpp"
#include "core/problem_checks.hpp"
#include "ring/plan/sharding.hpp"

namespace attend {
namespace {

void check_shard(std::int64_t seqlen, int rank, int num_ranks, std::span<const std::int32_t> cu_seqlens) {
  using core::refuse;
  if (num_ranks < 1) refuse("num_ranks: {}, allowed >= 1", num_ranks);
  if (rank < 0 || rank >= num_ranks) refuse("rank: {}, allowed 0 to {}", rank, num_ranks - 1);
  if (seqlen < 0 || seqlen > core::kMaxLength) refuse("seqlen: {}, allowed 0 to {}", seqlen, core::kMaxLength);
  if (cu_seqlens.empty()) return;
  if (cu_seqlens.front() != 0) refuse("cu_seqlens: first entry {}, allowed 0", cu_seqlens.front());
  for (std::size_t s = 1; s < cu_seqlens.size(); ++s) {
    if (cu_seqlens[s] < cu_seqlens[s - 1]) {
      refuse("cu_seqlens: entry {} is {} after {}, allowed non-decreasing", s, cu_seqlens[s], cu_seqlens[s - 1]);
    }
  }
  if (cu_seqlens.back() != seqlen) refuse("cu_seqlens: last entry {}, allowed seqlen {}", cu_seqlens.back(), seqlen);
}

/// Calls copy() for every row of the rank. The arguments are the row's address in `whole`, its address in `local`, and
/// its size in bytes.
template <class Copy>
void for_each_row(Sharding sharding, const Tensor& whole, const Tensor& local, int rank, int num_ranks,
                  std::span<const std::int32_t> cu_seqlens, Copy copy) {
  const std::vector<std::int64_t> positions = shard_positions(sharding, whole.shape[2], rank, num_ranks, cu_seqlens);
  core::check_tensor("whole", whole, {});
  core::check_tensor("local", local, {});
  if (local.dtype != whole.dtype) {
    core::refuse("local: dtype {}, allowed {} of whole", dtype_name(local.dtype), dtype_name(whole.dtype));
  }
  Shape wanted = whole.shape;
  wanted[2] = static_cast<std::int64_t>(positions.size());
  if (local.shape != wanted) {
    core::refuse("local: shape {}, allowed {} on rank {} of {} with {} sharding", core::shape_text(local.shape),
                 core::shape_text(wanted), rank, num_ranks, sharding_name(sharding));
  }
  const auto bytes = static_cast<std::size_t>(whole.shape[3] * dtype_bytes(whole.dtype));
  for (std::int64_t b = 0; b < wanted[0]; ++b) {
    for (std::int64_t h = 0; h < wanted[1]; ++h) {
      for (std::int64_t row = 0; row < wanted[2]; ++row) {
        copy(core::element(whole, b, h, positions[static_cast<std::size_t>(row)]), core::element(local, b, h, row),
             bytes);
      }
    }
  }
}

}  // namespace

std::int64_t shard_seqlen(Sharding sharding, std::int64_t seqlen, int rank, int num_ranks,
                          std::span<const std::int32_t> cu_seqlens) {
  check_shard(seqlen, rank, num_ranks, cu_seqlens);
  return ring::num_rows(ring::runs_of(sharding, ring::sequence_offsets(seqlen, cu_seqlens), rank, num_ranks));
}

std::vector<std::int64_t> shard_positions(Sharding sharding, std::int64_t seqlen, int rank, int num_ranks,
                                          std::span<const std::int32_t> cu_seqlens) {
  check_shard(seqlen, rank, num_ranks, cu_seqlens);
  const std::vector<std::int64_t> offsets = ring::sequence_offsets(seqlen, cu_seqlens);
  std::vector<std::int64_t> positions;
  for (const ring::Run& run : ring::runs_of(sharding, offsets, rank, num_ranks)) {
    const std::int64_t first = offsets[static_cast<std::size_t>(run.sequence)] + run.position;
    for (std::int64_t i = 0; i < run.length; ++i) positions.push_back(first + run.step * i);
  }
  return positions;
}

void shard(Sharding sharding, const ConstTensor& whole, const Tensor& local, int rank, int num_ranks,
           std::span<const std::int32_t> cu_seqlens) {
  for_each_row(sharding, core::input_view(whole), local, rank, num_ranks, cu_seqlens,
               [](void* in_whole, void* in_local, std::size_t bytes) { std::memcpy(in_local, in_whole, bytes); });
}

void unshard(Sharding sharding, const ConstTensor& local, const Tensor& whole, int rank, int num_ranks,
             std::span<const std::int32_t> cu_seqlens) {
  for_each_row(sharding, whole, core::input_view(local), rank, num_ranks, cu_seqlens,
               [](void* in_whole, void* in_local, std::size_t bytes) { std::memcpy(in_whole, in_local, bytes); });
}

}  // namespace attend
