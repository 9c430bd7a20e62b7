// A checked append call: every default resolved, every size verified, nothing allocated. Knows no hardware.
//
// make_append_problem is the only place that looks at what a user passed; the backends trust an AppendProblem. What
// lies in arrays on the tensors' device (lengths, tables, offsets, slots, positions) is read by whoever computes: on
// the host through the functions below.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "attend/serving.hpp"
#include "core/cache_layout.hpp"
#include "core/problem.hpp"

namespace attend::core {

/// The rows of sequences in a tensor, numbered in their order there: tokens. Dense, sequence s is batch entry s with
/// `seqlen` rows; packed, it owns the rows [offsets[s], offsets[s + 1]) of batch entry 0.
struct SequenceRows {
  const std::int32_t* offsets = nullptr;
  std::int64_t num_sequences = 0;
  std::int64_t seqlen = 0;  ///< packed: an upper bound

  // Of offsets on the host:

  [[nodiscard]] std::int64_t count() const { return begin(num_sequences); }
  [[nodiscard]] std::int64_t begin(std::int64_t s) const { return offsets != nullptr ? offsets[s] : s * seqlen; }
  [[nodiscard]] std::int64_t length(std::int64_t s) const { return begin(s + 1) - begin(s); }
  /// The sequence of a token < count().
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
  std::optional<Tensor> v, v_cache;  ///< both or neither
  std::optional<Tensor> q, q_out;    ///< likewise
  SequenceRows new_rows;             ///< of k and v
  SequenceRows q_rows;               ///< of q and q_out
  QueryPositions query_positions = QueryPositions::kLast;
  const std::int64_t* slot_mapping = nullptr;
  const std::int32_t* positions = nullptr;

  std::optional<Rotary> rotary;  ///< absent if nothing is rotated
  std::optional<Tensor> q_norm, k_norm;
  float norm_eps = 0;

  [[nodiscard]] std::int64_t num_sequences() const { return new_rows.num_sequences; }
  [[nodiscard]] std::int64_t rotary_dim() const { return rotary ? 2 * rotary->cos.shape[3] : 0; }
  [[nodiscard]] std::int64_t max_positions() const { return rotary ? rotary->cos.shape[2] : 0; }

  // Of arrays on the host:

  /// With slots nobody asks where the keys of a sequence lie.
  [[nodiscard]] CachedSequence sequence(std::int64_t s) const {
    if (slot_mapping == nullptr) return cached(s);
    const std::int64_t length = cache.seqlens_k != nullptr ? cache.seqlens_k[s] : 0;
    return {0, std::max<std::int64_t>(length, 0), length < 0};
  }

  /// Where new row i of a live sequence goes.
  [[nodiscard]] CachePlace destination(const CachedSequence& in_cache, std::int64_t s, std::int64_t i) const {
    if (slot_mapping != nullptr) {
      const std::int64_t slot = slot_mapping[new_rows.begin(s) + i];
      if (slot < 0 || slot >= num_blocks * block_size) return {-1, 0};
      return {slot / block_size, slot % block_size};
    }
    const std::int64_t key = in_cache.length + i;
    return key < capacity ? place(in_cache.cache_row, key) : CachePlace{-1, 0};
  }

  /// The position of new row i as the caller says it: it may lie outside the tables.
  [[nodiscard]] std::int64_t position(const CachedSequence& in_cache, std::int64_t s, std::int64_t i) const {
    if (positions != nullptr) return positions[new_rows.begin(s) + i];
    return (rotary && rotary->seqlens != nullptr ? rotary->seqlens[s] : in_cache.length) + i;
  }

  /// The new row whose position query row i of a sequence has. Without `positions` it need not exist.
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

/// Checks the arguments of attend::append and resolves the defaults. Throws Error naming the first argument at fault.
/// Of tensors on a CPU the offsets are checked too, and with ATTEND_CHECK=1 what the other arrays hold.
/// With `decode`, for an append that goes before it: the query rows are decode's, and the caller gives q_out memory for
/// a dense tensor. Where q is to stay as it is, the problem has none.
[[nodiscard]] AppendProblem make_append_problem(const AppendCall& call, const DecodeCall* decode = nullptr);

}  // namespace attend::core
