// A checked append call: all defaults are resolved and all sizes are verified. Holds no memory of its own and does not
// depend on hardware.
//
// Only make_append_problem reads the user's arguments. The backends rely on the fields of an AppendProblem. The
// computation reads the arrays on the tensors' device (lengths, tables, offsets, slots, positions). If the device is a
// CPU, the functions below read them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "attend/serving.hpp"
#include "core/cache_layout.hpp"
#include "core/problem.hpp"

namespace attend::core {

/// The rows of sequences in a tensor. All rows are numbered as tokens, in the order in memory. Without offsets,
/// sequence s is batch entry s and has `seqlen` rows. With offsets the tensor is packed, and sequence s has the rows
/// [offsets[s], offsets[s + 1]) of batch entry 0.
struct SequenceRows {
  const std::int32_t* offsets = nullptr;
  std::int64_t num_sequences = 0;
  std::int64_t seqlen = 0;  ///< number of rows of each sequence, or an upper bound if there are offsets

  // The functions below require that offsets are in host memory.

  [[nodiscard]] std::int64_t count() const { return begin(num_sequences); }
  [[nodiscard]] std::int64_t begin(std::int64_t s) const { return offsets != nullptr ? offsets[s] : s * seqlen; }
  [[nodiscard]] std::int64_t length(std::int64_t s) const { return begin(s + 1) - begin(s); }
  /// Returns the sequence to which a token belongs. The token must be less than count().
  [[nodiscard]] std::int64_t sequence_of(std::int64_t token) const {
    if (offsets == nullptr) return token / seqlen;
    return std::upper_bound(offsets, offsets + num_sequences + 1, token) - offsets - 1;
  }
  [[nodiscard]] Matrix row(const Tensor& t, std::int64_t head, std::int64_t token) const {
    void* data = offsets != nullptr ? element(t, 0, head, token) : element(t, token / seqlen, head, token % seqlen);
    return {data, t.dtype, 1, t.shape[3], t.stride[2]};
  }
};

struct AppendProblem : CacheLayout {
  Tensor k, k_cache;
  std::optional<Tensor> v, v_cache;  ///< both or neither are set
  std::optional<Tensor> q, q_out;    ///< both or neither are set
  SequenceRows new_rows;             ///< describes the rows of k and v
  SequenceRows q_rows;               ///< describes the rows of q and q_out
  QueryPositions query_positions = QueryPositions::kLast;
  const std::int64_t* slot_mapping = nullptr;
  const std::int32_t* positions = nullptr;

  std::optional<Rotary> rotary;  ///< absent if no row is rotated
  std::optional<Tensor> q_norm, k_norm;
  float norm_eps = 0;

  [[nodiscard]] std::int64_t num_sequences() const { return new_rows.num_sequences; }
  [[nodiscard]] std::int64_t rotary_dim() const { return rotary ? 2 * rotary->cos.shape[3] : 0; }
  [[nodiscard]] std::int64_t max_positions() const { return rotary ? rotary->cos.shape[2] : 0; }

  // The functions below require that the arrays are in host memory.

  /// Returns the state of a sequence in the cache. If the call has slots, cache_row stays unset, because a slot
  /// determines the destination without it.
  [[nodiscard]] CachedSequence sequence(std::int64_t s) const {
    if (slot_mapping == nullptr) return cached(s);
    const std::int64_t length = cache.seqlens_k != nullptr ? cache.seqlens_k[s] : 0;
    return {0, std::max<std::int64_t>(length, 0), length < 0};
  }

  /// Returns the destination of new row i of a sequence that is not dead.
  [[nodiscard]] CachePlace destination(const CachedSequence& in_cache, std::int64_t s, std::int64_t i) const {
    if (slot_mapping != nullptr) {
      const std::int64_t slot = slot_mapping[new_rows.begin(s) + i];
      if (slot < 0 || slot >= num_blocks * block_size) return {-1, 0};
      return {slot / block_size, slot % block_size};
    }
    const std::int64_t key = in_cache.length + i;
    return key < capacity ? place(in_cache.cache_row, key) : CachePlace{-1, 0};
  }

  /// Returns the position of new row i, as the caller passed it. The position may be outside the rotary tables.
  [[nodiscard]] std::int64_t position(const CachedSequence& in_cache, std::int64_t s, std::int64_t i) const {
    if (positions != nullptr) return positions[new_rows.begin(s) + i];
    return (rotary && rotary->seqlens != nullptr ? rotary->seqlens[s] : in_cache.length) + i;
  }

  /// Returns the new row whose position query row i of a sequence uses. If `positions` is not given, the new row need
  /// not exist.
  [[nodiscard]] std::int64_t new_row_of_query(std::int64_t s, std::int64_t i) const {
    switch (query_positions) {
      case QueryPositions::kLast:
        return i + new_rows.length(s) - q_rows.length(s);
      case QueryPositions::kFirst:
        return i;
      case QueryPositions::kOne:
        break;
    }
    return 0;
  }
};

/// Checks the arguments of attend::append and resolves the defaults. Throws Error naming the first invalid argument.
/// For tensors on a CPU, also checks the offsets. With ATTEND_CHECK=1, checks the contents of the other arrays too. The
/// argument `decode` is set if a decode call follows the append. In this situation the query rows are those of
/// `decode`, and the caller must set q_out to a dense tensor. If append does not change q, the problem has no q.
[[nodiscard]] AppendProblem make_append_problem(const AppendCall& call, const DecodeCall* decode = nullptr);

}  // namespace attend::core
