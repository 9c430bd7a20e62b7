// Attention for serving: a few query rows of each sequence attend to a cache of keys and values.
//
//   attend::append({.k = k_new, .v = v_new, .k_cache = k_cache, .v_cache = v_cache, .cache = cache});
//   attend::decode({.q = q, .k_cache = k_cache, .v_cache = v_cache, .o = o, .cache = cache});
//
// append() writes new keys and values into a cache, decode() reads the cache, and merge() combines results over
// different keys.
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

/// The pages of a paged cache. Row r of the table lists the pages of one sequence: entry n is the page that holds the
/// keys from n * page_size on.
struct PageTable {
  const std::int32_t* pages = nullptr;  ///< (num_rows, pages_per_row), on the tensors' device
  std::int64_t num_rows = 0;            ///< rows of the table
  std::int64_t pages_per_row = 0;       ///< entries of a row
  std::int64_t row_stride = 0;          ///< entries from one row to the next, >= 0; 0: all rows are the same
};

/// Locates the keys of each sequence in a cache. The arrays lie on the tensors' device. A call reads them when it runs
/// there, so a CUDA graph may be replayed with new values.
///
///   contiguous: k_cache is (cache_rows, num_heads_k, capacity, head_dim). Key j of a sequence is row j of the
///               sequence's cache row.
///
///   paged:      k_cache is (num_pages, num_heads_k, page_size, head_dim). Entry j / page_size of the sequence's
///               table row names a page, and key j is row j % page_size of that page. The capacity is
///               pages_per_row * page_size.
///
/// Both layouts allow any strides: a cache with heads after tokens is the same view with other strides. The memory of
/// k_cache and v_cache may overlap. page_size is any number >= 1. Sequences may share pages.
///
/// A sequence is dead if its length is negative, or if its cache row or table row does not exist. The call then reads
/// and writes nothing in its cache, its rows of o are 0, and its rows of lse are -inf. A length above the capacity
/// counts as the capacity. A key whose page does not exist (for example -1) is not seen. The call never reads keys
/// beyond a length, in a page that does not exist, or left of the window of all rows; these keys may be NaN. With the
/// environment variable ATTEND_CHECK=1 the calls refuse a row, length or page that does not exist, and name the entry.
struct CacheIndex {
  /// (num_sequences): keys in the cache. Null: every sequence fills the capacity
  const std::int32_t* seqlens_k = nullptr;
  std::optional<PageTable> page_table = {};       ///< absent: the cache is contiguous
  const std::int32_t* cache_batch_idx = nullptr;  ///< (num_sequences): the sequence's cache row or table row. Null: s
  /// (num_sequences): first visible key; keys before it are hidden. Null: 0
  const std::int32_t* cache_leftpad = nullptr;
  /// Scale factors of a cache of f8e4m3 or i8, whose element x stands for the number x * descale. f32, any strides >=
  /// 0, in one of two shapes:
  ///
  ///   (1 or num_sequences, 1 or num_heads_k, 1, 1)   one factor in all, or per head, or per sequence and head
  ///   (pages or cache rows, 1 or num_heads_k, page_size or capacity, 1)   one factor per row of the cache
  ///
  /// If the tensor is absent, all factors are 1. The factor of a row is read only if its key is read, so other factors
  /// may be NaN. decode() treats an infinite factor as NaN. If pages or cache rows hold one key and their number equals
  /// num_sequences, a tensor fits both shapes, and the call refuses it. Without v_cache the values use the factors of
  /// the keys.
  std::optional<ConstTensor> k_descale = {};
  std::optional<ConstTensor> v_descale = {};  ///< scale factors of v_cache, likewise
};

/// Options of decode(). Every default except `causal` means "off". Fields that Params also has mean the same, with off
/// = seqlen_k - seqlen_q of the sequence: masks align to the bottom right.
struct DecodeParams {
  std::optional<double> scale = {};              ///< unset: 1/sqrt(head_dim)
  bool causal = true;                            ///< keep j <= i + off
  std::int64_t window_left = -1;                 ///< keep j >= i + off - window_left; -1: open
  std::int64_t window_right = -1;                ///< keep j <= i + off + window_right; -1: open
  double softcap = 0.0;                          ///< >= 0; 0: off
  std::optional<ConstTensor> alibi_slopes = {};  ///< f32 (1 or num_sequences, num_heads_q, 1, 1)
  std::optional<ConstTensor> sinks = {};         ///< any float type (1 or num_sequences, num_heads_q, 1, 1)
  /// Packed query rows: q is (1, num_heads_q, total_q, head_dim), and sequence s owns the rows [cu_seqlens_q[s],
  /// cu_seqlens_q[s+1]). The array has num_sequences + 1 entries on the tensors' device, starts at 0, never decreases,
  /// and ends at or before total_q. Rows after those of the last sequence are not written.
  const std::int32_t* cu_seqlens_q = nullptr;
  std::int64_t num_sequences = 0;  ///< only with cu_seqlens_q
  std::int64_t max_seqlen_q = 0;   ///< only with cu_seqlens_q: upper bound of the query rows of a sequence
  /// Tree of draft tokens: one word per query row, (num_sequences, seqlen_q), or (total_q) with cu_seqlens_q, on the
  /// tensors' device. Row i of a sequence sees all keys before off, and key off + j if bit j of its word is 1. The tree
  /// replaces `causal`. A sequence may have at most 64 query rows.
  const std::uint64_t* tree_mask = nullptr;
  bool lse_base2 = false;  ///< lse is a logarithm to base 2 instead of e
  /// "cpu", "reference", or "auto". On a GPU: "auto", "decode" (the decode kernel computes all rows) or "sm90_forward".
  /// With "auto", the training kernel on Hopper computes sequences that it supports and that have more than 64 rows;
  /// the limit is higher with fewer than 16 query heads. "sm90_forward" is like "auto", but always from 65 rows on.
  std::string_view compute = "auto";
};

/// The arguments of decode. All tensors lie on the device of q.
struct DecodeCall {
  /// Query rows: f32, f16 or bf16, or f64 for the backend `reference`. (num_sequences, num_heads_q, seqlen_q,
  /// head_dim), or packed by DecodeParams::cu_seqlens_q. 1 <= head_dim <= 1024.
  ConstTensor q;
  /// Cached keys: dtype of q, or f8e4m3 or i8. CacheIndex defines the shape. num_heads_q is a multiple of num_heads_k,
  /// and query head h reads key head h / (num_heads_q / num_heads_k).
  ConstTensor k_cache;
  /// Cached values: like k_cache, same dtype, with head_dim_v columns. Absent: the values are the first head_dim_v
  /// columns of the keys (DeepSeek's multi-head latent attention).
  std::optional<ConstTensor> v_cache = {};
  Tensor o;  ///< out, dtype of q, shape of q with head_dim_v columns, 1 <= head_dim_v <= 512. Overlaps no input
  /// Out, f32, (num_sequences, num_heads_q, seqlen_q, 1), or packed like q: log of sum_j exp(s[i,j]), with exp(sink) in
  /// the sum if there are sinks.
  std::optional<Tensor> lse = {};
  CacheIndex cache = {};     ///< locates the keys of each sequence
  DecodeParams params = {};  ///< options of the computation
  Stream stream = nullptr;   ///< stream of a GPU, as in ForwardCall
};

/// Computes o = softmax(scale * q k^T + options) v over the cached keys of each sequence. One call handles decoding,
/// verification of drafts, chunked prefill, and any mixture of them.
///
/// Deterministic and batch-invariant: the position of a key determines its chunk, and the chunks are merged in an order
/// that depends only on the keys. The bits of a row's result therefore do not depend on the batch, the page size, the
/// number of threads, or the other rows of its sequence in the call. On Hopper, "auto" weakens the last point: the bits
/// may differ between calls in which the training kernel computes the sequence and calls in which the decode kernel
/// does. compute "decode" avoids this.
///
/// A row that sees no key gives o = 0 and lse = -inf; with sinks, lse is the sink. NaN and inf reach only the rows that
/// see them. If the training kernel computes a sequence, a NaN or inf in a value may also reach other rows of the same
/// tile of 64. Thread-safe.
/// @throws Error naming the argument, the value found and the allowed values. In that case no output was written.
/// Source: Dao, Haziza, Massa & Sizov, Flash-Decoding for long-context inference (2023)
ATTEND_API void decode(const DecodeCall& call);

/// Rotary position embedding. Rotates pairs of columns (a, b) of a row at position t. For 0 <= c < rotary_dim / 2:
///
///   x[a]' = x[a] cos[t, c] - x[b] sin[t, c],   x[b]' = x[b] cos[t, c] + x[a] sin[t, c]
///
/// with a = c and b = c + rotary_dim / 2, or, interleaved, a = 2c and b = 2c + 1, counted from first_column. Other
/// columns are unchanged. A position outside [0, max_positions) is clamped to that range; with ATTEND_CHECK=1 the call
/// refuses it.
/// Source: Su et al., RoFormer (2021), section 3.2
struct Rotary {
  ConstTensor cos;                        ///< any float type (1, 1, max_positions, rotary_dim / 2), max_positions >= 1
  ConstTensor sin;                        ///< same shape, any float type
  bool interleaved = false;               ///< pairs are neighbouring columns, not columns of two halves
  std::int64_t first_column = 0;          ///< first rotated column; first_column + rotary_dim <= head_dim
  const std::int32_t* seqlens = nullptr;  ///< (num_sequences): replaces seqlens_k in the position of a row
};

/// The positions of a sequence's query rows in append().
enum class QueryPositions : std::uint8_t {
  kLast,   ///< row i has the position of new row i + seqlen_new - seqlen_q: the last rows align
  kFirst,  ///< row i has the position of new row i: FlashAttention's rule with a mask
  kOne,    ///< every row has the position of new row 0: FlashAttention's rule without a mask
};

/// The arguments of append. All tensors and arrays lie on the device of k. Dtypes are f32, f16 or bf16 unless stated
/// otherwise.
struct AppendCall {
  /// New keys (num_sequences, num_heads_k, seqlen_new, head_dim), 1 <= head_dim <= 1024, or packed by cu_seqlens_new.
  ConstTensor k;
  std::optional<ConstTensor> v = {};  ///< new values: like k, with 1 <= head_dim_v <= 512 columns. Absent: keys only
  /// Out, the cache of keys; CacheIndex defines its shape. It has the num_heads_k and head_dim of k. Its dtype may
  /// differ from that of k, and may also be f8e4m3 or i8.
  Tensor k_cache;
  std::optional<Tensor> v_cache = {};  ///< out, with v: like k_cache, with the same first three dimensions
  /// New row i of sequence s becomes key seqlens_k[s] + i; seqlens_k may be null only with slot_mapping. Rows beyond
  /// the capacity, and rows whose page does not exist, are dropped; with ATTEND_CHECK=1 the call refuses them.
  /// cache_leftpad is ignored.
  CacheIndex cache = {};
  /// Packed new keys: k is (1, num_heads_k, total_new, head_dim), and sequence s owns the rows [cu_seqlens_new[s],
  /// cu_seqlens_new[s+1]). The conditions of DecodeParams::cu_seqlens_q apply.
  const std::int32_t* cu_seqlens_new = nullptr;
  std::int64_t num_sequences = 0;   ///< only with cu_seqlens_new
  std::int64_t max_seqlen_new = 0;  ///< only with cu_seqlens_new: upper bound of the new rows of a sequence
  /// Explicit destinations, which override seqlens_k: one slot for each new row, in the order of k, batch entry by
  /// batch entry. Slot n is row n % page_size of page n / page_size; in a contiguous cache the capacity takes the role
  /// of page_size. A negative slot is skipped. A slot that does not exist is skipped too, but ATTEND_CHECK=1 refuses
  /// it.
  const std::int64_t* slot_mapping = nullptr;
  /// The rows' positions, one for each new row, in the order of slot_mapping. Null: seqlens_k[s] + i, or
  /// Rotary::seqlens[s] + i.
  const std::int32_t* positions = nullptr;
  std::optional<Rotary> rotary = {};  ///< rotation of k and q
  /// Query rows (num_sequences, num_heads_q, seqlen_q, head_dim), or packed by cu_seqlens_q. Rows of live sequences are
  /// normalised and rotated even if new rows are dropped or skipped. With `positions` each query row needs a new row.
  std::optional<ConstTensor> q = {};
  std::optional<Tensor> q_out = {};  ///< out, with q: dtype and shape of q. May be q itself, with the same strides
  const std::int32_t* cu_seqlens_q = nullptr;  ///< packs q, as in DecodeParams
  std::int64_t max_seqlen_q = 0;               ///< only with cu_seqlens_q: upper bound of the query rows of a sequence
  QueryPositions query_positions = QueryPositions::kLast;  ///< positions of q in the rotation
  /// Weights of an RMS norm of q over all columns, before the rotation: x / sqrt(mean(x^2) + norm_eps) * weight. Any
  /// float type (1, 1, 1, head_dim).
  std::optional<ConstTensor> q_norm = {};
  std::optional<ConstTensor> k_norm = {};  ///< weights of an RMS norm of k, likewise
  double norm_eps = 1e-6;                  ///< finite, >= 0
  Stream stream = nullptr;                 ///< stream of a GPU, as in ForwardCall
};

/// Writes new keys and values into a cache. Each row is normalised, rotated, and then rounded to the dtype of the
/// cache. A row that is only copied keeps its bits. The arithmetic is float32, and a row's bits depend only on the row,
/// its position, the tables and its descale.
///
/// A cache of f8e4m3 or i8 receives x / descale, rounded to nearest, ties to even. Values out of range saturate: f8e4m3
/// at 448 and -448, i8 at 127 and -128. NaN becomes 0x7f, in i8 0. The call reads the descales and never chooses them.
///
/// The call does not change seqlens_k: the caller adds the new keys to the lengths before the next decode. It reads and
/// writes nothing of a dead sequence, and no cache byte other than those of the new rows. k_cache and v_cache may
/// overlap as long as no written row lies in both. If two new rows have the same destination, it holds either row or
/// parts of both; ATTEND_CHECK=1 refuses such rows. No output may overlap an input, except q_out as stated. Rows of q,
/// k, v and q_out may alternate in one buffer. Deterministic. Thread-safe for calls that write different rows.
/// @throws Error naming the argument, the value found and the allowed values. In that case no output was written.
ATTEND_API void append(const AppendCall& call);

/// Runs append(append), then decode(call) over the lengths of the cache plus the new rows. Both arguments name the same
/// cache, with the lengths before the append, and the same number of sequences. The query rows are those of `call`:
/// append.q, q_out, cu_seqlens_q and max_seqlen_q stay unset. q is normalised and rotated as `append` specifies,
/// without being written to memory.
/// @throws Error as both functions do, before anything is written.
ATTEND_API void decode(const AppendCall& append, const DecodeCall& call);

/// Attention over some of the keys, as computed by decode() or forward() without sinks.
struct PartialState {
  ConstTensor o;    ///< f32, f16 or bf16 (batch, num_heads_q, seqlen_q, head_dim_v)
  ConstTensor lse;  ///< f32 (batch, num_heads_q, seqlen_q, 1)
};

/// Options of merge().
struct MergeParams {
  /// Any float type (1 or batch, num_heads_q, 1, 1). The sink counts once in the sum of each row, so the states must
  /// not include it.
  std::optional<ConstTensor> sinks = {};
  bool lse_base2 = false;  ///< every lse, of states and result, is a logarithm to base 2; sinks stay natural logarithms
};

/// Combines attention over disjoint sets of keys into attention over all keys:
///
///   lse = log(sum_n exp(lse_n) + exp(sink)),   o = sum_n exp(lse_n - lse) o_n
///
/// A state with lse = -inf is ignored, whatever its o is. A row with only such states gives o = 0 and lse = -inf; with
/// sinks, lse is the sink. Any other NaN or infinity reaches the row. The sums are float64, in the order of the states.
/// Deterministic. Thread-safe.
/// @param states  at least one, on the device of o. They may differ in dtype
/// @param o       out, f32, f16 or bf16, same shape as in the states. May be the o of a state, with the same dtype and
///   strides; otherwise it overlaps no input
/// @param lse     out, f32, same shape as the lse of the states. May be null, or the lse of a state, as for o
/// @throws Error naming the argument, the value found and the allowed values. In that case no output was written.
ATTEND_API void merge(std::span<const PartialState> states, const Tensor& o, const Tensor* lse = nullptr,
                      const MergeParams& params = {}, Stream stream = nullptr);

}  // namespace attend
