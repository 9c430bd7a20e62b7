// A checked decode call: every default resolved, every size verified, nothing allocated. Knows no hardware.
//
// make_decode_problem is the only place that looks at what a user passed; the backends trust a DecodeProblem. What lies
// in arrays on the tensors' device (lengths, tables, offsets of rows) is read by whoever computes, through DecodeSequence
// and CacheRun on the host.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "attend/serving.hpp"
#include "core/problem.hpp"
#include "kernels/attention/key_range.cuh"

namespace attend::core {

constexpr std::int64_t kMaxDecodeHeadDim = 1024;  // of q and k: 576 is DeepSeek's
constexpr std::int64_t kMaxTreeRows = 64;

/// One sequence of a decode call.
struct DecodeSequence {
  std::int64_t index;
  std::int64_t batch;      ///< index into the batch dimension of q, o and lse
  std::int64_t q_begin;    ///< its first row there
  std::int64_t seqlen_q;
  std::int64_t seqlen_k;   ///< clamped to the capacity; of a dead sequence 0
  std::int64_t first_key;  ///< keys before it are not seen
  std::int64_t cache_row;  ///< of a contiguous cache; of a paged one the row of the table
  bool dead;               ///< see CacheIndex
};

/// Keys that lie one row stride apart: from row `row` of batch entry `block` of k and v on.
struct CacheRun {
  std::int64_t block;  ///< -1: these keys do not exist
  std::int64_t row;
  std::int64_t count;
};

struct DecodeProblem {
  Tensor q, k, v, o;
  std::optional<Tensor> lse;           ///< (batch, num_heads_q, seqlen_q, 1)
  std::optional<Tensor> alibi_slopes;  ///< (num_sequences, num_heads_q, 1, 1), expanded
  std::optional<Tensor> sinks;         ///< likewise
  CacheIndex cache;
  const std::int32_t* cu_seqlens_q = nullptr;
  const std::uint64_t* tree_mask = nullptr;

  std::int64_t num_sequences = 0;
  std::int64_t num_heads_q = 0;
  std::int64_t num_heads_k = 0;
  std::int64_t max_seqlen_q = 0;
  std::int64_t head_dim = 0;
  std::int64_t head_dim_v = 0;
  std::int64_t block_size = 0;  ///< keys of a page; of a contiguous cache its capacity
  std::int64_t capacity = 0;    ///< keys that a sequence may have

  double scale = 1.0;
  double transform_cap = 0.0;  ///< as in Problem
  std::int64_t window_left = kOpenWindow;
  std::int64_t window_right = kOpenWindow;  ///< causal is 0
  bool lse_base2 = false;

  [[nodiscard]] std::int64_t heads_per_group() const { return num_heads_q / num_heads_k; }
  [[nodiscard]] bool transforms_scores() const { return transform_cap != 0; }

  // Of tensors on the host:

  [[nodiscard]] DecodeSequence sequence(std::int64_t index) const {
    DecodeSequence s = {index, index, 0, max_seqlen_q, 0, 0, index, true};
    if (cu_seqlens_q != nullptr) {
      s.batch = 0;
      s.q_begin = cu_seqlens_q[index];
      s.seqlen_q = cu_seqlens_q[index + 1] - s.q_begin;
    }
    if (cache.cache_batch_idx != nullptr) s.cache_row = cache.cache_batch_idx[index];
    if (s.cache_row < 0 || s.cache_row >= cache_rows()) return s;
    const std::int64_t length = cache.seqlens_k != nullptr ? cache.seqlens_k[index] : capacity;
    s.dead = length < 0;
    s.seqlen_k = std::clamp<std::int64_t>(length, 0, capacity);
    if (cache.cache_leftpad != nullptr) s.first_key = std::max(cache.cache_leftpad[index], 0);
    return s;
  }

  /// Rows that CacheIndex::cache_batch_idx may name.
  [[nodiscard]] std::int64_t cache_rows() const { return cache.page_table ? cache.page_table->num_rows : k.shape[0]; }

  /// Where the keys from `key` on lie.
  [[nodiscard]] CacheRun run(const DecodeSequence& s, std::int64_t key) const {
    if (!cache.page_table) return {s.cache_row, key, s.seqlen_k - key};
    const PageTable& table = *cache.page_table;
    const std::int64_t row = key % block_size;
    const std::int64_t page = table.pages[s.cache_row * table.row_stride + key / block_size];
    const bool exists = page >= 0 && page < k.shape[0];
    return {exists ? page : -1, row, std::min(block_size - row, s.seqlen_k - key)};
  }

  /// Keys that a query row sees, but for those that a tree hides or that do not exist.
  [[nodiscard]] KeyRange keys_of_row(const DecodeSequence& s, std::int64_t i) const {
    const KeyRange keys = WindowMask{s.seqlen_q, s.seqlen_k, window_left, window_right}.row(i);
    const std::int64_t begin = std::max(keys.begin, s.first_key);
    return {begin, std::max(begin, keys.end)};
  }

  /// Does a tree hide key j from row i?
  [[nodiscard]] bool tree_hides(const DecodeSequence& s, std::int64_t i, std::int64_t j) const {
    if (tree_mask == nullptr) return false;
    const std::int64_t bit = j - (s.seqlen_k - s.seqlen_q);
    return bit >= 0 && (tree_word(s, i) >> bit & 1) == 0;
  }
  [[nodiscard]] std::uint64_t tree_word(const DecodeSequence& s, std::int64_t i) const {
    return tree_mask[s.batch * max_seqlen_q + s.q_begin + i];  // packed: batch is 0
  }
};

/// Rows of q, o or lse of a sequence and query head.
[[nodiscard]] inline Matrix q_matrix(const Tensor& t, const DecodeSequence& s, std::int64_t head) {
  return {element(t, s.batch, head, s.q_begin), t.dtype, s.seqlen_q, t.shape[3], t.stride[2]};
}

/// Checks the arguments of attend::decode and resolves the defaults. Throws Error naming the first argument at fault.
/// Of tensors on a CPU cu_seqlens_q is checked too, and with ATTEND_CHECK=1 what CacheIndex's arrays hold.
[[nodiscard]] DecodeProblem make_decode_problem(const DecodeCall& call);

}  // namespace attend::core
