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

/// The pages of a paged cache. Each row of the table lists the pages of one sequence. Entry n is the number of the page
/// that holds the keys from n * page_size on.
struct PageTable {
  const std::int32_t* pages = nullptr;  ///< the table: (num_rows, pages_per_row) page numbers, on the tensors' device
  std::int64_t num_rows = 0;            ///< number of rows in the table
  std::int64_t pages_per_row = 0;       ///< number of entries in a row
  std::int64_t row_stride = 0;          ///< distance in entries between rows, >= 0; if 0, all rows are the same
};

/// Locates the keys of each sequence in a cache. The arrays are on the tensors' device. The computation reads them
/// there, so a CUDA graph may be replayed with new values.
///
/// In a contiguous cache, k_cache is (cache_rows, num_heads_k, capacity, head_dim). Key j of a sequence is row j of the
/// sequence's cache row.
///
/// In a paged cache, k_cache is (num_pages, num_heads_k, page_size, head_dim). Entry j / page_size of the sequence's
/// table row is the number of a page, and key j is row j % page_size of that page. The capacity is pages_per_row *
/// page_size.
///
/// Both layouts allow any strides. A cache that stores heads after tokens is therefore described by the same view with
/// other strides. The memory of k_cache and v_cache may overlap. page_size is any number >= 1. Sequences may share
/// pages.
///
/// A sequence is dead if its length is negative, or if its cache row or table row does not exist. The call then
/// accesses no cache data of the sequence. It writes 0 to the sequence's rows of o, and -inf to the sequence's rows of
/// lse. A length above the capacity is treated as the capacity. If the page of a key does not exist (for example, if
/// its number is -1), no row sees the key. The call never reads a key beyond the sequence's length, in a page that does
/// not exist, or before the windows of all rows. Such keys may be NaN. If the environment variable ATTEND_CHECK is 1,
/// the calls refuse a row, length or page that does not exist, and the error names the entry.
struct CacheIndex {
  /// Number of keys that each sequence has in the cache: num_sequences elements. If null, every sequence fills the
  /// capacity.
  const std::int32_t* seqlens_k = nullptr;
  std::optional<PageTable> page_table = {};  ///< if unset, the cache is contiguous
  /// Cache row or table row of each sequence: num_sequences elements. If null, it is the number of the sequence.
  const std::int32_t* cache_batch_idx = nullptr;
  /// First visible key of each sequence: num_sequences elements. Keys before that key are hidden. If null, all keys are
  /// visible.
  const std::int32_t* cache_leftpad = nullptr;
  /// Scale factors of a cache of f8e4m3 or i8. An element x represents the number x * descale. The tensor is f32 with
  /// any strides >= 0 and has one of two shapes:
  ///
  ///   (1 or num_sequences, 1 or num_heads_k, 1, 1)   one factor in all, or per head, or per sequence and head
  ///   (pages or cache rows, 1 or num_heads_k, page_size or capacity, 1)   one factor per row of the cache
  ///
  /// If the tensor is absent, all factors are 1. The factor of a cache row is read only if the key in that row is read,
  /// so the factors of other rows may be NaN. decode() treats an infinite factor as NaN. If pages or cache rows hold
  /// one key each and their number equals num_sequences, a tensor can match both shapes. The call refuses such a
  /// tensor. If there is no v_cache, the factors of the keys also apply to the values.
  std::optional<ConstTensor> k_descale = {};
  /// Scale factors of v_cache, with the dtype and the two possible shapes of k_descale.
  std::optional<ConstTensor> v_descale = {};
};

/// Options of decode(). By default every option except `causal` is off. Fields that Params also has mean the same. off
/// is seqlen_k - seqlen_q of the sequence. Masks are aligned to the bottom right corner.
struct DecodeParams {
  std::optional<double> scale = {};  ///< factor of the products q.k; if unset, it is 1/sqrt(head_dim)
  bool causal = true;                ///< if true, row i sees keys j <= i + off
  std::int64_t window_left = -1;     ///< row i sees keys j >= i + off - window_left; -1 means no limit
  std::int64_t window_right = -1;    ///< row i sees keys j <= i + off + window_right; -1 means no limit
  double softcap = 0.0;              ///< soft limit of the scores, >= 0; 0 means no limit
  /// Slopes of ALiBi: f32, shape (1 or num_sequences, num_heads_q, 1, 1).
  std::optional<ConstTensor> alibi_slopes = {};
  /// sinks: any float type, shape (1 or num_sequences, num_heads_q, 1, 1).
  std::optional<ConstTensor> sinks = {};
  /// Set if query rows are packed. q is then (1, num_heads_q, total_q, head_dim), and sequence s has the rows
  /// [cu_seqlens_q[s], cu_seqlens_q[s+1]). The array has num_sequences + 1 entries on the tensors' device, starts at 0,
  /// never decreases, and ends at or before total_q. Rows after those of the last sequence are not written.
  const std::int32_t* cu_seqlens_q = nullptr;
  std::int64_t num_sequences = 0;  ///< used only with cu_seqlens_q
  /// Used only with cu_seqlens_q: upper bound of the number of query rows of a sequence.
  std::int64_t max_seqlen_q = 0;
  /// Tree of draft tokens, as one word for each query row. The array is on the tensors' device. Its shape is
  /// (num_sequences, seqlen_q), or (total_q) with cu_seqlens_q. Row i of a sequence sees all keys before key off. It
  /// also sees key off + j if bit j of its word is 1. The tree replaces `causal`. A sequence may have at most 64 query
  /// rows.
  const std::uint64_t* tree_mask = nullptr;
  bool lse_base2 = false;  ///< if true, lse is a logarithm to base 2 instead of e
  /// Backend. On a CPU the values are "auto", "cpu" and "reference". On a GPU they are "auto", "decode" and
  /// "sm90_forward". With "decode", the decode kernel computes all rows. With "auto" on Hopper, the training kernel
  /// computes every sequence of more than 64 rows whose options it supports. The limit is higher than 64 if there are
  /// fewer than 16 query heads. "sm90_forward" differs from "auto" only in that the limit is always 64.
  std::string_view compute = "auto";
};

/// The arguments of decode. All tensors must be on the device of q.
struct DecodeCall {
  /// Query rows, of shape (num_sequences, num_heads_q, seqlen_q, head_dim) with 1 <= head_dim <= 1024. With
  /// DecodeParams::cu_seqlens_q, the shape is (1, num_heads_q, total_q, head_dim). The dtype is f32, f16 or bf16. The
  /// backend `reference` also supports f64.
  ConstTensor q;
  /// Cached keys. The dtype is that of q, or f8e4m3 or i8. CacheIndex defines the shape. num_heads_q is a multiple of
  /// num_heads_k, and query head h reads key head h / (num_heads_q / num_heads_k).
  ConstTensor k_cache;
  /// Cached values, with the dtype and shape of k_cache, except that there are head_dim_v columns. If absent, the
  /// values are the first head_dim_v columns of the keys, as in DeepSeek's multi-head latent attention.
  std::optional<ConstTensor> v_cache = {};
  /// Output, with the dtype and shape of q, except that there are head_dim_v columns. 1 <= head_dim_v <= 512. Must not
  /// overlap an input.
  Tensor o;
  /// Output, f32: the logarithm of sum_j exp(s[i,j]). If there are sinks, the sum includes exp(sink). The shape is
  /// (num_sequences, num_heads_q, seqlen_q, 1). If q is packed, it is (1, num_heads_q, total_q, 1).
  std::optional<Tensor> lse = {};
  CacheIndex cache = {};     ///< locates the keys of each sequence
  DecodeParams params = {};  ///< options of the computation
  Stream stream = nullptr;   ///< stream of a GPU; decode returns before the GPU has finished
};

/// Computes o = softmax(scale * q k^T + options) v over the cached keys of each sequence. One call handles decoding,
/// verification of drafts, chunked prefill, and any mixture of them.
///
/// The result is deterministic and batch-invariant. The position of a key determines its chunk, and the chunks are
/// merged in an order that depends only on the keys. The bits of a row's result therefore do not depend on the batch,
/// the page size, the number of threads, or the other rows of its sequence in the call. On Hopper, "auto" is an
/// exception. The training kernel may compute a sequence in one call, and the decode kernel may compute the same
/// sequence in another call. The bits of the two results may differ. If compute is "decode", the decode kernel is
/// always used.
///
/// A row that sees no key gives o = 0. Its lse is -inf, or the sink if there are sinks. NaN and inf reach only the rows
/// that see them. If the training kernel computes a sequence, a NaN or inf in a value may also reach other rows of the
/// same tile of 64 rows. The function is thread-safe.
/// @throws Error naming the argument, the value found and the allowed values. If it throws, no output has been written.
/// Source: Dao, Haziza, Massa & Sizov, Flash-Decoding for long-context inference (2023)
ATTEND_API void decode(const DecodeCall& call);

/// Rotary position embedding. It rotates pairs of columns (a, b) of a row at position t. For 0 <= c < rotary_dim / 2:
///
///   x[a]' = x[a] cos[t, c] - x[b] sin[t, c],   x[b]' = x[b] cos[t, c] + x[a] sin[t, c]
///
/// where a = c and b = c + rotary_dim / 2. If `interleaved` is true, a = 2c and b = 2c + 1. Columns are counted from
/// first_column. Other columns are unchanged. A position outside [0, max_positions) is clamped to that range; with
/// ATTEND_CHECK=1 the call refuses it.
///
/// Source: Su et al., RoFormer (2021), section 3.2
struct Rotary {
  ConstTensor cos;  ///< any float type (1, 1, max_positions, rotary_dim / 2), max_positions >= 1
  ConstTensor sin;  ///< any float type, shape of cos
  /// If true, the columns of a pair are neighbours. Otherwise they are in the two halves of the rotated columns.
  bool interleaved = false;
  std::int64_t first_column = 0;  ///< first rotated column; first_column + rotary_dim must be <= head_dim
  /// If non-null, num_sequences lengths that replace seqlens_k when the position of a row is computed.
  const std::int32_t* seqlens = nullptr;
};

/// Positions that append() uses to rotate the query rows of a sequence.
enum class QueryPositions : std::uint8_t {
  /// Row i has the position of new row i + seqlen_new - seqlen_q, so the last query row and the last new row align.
  kLast,
  /// Row i has the position of new row i. FlashAttention uses this with a causal or window mask.
  kFirst,
  /// Every row has the position of new row 0. FlashAttention uses this without a mask.
  kOne,
};

/// The arguments of append. All tensors and arrays must be on the device of k. Dtypes are f32, f16 or bf16 unless
/// stated otherwise.
struct AppendCall {
  /// New keys, of shape (num_sequences, num_heads_k, seqlen_new, head_dim) with 1 <= head_dim <= 1024. With
  /// cu_seqlens_new, the shape is (1, num_heads_k, total_new, head_dim).
  ConstTensor k;
  /// New values, with the dtype and shape of k, except that there are head_dim_v columns. 1 <= head_dim_v <= 512. If
  /// absent, only keys are written.
  std::optional<ConstTensor> v = {};
  /// Output, the cache of keys. CacheIndex defines its shape. It has the num_heads_k and head_dim of k. Its dtype may
  /// differ from that of k, and may also be f8e4m3 or i8.
  Tensor k_cache;
  /// Output, required if v is given: the cache of values. Its first three dimensions are those of k_cache.
  std::optional<Tensor> v_cache = {};
  /// New row i of sequence s becomes key seqlens_k[s] + i. seqlens_k may be null only with slot_mapping. The call drops
  /// rows beyond the capacity and rows whose page does not exist. With ATTEND_CHECK=1 it refuses such rows.
  /// cache_leftpad is ignored.
  CacheIndex cache = {};
  /// Set if new keys are packed. k is then (1, num_heads_k, total_new, head_dim), and sequence s has the rows
  /// [cu_seqlens_new[s], cu_seqlens_new[s+1]). The conditions of DecodeParams::cu_seqlens_q apply.
  const std::int32_t* cu_seqlens_new = nullptr;
  std::int64_t num_sequences = 0;  ///< used only with cu_seqlens_new
  /// Used only with cu_seqlens_new: upper bound of the number of new rows of a sequence.
  std::int64_t max_seqlen_new = 0;
  /// If non-null, an array with the destination of each new row, called its slot. The slots replace the destinations
  /// computed from seqlens_k. They are in the order of the rows of k: all rows of batch entry 0, then all rows of batch
  /// entry 1, and so on. Slot n is row n % page_size of page n / page_size. In a contiguous cache, the capacity takes
  /// the place of page_size. The call skips a row whose slot is negative or does not exist. With ATTEND_CHECK=1 it
  /// refuses a slot that does not exist.
  const std::int64_t* slot_mapping = nullptr;
  /// Position of each new row, in the order of slot_mapping. If null, new row i of sequence s has position seqlens_k[s]
  /// + i, or Rotary::seqlens[s] + i if Rotary::seqlens is set.
  const std::int32_t* positions = nullptr;
  std::optional<Rotary> rotary = {};  ///< rotation of k and q; if unset, nothing is rotated
  /// Query rows, of shape (num_sequences, num_heads_q, seqlen_q, head_dim). With cu_seqlens_q, the shape is (1,
  /// num_heads_q, total_q, head_dim). Query rows of live sequences are normalised and rotated even if new rows are
  /// dropped or skipped. If `positions` is set, each query row must have a corresponding new row.
  std::optional<ConstTensor> q = {};
  /// Output, required if q is given. It has the dtype and shape of q. It may be q itself, with the same strides.
  std::optional<Tensor> q_out = {};
  const std::int32_t* cu_seqlens_q = nullptr;  ///< set if q is packed, as described for DecodeParams::cu_seqlens_q
  /// Used only with cu_seqlens_q: upper bound of the number of query rows of a sequence.
  std::int64_t max_seqlen_q = 0;
  QueryPositions query_positions = QueryPositions::kLast;  ///< which positions the rotation of q uses
  /// Weights of an RMS norm of q, of any float type and shape (1, 1, 1, head_dim). Before the rotation, each row x of q
  /// becomes x / sqrt(mean(x^2) + norm_eps) * weight. The mean is over all columns.
  std::optional<ConstTensor> q_norm = {};
  std::optional<ConstTensor> k_norm = {};  ///< weights of an RMS norm of k, with the dtype and shape of q_norm
  double norm_eps = 1e-6;                  ///< must be finite and >= 0
  Stream stream = nullptr;                 ///< stream of a GPU; append returns before the GPU has finished
};

/// Writes new keys and values into a cache. Each row of k is normalised and rotated if requested. Rows are then rounded
/// to the dtype of the cache. A row that is only copied keeps its bits. The arithmetic is float32. The bits of a row
/// depend only on the row, its position, the tables and its descale.
///
/// A cache of f8e4m3 or i8 receives x / descale, rounded to nearest, ties to even. Values out of range saturate at 448
/// and -448 (f8e4m3), or at 127 and -128 (i8). NaN becomes 0x7f in f8e4m3 and 0 in i8. The call reads the descales and
/// never changes them.
///
/// The call does not change seqlens_k. The caller must add the new keys to the lengths before the next decode. The call
/// reads and writes no data of a dead sequence. In the caches it writes only the new rows. k_cache and v_cache may
/// overlap if no written row is in both caches. If two new rows have the same destination, that destination may contain
/// either row or a mixture of both. With ATTEND_CHECK=1 the call refuses such rows. No output may overlap an input,
/// except that q_out may be q. Rows of q, k, v and q_out may be interleaved in one buffer. The result is deterministic.
/// The function is thread-safe for calls that write different rows.
/// @throws Error naming the argument, the value found and the allowed values. If it throws, no output has been written.
ATTEND_API void append(const AppendCall& call);

/// Runs append(append) and then decode(call). The decode sees the new rows. Both arguments must have the same number of
/// sequences and the same cache. The lengths in both are those before the append. The query rows are those of `call`,
/// so append.q, q_out, cu_seqlens_q and max_seqlen_q must be unset. q is normalised and rotated as `append` specifies.
/// The rotated q is not written to memory.
/// @throws Error naming the argument, as both functions do. If it throws, no output has been written.
ATTEND_API void decode(const AppendCall& append, const DecodeCall& call);

/// State: the result of attention over some of the keys. decode() or forward() computes it, without sinks.
struct PartialState {
  ConstTensor o;    ///< f32, f16 or bf16 (batch, num_heads_q, seqlen_q, head_dim_v)
  ConstTensor lse;  ///< f32 (batch, num_heads_q, seqlen_q, 1)
};

/// Options of merge().
struct MergeParams {
  /// Sinks: any float type, shape (1 or batch, num_heads_q, 1, 1). merge() includes the sink once in the sum of each
  /// row, so the states must not include it.
  std::optional<ConstTensor> sinks = {};
  /// If true, every lse of the states and of the result is a logarithm to base 2. Sinks stay natural logarithms.
  bool lse_base2 = false;
};

/// Combines attention over disjoint sets of keys into attention over all keys:
///
///   lse = log(sum_n exp(lse_n) + exp(sink)),   o = sum_n exp(lse_n - lse) o_n
///
/// A state with lse = -inf is ignored, even if its o is NaN. If all states of a row are ignored, o is 0, and lse is
/// -inf, or the sink if there are sinks. Any other NaN or infinity in a state reaches the row. The sums are float64, in
/// the order of the states. The result is deterministic. The function is thread-safe.
/// @param states  at least one state, on the device of o. Their dtypes may differ
/// @param o       output: the merged o, in f32, f16 or bf16, with the shape of the states' o. It may be the o of a
///   state with the same dtype and strides. Otherwise it must not overlap an input
/// @param lse     output: the merged lse, in f32, with the shape of the states' lse. It may be null. It may be the lse
///   of a state with the same strides
/// @throws Error naming the argument, the value found and the allowed values. If it throws, no output has been written.
ATTEND_API void merge(std::span<const PartialState> states, const Tensor& o, const Tensor* lse = nullptr,
                      const MergeParams& params = {}, Stream stream = nullptr);

}  // namespace attend
