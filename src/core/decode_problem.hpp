// A checked decode call: all defaults are resolved and all sizes are verified. Holds no memory of its own and does not
// depend on hardware.
//
// Only make_decode_problem reads the user's arguments. The backends rely on the fields of a DecodeProblem. The
// computation reads the arrays on the tensors' device (lengths, tables, row offsets). If the device is a CPU,
// DecodeSequence and CacheRun hold the values read from them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "attend/serving.hpp"
#include "core/cache_layout.hpp"
#include "core/problem.hpp"
#include "kernels/attention/key_range.cuh"

namespace attend::core {

constexpr std::int64_t kMaxDecodeHeadDim = 1024;  // upper limit for q and k; DeepSeek's models have 576
constexpr std::int64_t kMaxTreeRows = 64;

/// The properties of one sequence of a decode call.
struct DecodeSequence {
  std::int64_t index;
  std::int64_t batch;    ///< index into the batch dimension of q, o and lse
  std::int64_t q_begin;  ///< first row of the sequence
  std::int64_t seqlen_q;
  std::int64_t seqlen_k;   ///< length, clamped to the capacity; 0 for a dead sequence
  std::int64_t first_key;  ///< first visible key
  std::int64_t cache_row;  ///< row of a contiguous cache, or row of the page table
  bool dead;               ///< true if the sequence is not computed (see CacheIndex)
};

/// Keys whose addresses are one row stride apart. The first is row `row` of batch entry `block` of k and v.
struct CacheRun {
  std::int64_t block;  ///< -1 if the keys do not exist
  std::int64_t row;
  std::int64_t count;
};

struct DecodeProblem : CacheLayout {
  Tensor q, k, v, o;
  std::optional<Tensor> lse;           ///< (batch, num_heads_q, seqlen_q, 1)
  std::optional<Tensor> alibi_slopes;  ///< (num_sequences, num_heads_q, 1, 1), broadcast dimensions expanded
  std::optional<Tensor> sinks;         ///< (num_sequences, num_heads_q, 1, 1), broadcast dimensions expanded
  const std::int32_t* cu_seqlens_q = nullptr;
  const std::uint64_t* tree_mask = nullptr;

  std::int64_t num_sequences = 0;
  std::int64_t num_heads_q = 0;
  std::int64_t num_heads_k = 0;
  std::int64_t max_seqlen_q = 0;
  std::int64_t head_dim = 0;
  std::int64_t head_dim_v = 0;

  double scale = 1.0;
  double transform_cap = 0.0;  ///< cap of the score transform; 0 means no transform
  std::int64_t window_left = kOpenWindow;
  std::int64_t window_right = kOpenWindow;  ///< 0 if causal
  bool lse_base2 = false;

  /// Returns the number of query heads per key head, or 0 if there are no heads.
  [[nodiscard]] std::int64_t heads_per_group() const { return num_heads_k == 0 ? 0 : num_heads_q / num_heads_k; }
  [[nodiscard]] bool transforms_scores() const { return transform_cap != 0; }

  // The functions below require that the tensors are in host memory.

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

  /// Returns the longest run of keys, starting with `key`, that are neighbours in the cache.
  [[nodiscard]] CacheRun run(const DecodeSequence& s, std::int64_t key) const {
    const CachePlace at = place(s.cache_row, key);
    return {at.block, at.row, std::min(block_size - at.row, s.seqlen_k - key)};
  }

  /// Returns the range of keys that the window lets row i see. The range may contain keys that a tree mask hides or
  /// that do not exist.
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
    return tree_mask[s.batch * max_seqlen_q + s.q_begin + i];  // if packed, the batch index is 0
  }
};

/// Returns the rows of one sequence and query head in q, o or lse.
[[nodiscard]] inline Matrix q_matrix(const Tensor& t, const DecodeSequence& s, std::int64_t head) {
  return {element(t, s.batch, head, s.q_begin), t.dtype, s.seqlen_q, t.shape[3], t.stride[2]};
}

/// Checks the arguments of attend::decode and resolves the defaults. Throws Error naming the first invalid argument.
/// For tensors on a CPU, also checks cu_seqlens_q. With ATTEND_CHECK=1, checks the contents of the arrays in CacheIndex
/// too.
[[nodiscard]] DecodeProblem make_decode_problem(const DecodeCall& call);

}  // namespace attend::core
