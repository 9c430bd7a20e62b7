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
  std::int64_t num_rows = 0;            ///< of the table
  std::int64_t pages_per_row = 0;       ///< entries of a row
  std::int64_t row_stride = 0;          ///< entries from row to row, >= 0. 0: all rows are one
};

/// Where the keys of each sequence lie in a cache. The arrays lie on the tensors' device, and are read when the call
/// runs there: a CUDA graph may be replayed while they change.
///
///   contiguous  k_cache is (cache_rows, num_heads_k, capacity, head_dim). Key j of a sequence is row j of the
///               sequence's cache row
///   paged       k_cache is (num_pages, num_heads_k, page_size, head_dim). Key j of a sequence is row j % page_size of
///               the page that entry j / page_size of its table row names. The capacity is pages_per_row * page_size
///
/// Strides are free in both (a cache with heads after tokens is the same view with other strides), and the memory of
/// k_cache and v_cache may overlap. page_size is any number from 1 on. Sequences may share pages.
///
/// A sequence with a negative length is dead: nothing of its cache is read or written, its rows of o are 0 and those of
/// lse -inf. So is one whose cache row, or table row, does not exist. A length above the capacity counts as the
/// capacity. A key whose page does not exist (-1, say) is not seen. Nothing beyond a length, in a page that does not
/// exist, or left of the window of all rows is read, so that it may be NaN. With the environment variable
/// ATTEND_CHECK=1 the calls refuse a row, length or page that does not exist, and name the entry.
struct CacheIndex {
  const std::int32_t* seqlens_k = nullptr;        ///< (num_sequences): keys in the cache. Null: all are at capacity
  std::optional<PageTable> page_table = {};       ///< absent: the cache is contiguous
  const std::int32_t* cache_batch_idx = nullptr;  ///< (num_sequences): the sequence's cache row, or table row. Null: s
  const std::int32_t* cache_leftpad = nullptr;    ///< (num_sequences): keys before it are not seen. Null: 0
  /// Of a cache of f8e4m3 or i8, whose element x stands for the number x * descale: f32, of one of two shapes,
  ///
  ///   (1 or num_sequences, 1 or num_heads_k, 1, 1)   one factor, or one of each head, or of each sequence and head
  ///   (pages or cache rows, 1 or num_heads_k, page_size or capacity, 1)   a factor of each row of the cache
  ///
  /// with any strides >= 0. Absent: 1. The factor of a row is read if its key is, so that others may be NaN. decode()
  /// takes an infinite one for NaN. With pages or cache rows of one key, as many as there are sequences, a tensor has
  /// both shapes: it is refused. Without v_cache the values have the factors of the keys.
  std::optional<ConstTensor> k_descale = {};
  std::optional<ConstTensor> v_descale = {};  ///< likewise, of v_cache
};

/// Options of decode(). Every default but `causal` means "off". The meaning of those that Params has too is the same,
/// with off = seqlen_k - seqlen_q of the sequence, so that masks align bottom right.
struct DecodeParams {
  std::optional<double> scale = {};              ///< unset: 1/sqrt(head_dim)
  bool causal = true;                            ///< keep j <= i + off
  std::int64_t window_left = -1;                 ///< keep j >= i + off - window_left; -1: open
  std::int64_t window_right = -1;                ///< keep j <= i + off + window_right; -1: open
  double softcap = 0.0;                          ///< >= 0; 0: off
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
  bool lse_base2 = false;  ///< lse is the logarithm to the base 2, not the natural one
  /// "cpu", "reference", or "auto". On a GPU "auto" (on Hopper the kernel for training computes sequences with many
  /// rows, where it takes them: with more than 64, or more where there are fewer than 16 query heads), "decode" (all
  /// rows by the kernel for few rows) or "sm90_forward" (as "auto", from 65 rows on).
  std::string_view compute = "auto";
};

/// The arguments of decode. All tensors lie on the device of q.
struct DecodeCall {
  /// f32, f16 or bf16, or f64 for the backend `reference`. (num_sequences, num_heads_q, seqlen_q, head_dim), or packed:
  /// DecodeParams::cu_seqlens_q. 1 <= head_dim <= 1024
  ConstTensor q;
  /// Of q's dtype, or f8e4m3 or i8: see CacheIndex. num_heads_q is a multiple of num_heads_k, and query head h reads
  /// key head h / (num_heads_q / num_heads_k)
  ConstTensor k_cache;
  /// Like k_cache, of its dtype, with head_dim_v columns. Absent: the values are the first head_dim_v columns of the
  /// keys (DeepSeek's multi-head latent attention)
  std::optional<ConstTensor> v_cache = {};
  Tensor o;  ///< out, dtype of q, shape of q with head_dim_v columns, 1 <= head_dim_v <= 512. Overlaps no input
  /// Out, f32, (num_sequences, num_heads_q, seqlen_q, 1), or packed likewise: log of sum_j exp(s[i,j]), with exp(sink)
  /// in the sum if there are sinks
  std::optional<Tensor> lse = {};
  CacheIndex cache = {};     ///< where the keys of each sequence lie
  DecodeParams params = {};  ///< what is computed
  Stream stream = nullptr;   ///< of a GPU; as in ForwardCall
};

/// o = softmax(scale * q k^T + options) v over the cached keys of each sequence: decoding, verification of drafts,
/// chunked prefill, and any mixture of them in one call.
///
/// Deterministic and batch-invariant: keys are cut into chunks by their own position and merged in an order that
/// follows from it. So the bits of a row's result are the same alone and in any batch, for any page size and any number
/// of threads, and whichever other rows of its sequence the call has. On Hopper the last holds with compute "decode";
/// with "auto" it holds among all calls in which another kernel computes the sequence, and among all others.
/// A row that sees no key gives o = 0 and lse = -inf, or its sink. NaN and inf reach the rows that see them, and no
/// others; where the kernel for training computes a sequence, those of a value may reach rows of the same tile of 64.
/// Thread-safe.
/// @throws Error naming the argument, the value found and what is allowed; then nothing was written.
/// Source: Dao, Haziza, Massa & Sizov, Flash-Decoding for long-context inference (2023)
ATTEND_API void decode(const DecodeCall& call);

/// Rotary position embedding: columns of a row at position t are rotated in pairs (a, b), 0 <= c < rotary_dim / 2,
///
///   x[a]' = x[a] cos[t, c] - x[b] sin[t, c],   x[b]' = x[b] cos[t, c] + x[a] sin[t, c]
///
/// with a = c and b = c + rotary_dim / 2, or, interleaved, a = 2c and b = 2c + 1, both counted from first_column. Other
/// columns stay as they are. A position outside [0, max_positions) counts as the nearest one inside; with
/// ATTEND_CHECK=1 it is refused.
/// Source: Su et al., RoFormer (2021), section 3.2
struct Rotary {
  ConstTensor cos;                        ///< any float type (1, 1, max_positions, rotary_dim / 2), max_positions >= 1
  ConstTensor sin;                        ///< likewise, of the same shape
  bool interleaved = false;               ///< pairs are neighbours, not halves
  std::int64_t first_column = 0;          ///< first_column + rotary_dim <= head_dim
  const std::int32_t* seqlens = nullptr;  ///< (num_sequences): in the place of seqlens_k in a row's position
};

/// The positions of a sequence's query rows in append().
enum class QueryPositions : std::uint8_t {
  kLast,   ///< row i has the position of new row i + seqlen_new - seqlen_q: the last rows are at the same position
  kFirst,  ///< row i has the position of new row i: FlashAttention's rule where it masks
  kOne,    ///< every row has the position of new row 0: FlashAttention's rule where it does not mask
};

/// The arguments of append. All tensors and arrays lie on the device of k. Dtypes are f32, f16 or bf16 but where
/// something else is said.
struct AppendCall {
  /// New keys (num_sequences, num_heads_k, seqlen_new, head_dim), 1 <= head_dim <= 1024, or packed: cu_seqlens_new
  ConstTensor k;
  std::optional<ConstTensor> v = {};  ///< like k, with 1 <= head_dim_v <= 512 columns. Absent: keys only
  /// See CacheIndex; num_heads_k and head_dim of k. Its dtype may be another one, f8e4m3 and i8 too
  Tensor k_cache;
  std::optional<Tensor> v_cache = {};  ///< with v: likewise, of the first three dimensions of k_cache
  /// New row i of sequence s becomes key seqlens_k[s] + i, where seqlens_k is not null. Rows beyond the capacity, and
  /// rows whose page does not exist, are dropped; with ATTEND_CHECK=1 they are refused. leftpad plays no part
  CacheIndex cache = {};
  /// Packed new keys: k is (1, num_heads_k, total_new, head_dim), and sequence s owns the rows [cu_seqlens_new[s],
  /// cu_seqlens_new[s+1]). As DecodeParams::cu_seqlens_q
  const std::int32_t* cu_seqlens_new = nullptr;
  std::int64_t num_sequences = 0;   ///< with cu_seqlens_new only
  std::int64_t max_seqlen_new = 0;  ///< with cu_seqlens_new only: an upper bound of the new rows of a sequence
  /// Where new rows go instead: (number of new rows), an entry for each in the order of k, batch entry by batch entry.
  /// Slot n is row n % page_size of page n / page_size; of a contiguous cache likewise with its capacity. A negative
  /// slot is skipped, and so is one that does not exist, which ATTEND_CHECK=1 refuses
  const std::int64_t* slot_mapping = nullptr;
  /// (number of new rows), as slot_mapping: the rows' positions. Null: seqlens_k[s] + i, or Rotary::seqlens[s] + i
  const std::int32_t* positions = nullptr;
  std::optional<Rotary> rotary = {};  ///< of k and q
  /// Query rows (num_sequences, num_heads_q, seqlen_q, head_dim), or packed: cu_seqlens_q. Rows of live sequences are
  /// normalised and rotated even where new rows are dropped or skipped. With `positions` each query row needs a new row
  std::optional<ConstTensor> q = {};
  std::optional<Tensor> q_out = {};  ///< with q: out, dtype and shape of q. May be q itself, with the same strides
  const std::int32_t* cu_seqlens_q = nullptr;  ///< as in DecodeParams, over q
  std::int64_t max_seqlen_q = 0;               ///< with cu_seqlens_q only: an upper bound of a sequence's query rows
  QueryPositions query_positions = QueryPositions::kLast;  ///< of q, in the rotation
  /// Weights of an RMS norm over all columns, before the rotation: x / sqrt(mean(x^2) + norm_eps) * weight. Any float
  /// type (1, 1, 1, head_dim)
  std::optional<ConstTensor> q_norm = {};
  std::optional<ConstTensor> k_norm = {};  ///< likewise
  double norm_eps = 1e-6;                  ///< finite, >= 0
  Stream stream = nullptr;                 ///< of a GPU; as in ForwardCall
};

/// Writes new keys and values into a cache: normalised, rotated, then rounded to the dtype of the cache. A row that is
/// only copied keeps its bits. All is computed in float32, so that a row's bits depend on nothing but the row, its
/// position, the tables and its descale.
///
/// A cache of f8e4m3 or i8 gets x / descale, rounded to nearest, ties to even. What lies beyond the largest number
/// becomes that: 448 or -448; 127 or -128. NaN becomes 0x7f, in i8 0. The descales are read, not chosen.
///
/// seqlens_k does not change: whoever decodes next counts the new keys. Of a dead sequence nothing is read or written.
/// No other byte of the cache is written. k_cache and v_cache may overlap as long as no written row lies in both. Two
/// new rows that go to one place leave either of them, or parts of both; ATTEND_CHECK=1 refuses them. No output
/// overlaps an input but q_out, as said; rows of q, k, v and q_out may alternate in one buffer.
/// Deterministic. Thread-safe for calls that write different rows.
/// @throws Error naming the argument, the value found and what is allowed; then nothing was written.
ATTEND_API void append(const AppendCall& call);

/// append(append), then decode(call) over the lengths of the cache plus the new rows. Both name the same cache, with
/// the lengths before the append, and as many sequences. The query rows are those of `call`: append.q, q_out,
/// cu_seqlens_q and max_seqlen_q stay unset, and q is normalised and rotated as `append` says without being written.
/// @throws Error as both do, before anything is written.
ATTEND_API void decode(const AppendCall& append, const DecodeCall& call);

/// Attention over some of the keys, as decode() or forward() gives it without sinks.
struct PartialState {
  ConstTensor o;    ///< f32, f16 or bf16 (batch, num_heads_q, seqlen_q, head_dim_v)
  ConstTensor lse;  ///< f32 (batch, num_heads_q, seqlen_q, 1)
};

/// Options of merge().
struct MergeParams {
  /// Any float type (1 or batch, num_heads_q, 1, 1): counts once in the sum of each row, so that no state has it
  std::optional<ConstTensor> sinks = {};
  bool lse_base2 = false;  ///< every lse, of states and result, is the logarithm to the base 2. Sinks stay natural
};

/// Attention over all keys from attention over parts of them that share no key:
///
///   lse = log(sum_n exp(lse_n) + exp(sink)),   o = sum_n exp(lse_n - lse) o_n
///
/// A state with an lse of -inf counts for nothing, whatever its o is. A row of which that is all gives o = 0 and lse =
/// -inf, or its sink. Another NaN or infinity reaches the row. Summed up in float64, in the order of the states.
/// @param states  at least one, on the device of o. They may differ in dtype
/// @param o       out, f32, f16 or bf16, of the states' shape. May be the o of a state, with the same dtype and
///                strides; overlaps no input otherwise
/// @param lse     out, f32, of the shape of the states' lse; may be null, or the lse of a state likewise
/// Deterministic. Thread-safe.
/// @throws Error naming the argument, the value found and what is allowed; then nothing was written.
ATTEND_API void merge(std::span<const PartialState> states, const Tensor& o, const Tensor* lse = nullptr,
                      const MergeParams& params = {}, Stream stream = nullptr);

}  // namespace attend
