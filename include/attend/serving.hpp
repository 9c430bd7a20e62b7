// Attention for serving: a few query rows of each sequence against a cache of keys and values.
//
//   attend::append({.k = k_new, .v = v_new, .k_cache = k_cache, .v_cache = v_cache, .cache = cache});
//   attend::decode({.q = q, .k_cache = k_cache, .v_cache = v_cache, .o = o, .cache = cache});
//
// append() writes new keys and values into a cache, decode() reads it, merge() joins results over different keys.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "attend/attention.hpp"
#include "attend/error.hpp"
#include "attend/export.hpp"
#include "attend/tensor.hpp"

namespace attend {

/// Which pages of a paged cache hold the keys of a sequence. Row r lists pages: entry n is the page with the keys from
/// n * page_size on.
struct PageTable {
  const std::int32_t* pages = nullptr;  ///< (num_rows, pages_per_row), on the tensors' device
  std::int64_t num_rows = 0;
  std::int64_t pages_per_row = 0;
  std::int64_t row_stride = 0;  ///< entries from row to row, >= pages_per_row
};

/// Where the keys of each sequence lie in a cache. The arrays lie on the tensors' device, and are read when the call
/// runs there: a CUDA graph may be replayed while they change.
///
///   contiguous  k_cache is (cache_rows, num_heads_k, capacity, head_dim). Key j of a sequence is row j of its cache row
///   paged       k_cache is (num_pages, num_heads_k, page_size, head_dim). Key j of a sequence is row j % page_size of
///               the page that entry j / page_size of its table row names. The capacity is pages_per_row * page_size
///
/// Strides are free in both (a cache with heads after tokens is the same view with other strides), and the memory of
/// k_cache and v_cache may overlap. page_size is any number from 1 on. Sequences may share pages.
///
/// A sequence with a negative length is dead: nothing of it is read or written, and its rows of o are 0 and of lse -inf.
/// So is one whose cache row, or table row, does not exist. A length above the capacity counts as the capacity. A key
/// whose page does not exist (-1, say) is not seen. Nothing beyond a length, in a page that does not exist, or left of
/// the window of all rows is read, so that it may be NaN. With the environment variable ATTEND_CHECK=1 the calls refuse
/// a row, length or page that does not exist, and name the entry.
struct CacheIndex {
  const std::int32_t* seqlens_k = nullptr;      ///< (num_sequences): keys in the cache. Null: all are at capacity
  std::optional<PageTable> page_table = {};     ///< absent: the cache is contiguous
  const std::int32_t* cache_batch_idx = nullptr;  ///< (num_sequences): the sequence's cache row, or table row. Null: s
  const std::int32_t* cache_leftpad = nullptr;    ///< (num_sequences): keys before it are not seen. Null: 0
};

/// Options of decode(). Every default but `causal` means "off". The meaning of those that Params has too is the same,
/// with off = seqlen_k - seqlen_q of the sequence, so that masks align bottom right.
struct DecodeParams {
  std::optional<double> scale = {};  ///< unset: 1/sqrt(head_dim)
  bool causal = true;                ///< keep j <= i + off
  std::int64_t window_left = -1;     ///< keep j >= i + off - window_left; -1: open
  std::int64_t window_right = -1;    ///< keep j <= i + off + window_right; -1: open
  double softcap = 0.0;
  std::optional<ConstTensor> alibi_slopes = {};  ///< f32 (1 or num_sequences, num_heads_q, 1, 1)
  std::optional<ConstTensor> sinks = {};         ///< any float type (1 or num_sequences, num_heads_q, 1, 1)
  /// Packed query rows: q is (1, num_heads_q, total_q, head_dim), and sequence s owns the rows [cu_seqlens_q[s],
  /// cu_seqlens_q[s+1]). (num_sequences + 1), on the tensors' device, starts at 0, never decreases, and ends at total_q
  /// or before it. Rows behind the last sequence's are not written.
  const std::int32_t* cu_seqlens_q = nullptr;
  std::int64_t num_sequences = 0;  ///< with cu_seqlens_q only
  std::int64_t max_seqlen_q = 0;   ///< with cu_seqlens_q only: an upper bound of the query rows of a sequence
  /// A tree of drafts: one word a query row, (num_sequences, seqlen_q), with cu_seqlens_q (total_q), on the tensors'
  /// device. Row i of a sequence sees key off + j where bit j of its word is 1, and all keys before off. It takes the
  /// place of `causal`; at most 64 query rows a sequence.
  const std::uint64_t* tree_mask = nullptr;
  bool lse_base2 = false;               ///< lse is the logarithm to the base 2, not the natural one
  std::string_view compute = "auto";    ///< "cpu", "reference", or "auto"
};

/// The arguments of decode. All tensors lie on the device of q.
struct DecodeCall {
  /// f32, f16 or bf16 (num_sequences, num_heads_q, seqlen_q, head_dim), or packed: DecodeParams::cu_seqlens_q. 1 <=
  /// head_dim <= 1024
  ConstTensor q;
  /// Of q's dtype, see CacheIndex. num_heads_q is a multiple of num_heads_k, and query head h reads key head
  /// h / (num_heads_q / num_heads_k)
  ConstTensor k_cache;
  /// Like k_cache, with head_dim_v columns. Absent: the values are the first head_dim_v columns of the keys (DeepSeek's
  /// multi-head latent attention)
  std::optional<ConstTensor> v_cache = {};
  Tensor o;  ///< out, dtype of q, shape of q with head_dim_v columns, 1 <= head_dim_v <= 512. Overlaps no input
  /// Out, f32, (num_sequences, num_heads_q, seqlen_q, 1), or packed likewise: log of sum_j exp(s[i,j]), with exp(sink)
  /// in the sum if there are sinks
  std::optional<Tensor> lse = {};
  CacheIndex cache = {};
  DecodeParams params = {};
  Stream stream = nullptr;  ///< of a GPU; as in ForwardCall
};

/// o = softmax(scale * q k^T + options) v over the cached keys of each sequence: decoding, verification of drafts,
/// chunked prefill, and any mixture of them in one call.
///
/// Deterministic and batch-invariant: keys are cut into chunks by their own position and merged in an order that
/// follows from it. So the bits of a row's result are the same alone and in any batch, for any page size and any number
/// of threads, and whichever other rows of its sequence the call has.
/// A row that sees no key gives o = 0 and lse = -inf, or its sink. NaN and inf reach the rows that see them, and no
/// others. Thread-safe.
/// @throws Error naming the argument, the value found and what is allowed; then nothing was written.
/// Source: Dao, Haziza, Massa & Sizov, Flash-Decoding for long-context inference (2023)
ATTEND_API void decode(const DecodeCall& call);

}  // namespace attend
