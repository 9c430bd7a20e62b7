// Attention for serving: a few query rows of each sequence attend to a cache of keys and values. Include
// attend/attend.h.
//
//   attend_append   writes new keys and values into a cache
//   attend_decode   reads the cache
//   attend_merge    combines results over different keys
//
// attend/serving.hpp is the same interface in C++, and docs/serving.md explains it.
#ifndef ATTEND_C_SERVING_H_
#define ATTEND_C_SERVING_H_

#include "attend/c/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/// The pages of a paged cache. Each row of the table lists the pages of one sequence. Entry n is the number of the page
/// that holds the keys from n * page_size on.
typedef struct attend_page_table {
  size_t struct_size;     ///< sizeof(attend_page_table)
  const int32_t* pages;   ///< the table: (num_rows, pages_per_row) page numbers, on the tensors' device
  int64_t num_rows;       ///< number of rows in the table
  int64_t pages_per_row;  ///< number of entries in a row
  int64_t row_stride;     ///< distance in entries between rows, >= 0; if 0, all rows are the same
} attend_page_table;

/// Sets struct_size, and every other field to 0.
ATTEND_API void attend_page_table_init(attend_page_table* table, size_t struct_size);

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
/// A sequence is dead if its length is negative, or if its cache row or table row does not exist. The call then
/// accesses no cache data of the sequence. It writes 0 to the sequence's rows of o, and -inf to the sequence's rows of
/// lse. A length above the capacity is treated as the capacity. If the page of a key does not exist (for example, if
/// its number is -1), no row sees the key. The call never reads keys beyond a length, so these keys may be NaN. If the
/// environment variable ATTEND_CHECK is 1, the calls refuse a row, length or page that does not exist, and the error
/// names the entry.
typedef struct attend_cache_index {
  size_t struct_size;  ///< sizeof(attend_cache_index)
  /// Number of keys that each sequence has in the cache: num_sequences elements. If null, every sequence fills the
  /// capacity.
  const int32_t* seqlens_k;
  const attend_page_table* page_table;  ///< if null, the cache is contiguous
  /// Cache row or table row of each sequence: num_sequences elements. If null, it is the number of the sequence.
  const int32_t* cache_batch_idx;
  /// First visible key of each sequence: num_sequences elements. Keys before that key are hidden. If null, all keys are
  /// visible.
  const int32_t* cache_leftpad;
  /// Scale factors of a cache of f8e4m3 or i8. An element x represents the number x * descale. The tensor is f32 with
  /// any strides >= 0 and has one of two shapes:
  ///
  ///   (1 or num_sequences, 1 or num_heads_k, 1, 1)   one factor in all, or per head, or per sequence and head
  ///   (pages or cache rows, 1 or num_heads_k, page_size or capacity, 1)   one factor per row of the cache
  ///
  /// If the pointer is null, all factors are 1. If pages or cache rows hold one key each and their number equals
  /// num_sequences, a tensor can match both shapes. The call refuses such a tensor. If there is no v_cache, the factors
  /// of the keys also apply to the values.
  const attend_tensor* k_descale;
  /// Scale factors of v_cache, with the dtype and the two possible shapes of k_descale. If null, all factors are 1.
  const attend_tensor* v_descale;
} attend_cache_index;

/// Sets every pointer to null. This describes a contiguous, full cache.
ATTEND_API void attend_cache_index_init(attend_cache_index* cache, size_t struct_size);

/// Options of attend_decode. Fields that attend_params also has mean the same. off is seqlen_k - seqlen_q of the
/// sequence.
typedef struct attend_decode_params {
  size_t struct_size;    ///< sizeof(attend_decode_params)
  double scale;          ///< factor of the products q.k, used if has_scale is 1
  int32_t has_scale;     ///< if 0, the scale is 1/sqrt(head_dim)
  int32_t causal;        ///< if 1, the default, row i sees keys j <= i + off
  int64_t window_left;   ///< row i sees keys j >= i + off - window_left; -1, the default, means no limit
  int64_t window_right;  ///< row i sees keys j <= i + off + window_right; -1, the default, means no limit
  double softcap;        ///< soft limit of the scores, >= 0; 0 means no limit
  /// Slopes of ALiBi: f32, shape (1 or num_sequences, num_heads_q, 1, 1); null turns ALiBi off.
  const attend_tensor* alibi_slopes;
  /// Sinks: any float type, shape (1 or num_sequences, num_heads_q, 1, 1). Null means no sinks.
  const attend_tensor* sinks;
  /// Set if query rows are packed. q is then (1, num_heads_q, total_q, head_dim), and sequence s has the rows
  /// [cu_seqlens_q[s], cu_seqlens_q[s+1]). The array has num_sequences + 1 entries on the tensors' device, starts at 0,
  /// never decreases, and ends at or before total_q. Rows after those of the last sequence are not written. Null means
  /// that rows are not packed.
  const int32_t* cu_seqlens_q;
  int64_t num_sequences;  ///< used only with cu_seqlens_q
  /// Used only with cu_seqlens_q: upper bound of the number of query rows of a sequence.
  int64_t max_seqlen_q;
  /// Tree of draft tokens, as one word for each query row. The array is on the tensors' device. Its shape is
  /// (num_sequences, seqlen_q), or (total_q) with cu_seqlens_q. Row i of a sequence sees all keys before key off. It
  /// also sees key off + j if bit j of its word is 1. The tree replaces `causal`. A sequence may have at most 64 query
  /// rows. Null means no tree.
  const uint64_t* tree_mask;
  /// Backend: "cpu" or "reference", and on a GPU "decode" or "sm90_forward". DecodeParams::compute in
  /// attend/serving.hpp describes them. Null or "auto" selects the best backend.
  const char* compute;
  int32_t lse_base2;  ///< if 1, lse is a logarithm to base 2 instead of e
  int32_t reserved;   ///< must be 0
} attend_decode_params;

/// Sets causal to 1, the windows to -1, and the other fields to 0.
ATTEND_API void attend_decode_params_init(attend_decode_params* params, size_t struct_size);

/// The arguments of attend_decode. All tensors must be on the device of q.
typedef struct attend_decode_call {
  size_t struct_size;  ///< sizeof(attend_decode_call)
  /// Query rows, of shape (num_sequences, num_heads_q, seqlen_q, head_dim) with 1 <= head_dim <= 1024. With
  /// attend_decode_params::cu_seqlens_q, the shape is (1, num_heads_q, total_q, head_dim). The dtype is f32, f16 or
  /// bf16. The backend `reference` also supports f64.
  const attend_tensor* q;
  /// Cached keys. The dtype is that of q, or f8e4m3 or i8. attend_cache_index defines the shape. num_heads_q is a
  /// multiple of num_heads_k, and query head h reads key head h / (num_heads_q / num_heads_k).
  const attend_tensor* k_cache;
  /// Cached values, with the dtype and shape of k_cache, except that there are head_dim_v columns. If null, the values
  /// are the first head_dim_v columns of the keys.
  const attend_tensor* v_cache;
  /// Output, with the dtype and shape of q, except that there are head_dim_v columns. 1 <= head_dim_v <= 512.
  const attend_tensor* o;
  /// Output, f32, of shape (num_sequences, num_heads_q, seqlen_q, 1). If q is packed, the shape is (1, num_heads_q,
  /// total_q, 1). May be null.
  const attend_tensor* lse;
  const attend_cache_index* cache;     ///< null means a contiguous, full cache
  const attend_decode_params* params;  ///< null selects the defaults
  void* stream;                        ///< CUDA stream (CUstream); ignored on a CPU
} attend_decode_call;

/// Sets every pointer to null.
ATTEND_API void attend_decode_call_init(attend_decode_call* call, size_t struct_size);

/// Computes o = softmax(scale * q k^T + options) v over the cached keys of each sequence. One call handles decoding,
/// verification of drafts, chunked prefill, and any mixture of them.
///
/// The result is deterministic and batch-invariant: the bits of a row's result do not depend on the batch, the page
/// size, or the number of threads. A row that sees no key gives o = 0. Its lse is -inf, or the sink if there are sinks.
/// NaN and inf reach only the rows that see them. On Hopper, the training kernel computes sequences with many rows, and
/// its results are not bit-equal to those of the decode kernel. In such a sequence, a NaN or inf in a value may also
/// reach other rows of the same tile of 64 rows (see attend::decode).
/// @return the status codes of attend_forward
/// Source: Dao, Haziza, Massa & Sizov, Flash-Decoding for long-context inference (2023)
ATTEND_API int32_t attend_decode(const attend_decode_call* call, attend_error* error);

/// Rotary position embedding. It rotates pairs of columns (a, b) of a row at position t. For 0 <= c < rotary_dim / 2:
///
///   x[a]' = x[a] cos[t, c] - x[b] sin[t, c],   x[b]' = x[b] cos[t, c] + x[a] sin[t, c]
///
/// where a = c and b = c + rotary_dim / 2. If `interleaved` is 1, a = 2c and b = 2c + 1. Columns are counted from
/// first_column. Other columns are unchanged. A position outside [0, max_positions) is clamped to that range; with
/// ATTEND_CHECK=1 the call refuses it.
///
/// Source: Su et al., RoFormer (2021), section 3.2
typedef struct attend_rotary {
  size_t struct_size;        ///< sizeof(attend_rotary)
  const attend_tensor* cos;  ///< any float type (1, 1, max_positions, rotary_dim / 2), max_positions >= 1
  const attend_tensor* sin;  ///< any float type, shape of cos
  int64_t first_column;      ///< first rotated column; first_column + rotary_dim must be <= head_dim
  /// If non-null, num_sequences lengths that replace seqlens_k when the position of a row is computed.
  const int32_t* seqlens;
  /// If 1, the columns of a pair are neighbours. Otherwise they are in the two halves of the rotated columns.
  int32_t interleaved;
  int32_t reserved;  ///< must be 0
} attend_rotary;

/// Sets struct_size, and every other field to 0.
ATTEND_API void attend_rotary_init(attend_rotary* rotary, size_t struct_size);

/// Positions that attend_append uses to rotate the query rows of a sequence.
enum {
  /// Row i has the position of new row i + seqlen_new - seqlen_q, so the last query row and the last new row align.
  ATTEND_POSITIONS_LAST = 0,
  /// Row i has the position of new row i. FlashAttention uses this with a causal or window mask.
  ATTEND_POSITIONS_FIRST = 1,
  /// Every row has the position of new row 0. FlashAttention uses this without a mask.
  ATTEND_POSITIONS_ONE = 2
};

/// The arguments of attend_append. All tensors and arrays must be on the device of k. Dtypes are f32, f16 or bf16
/// unless stated otherwise. Any pointer except k and k_cache may be null.
typedef struct attend_append_call {
  size_t struct_size;  ///< sizeof(attend_append_call)
  /// New keys, of shape (num_sequences, num_heads_k, seqlen_new, head_dim) with 1 <= head_dim <= 1024. With
  /// cu_seqlens_new, the shape is (1, num_heads_k, total_new, head_dim).
  const attend_tensor* k;
  /// New values, with the dtype and shape of k, except that there are head_dim_v columns. 1 <= head_dim_v <= 512. If
  /// null, only keys are written.
  const attend_tensor* v;
  /// Output, the cache of keys. attend_cache_index defines the shape. Its dtype may differ from that of k, and may also
  /// be f8e4m3 or i8.
  const attend_tensor* k_cache;
  /// Output, required if v is given: the cache of values. Its first three dimensions are those of k_cache.
  const attend_tensor* v_cache;
  /// New row i of sequence s becomes key seqlens_k[s] + i. seqlens_k may be null only with slot_mapping. The call drops
  /// rows beyond the capacity and rows whose page does not exist. With ATTEND_CHECK=1 it refuses such rows.
  const attend_cache_index* cache;
  /// Set if the new keys are packed. Sequence s then has the rows [cu_seqlens_new[s], cu_seqlens_new[s+1]) of k and v.
  /// The conditions of attend_decode_params::cu_seqlens_q apply.
  const int32_t* cu_seqlens_new;
  int64_t num_sequences;  ///< used only with cu_seqlens_new
  /// Used only with cu_seqlens_new: upper bound of the number of new rows of a sequence.
  int64_t max_seqlen_new;
  /// If non-null, an array with the destination of each new row, called its slot. The slots replace the destinations
  /// computed from seqlens_k. Slot n is row n % page_size of page n / page_size. In a contiguous cache, the capacity
  /// takes the place of page_size. The call skips a row whose slot is negative or does not exist.
  const int64_t* slot_mapping;
  /// Position of each new row; if null, new row i of sequence s has position seqlens_k[s] + i.
  const int32_t* positions;
  const attend_rotary* rotary;  ///< rotation of k and q; if null, nothing is rotated
  /// Query rows, of shape (num_sequences, num_heads_q, seqlen_q, head_dim). With cu_seqlens_q, the shape is (1,
  /// num_heads_q, total_q, head_dim).
  const attend_tensor* q;
  /// Output, required if q is given. It has the dtype and shape of q. It may be q itself, with the same strides.
  const attend_tensor* q_out;
  const int32_t* cu_seqlens_q;  ///< set if q is packed, as described for attend_decode_params::cu_seqlens_q
  /// Used only with cu_seqlens_q: upper bound of the number of query rows of a sequence.
  int64_t max_seqlen_q;
  /// Weights of an RMS norm of q, of any float type and shape (1, 1, 1, head_dim). Before the rotation, each row x of q
  /// becomes x / sqrt(mean(x^2) + norm_eps) * weight. The mean is over all columns.
  const attend_tensor* q_norm;
  const attend_tensor* k_norm;  ///< weights of an RMS norm of k, with the dtype and shape of q_norm
  double norm_eps;              ///< must be finite and >= 0; the default is 1e-6
  void* stream;                 ///< CUDA stream (CUstream); ignored on a CPU
  int32_t query_positions;      ///< ATTEND_POSITIONS_LAST, ATTEND_POSITIONS_FIRST or ATTEND_POSITIONS_ONE
  int32_t reserved;             ///< must be 0
} attend_append_call;

/// Sets norm_eps to 1e-6 and the other fields to 0.
ATTEND_API void attend_append_call_init(attend_append_call* call, size_t struct_size);

/// Writes new keys and values into a cache. Each row of k is normalised and rotated if requested. Rows are then rounded
/// to the dtype of the cache. A row that is only copied keeps its bits. A cache of f8e4m3 or i8 receives x / descale,
/// rounded to nearest, ties to even.
///
/// The call does not change seqlens_k. The caller must add the new keys to the lengths before the next decode. The call
/// writes no cache byte other than those of the new rows. No output may overlap an input, except that q_out may be q.
/// The result is deterministic. The function is thread-safe for calls that write different rows.
/// @return the status codes of attend_forward
ATTEND_API int32_t attend_append(const attend_append_call* call, attend_error* error);

/// Runs attend_append(append) and then attend_decode(decode). The decode sees the new rows. Both arguments must have
/// the same number of sequences and the same cache. The lengths in both are those before the append. The query rows are
/// those of `decode`, so q, q_out, cu_seqlens_q and max_seqlen_q of `append` must be unset. q is normalised and rotated
/// as `append` specifies. The rotated q is not written to memory.
/// @return the status codes of both functions; after an error, nothing has been written
ATTEND_API int32_t attend_append_and_decode(const attend_append_call* append, const attend_decode_call* decode,
                                            attend_error* error);

/// State: the result of attention over some of the keys. attend_decode or attend_forward computes it, without sinks.
/// Later versions do not change this struct.
typedef struct attend_partial_state {
  const attend_tensor* o;    ///< f32, f16 or bf16 (batch, num_heads_q, seqlen_q, head_dim_v)
  const attend_tensor* lse;  ///< f32 (batch, num_heads_q, seqlen_q, 1)
} attend_partial_state;

/// The arguments of attend_merge.
typedef struct attend_merge_call {
  size_t struct_size;  ///< sizeof(attend_merge_call)
  /// The states to merge: num_states elements, on the device of o. Their dtypes may differ.
  const attend_partial_state* states;
  int64_t num_states;  ///< at least 1
  /// Output: the merged o, in f32, f16 or bf16, with the shape of the states' o. It may be the o of a state.
  const attend_tensor* o;
  /// Output: the merged lse, in f32, with the shape of the states' lse. It may be null, or be the lse of a state.
  const attend_tensor* lse;
  /// Sinks: any float type, shape (1 or batch, num_heads_q, 1, 1). The sum of each row includes the sink once. Null
  /// means no sinks.
  const attend_tensor* sinks;
  void* stream;  ///< CUDA stream (CUstream); ignored on a CPU
  /// If 1, every lse of the states and of the result is a logarithm to base 2. Sinks stay natural logarithms.
  int32_t lse_base2;
  int32_t reserved;  ///< must be 0
} attend_merge_call;

/// Sets struct_size, and every other field to 0.
ATTEND_API void attend_merge_call_init(attend_merge_call* call, size_t struct_size);

/// Combines attention over disjoint sets of keys into attention over all keys:
///
///   lse = log(sum_n exp(lse_n) + exp(sink)),   o = sum_n exp(lse_n - lse) o_n
///
/// A state with lse = -inf is ignored, even if its o is NaN. If all states of a row are ignored, o is 0, and lse is
/// -inf, or the sink if there are sinks. The sums are float64, in the order of the states. The result is deterministic.
/// @return the status codes of attend_forward
ATTEND_API int32_t attend_merge(const attend_merge_call* call, attend_error* error);

#ifdef __cplusplus
}
#endif

#endif  // ATTEND_C_SERVING_H_
