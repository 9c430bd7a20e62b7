// A checked decode call: every default resolved, every size verified, nothing allocated. Independent of hardware.
//
// Only make_decode_problem reads the user's arguments; the backends trust a DecodeProblem. Arrays on the tensors'
// device (lengths, tables, row offsets) are read during the computation. On the host, DecodeSequence and CacheRun hold
// what was read.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "attend/serving.hpp"
#include "core/cache_layout.hpp"
#include "core/problem.hpp"
#include "kernels/attention/key_range.cuh"

namespace attend::core {

constexpr std::int64_t kMaxDecodeHeadDim = 1024;  // limit for q and k; DeepSeek uses 576
constexpr std::int64_t kMaxTreeRows = 64;

/// One sequence of a decode call.
struct DecodeSequence {
  std::int64_t index;
  std::int64_t batch;    ///< index into the batch dimension of q, o and lse
  std::int64_t q_begin;  ///< first row of the sequence
  std::int64_t seqlen_q;
  std::int64_t seqlen_k;   ///< clamped to the capacity; 0 for a dead sequence
  std::int64_t first_key;  ///< first visible key
  std::int64_t cache_row;  ///< row of a contiguous cache, or row of the page table
  bool dead;               ///< see CacheIndex
};

/// Keys that are one row stride apart, starting at row `row` of batch entry `block` of k and v.
struct CacheRun {
  std::int64_t block;  ///< -1: the keys do not exist
  std::int64_t row;
  std::int64_t count;
};

struct DecodeProblem : CacheLayout {
  Tensor q, k, v, o;
  std::optional<Tensor> lse;           ///< (batch, num_heads_q, seqlen_q, 1)
  std::optional<Tensor> alibi_slopes;  ///< (num_sequences, num_heads_q, 1, 1), expanded
  std::optional<Tensor> sinks;         ///< (num_sequences, num_heads_q, 1, 1), expanded
  const std::int32_t* cu_seqlens_q = nullptr;
  const std::uint64_t* tree_mask = nullptr;

  std::int64_t num_sequences = 0;
  std::int64_t num_heads_q = 0;
  std::int64_t num_heads_k = 0;
  std::int64_t max_seqlen_q = 0;
  std::int64_t head_dim = 0;
  std::int64_t head_dim_v = 0;

  double scale = 1.0;
  double transform_cap = 0.0;  ///< cap of the score transform, as in Problem
  std::int64_t window_left = kOpenWindow;
  std::int64_t window_right = kOpenWindow;  ///< 0 for causal
  bool lse_base2 = false;

  /// Returns the query heads of a key head; 0 without heads.
  [[nodiscard]] std::int64_t heads_per_group() const { return num_heads_k == 0 ? 0 : num_heads_q / num_heads_k; }
  [[nodiscard]] bool transforms_scores() const { return transform_cap != 0; }

  // These require tensors on the host:

  [[nodiscard]] DecodeSequence sequence(std::int64_t index) const {
    DecodeSequence s = {index, index, 0, max_seqlen_q, 0, 0, index, true};
    if (cu_seqlens_q != nullptr) {
      s.batch = 0;
      s.q_begin = cu_seqlens_q[index];
      s.seqlen_q = cu_seqlens_q[index + 1] - s.q_begin;
    }
    const CachedSequence in_cache = cached(index);
    s.cache_row = in_cache.cache_row;
    s.seqlen_k = in_cache.length;
    s.dead = in_cache.dead;
    if (cache.cache_leftpad != nullptr) s.first_key = std::max(cache.cache_leftpad[index], 0);
    return s;
  }

  /// Returns the place of the keys from `key` on.
  [[nodiscard]] CacheRun run(const DecodeSequence& s, std::int64_t key) const {
    const CachePlace at = place(s.cache_row, key);
    return {at.block, at.row, std::min(block_size - at.row, s.seqlen_k - key)};
  }

  /// Returns the keys that a query row sees, including those that a tree hides or that do not exist.
  [[nodiscard]] KeyRange keys_of_row(const DecodeSequence& s, std::int64_t i) const {
    const KeyRange keys = WindowMask{s.seqlen_q, s.seqlen_k, window_left, window_right}.row(i);
    const std::int64_t begin = std::max(keys.begin, s.first_key);
    return {begin, std::max(begin, keys.end)};
  }

  /// Returns whether a tree hides key j from row i.
  [[nodiscard]] bool tree_hides(const DecodeSequence& s, std::int64_t i, std::int64_t j) const {
    if (tree_mask == nullptr) return false;
    const std::int64_t bit = j - (s.seqlen_k - s.seqlen_q);
    return bit >= 0 && (tree_word(s, i) >> bit & 1) == 0;
  }
  [[nodiscard]] std::uint64_t tree_word(const DecodeSequence& s, std::int64_t i) const {
    return tree_mask[s.batch * max_seqlen_q + s.q_begin + i];  // batch is 0 if packed
  }
};

/// Returns the rows of q, o or lse of a sequence and query head.
[[nodiscard]] inline Matrix q_matrix(const Tensor& t, const DecodeSequence& s, std::int64_t head) {
  return {element(t, s.batch, head, s.q_begin), t.dtype, s.seqlen_q, t.shape[3], t.stride[2]};
}

/// Checks the arguments of attend::decode and resolves the defaults. Throws Error naming the first invalid argument.
/// For tensors on a CPU, also checks cu_seqlens_q, and with ATTEND_CHECK=1 the contents of CacheIndex's arrays.
[[nodiscard]] DecodeProblem make_decode_problem(const DecodeCall& call);

}  // namespace attend::core
