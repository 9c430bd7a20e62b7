// Attention for serving: a few query rows of each sequence against a cache of keys and values. Include attend/attend.h.
//
//   attend_append   writes new keys and values into a cache
//   attend_decode   reads it
//   attend_merge    joins results over different keys
//
// attend/serving.hpp has the same in C++; docs/serving.md explains it.
#ifndef ATTEND_C_SERVING_H_
#define ATTEND_C_SERVING_H_

#include "attend/c/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/// Which pages of a paged cache hold the keys of a sequence. Row r lists pages: entry n is the page with the keys from
/// n * page_size on.
typedef struct attend_page_table {
  size_t struct_size;     ///< sizeof(attend_page_table)
  const int32_t* pages;   ///< (num_rows, pages_per_row), on the tensors' device
  int64_t num_rows;       ///< of the table
  int64_t pages_per_row;  ///< entries of a row
  int64_t row_stride;     ///< entries from row to row, >= 0. 0: all rows are one
} attend_page_table;

/// Every field 0.
ATTEND_API void attend_page_table_init(attend_page_table* table, size_t struct_size);

/// Where the keys of each sequence lie in a cache. The arrays lie on the tensors' device, and are read when the call
/// runs there: a CUDA graph may be replayed while they change.
///
///   contiguous  k_cache is (cache_rows, num_heads_k, capacity, head_dim). Key j of a sequence is row j of the
///               sequence's cache row
///   paged       k_cache is (num_pages, num_heads_k, page_size, head_dim). Key j of a sequence is row j % page_size of
///               the page that entry j / page_size of its table row names. The capacity is pages_per_row * page_size
///
/// A sequence with a negative length, or whose cache row or table row does not exist, is dead: nothing of its cache is
/// read or written, its rows of o are 0 and those of lse -inf. A length above the capacity counts as the capacity. A
/// key whose page does not exist (-1, say) is not seen. Nothing beyond a length is read, so that it may be NaN. With
/// the environment variable ATTEND_CHECK=1 the calls refuse a row, length or page that does not exist, and name it.
typedef struct attend_cache_index {
  size_t struct_size;                   ///< sizeof(attend_cache_index)
  const int32_t* seqlens_k;             ///< (num_sequences): keys in the cache. Null: all are at capacity
  const attend_page_table* page_table;  ///< null: the cache is contiguous
  const int32_t* cache_batch_idx;       ///< (num_sequences): the sequence's cache row, or table row. Null: s
  const int32_t* cache_leftpad;         ///< (num_sequences): keys before it are not seen. Null: 0
  /// Of a cache of f8e4m3 or i8, whose element x stands for the number x * descale: f32, of one of two shapes,
  ///
  ///   (1 or num_sequences, 1 or num_heads_k, 1, 1)   one factor, or one of each head, or of each sequence and head
  ///   (pages or cache rows, 1 or num_heads_k, page_size or capacity, 1)   a factor of each row of the cache
  ///
  /// with any strides >= 0. Null: 1. With pages or cache rows of one key, as many as there are sequences, a tensor has
  /// both shapes: it is refused. Without v_cache the values have the factors of the keys.
  const attend_tensor* k_descale;
  const attend_tensor* v_descale;  ///< likewise, of v_cache. Null: 1
} attend_cache_index;

/// Every pointer null: a contiguous cache, full.
ATTEND_API void attend_cache_index_init(attend_cache_index* cache, size_t struct_size);

/// Options of attend_decode. What attend_params has too means the same, with off = seqlen_k - seqlen_q of the sequence.
typedef struct attend_decode_params {
  size_t struct_size;                 ///< sizeof(attend_decode_params)
  double scale;                       ///< read with has_scale
  int32_t has_scale;                  ///< 0: the scale is 1/sqrt(head_dim)
  int32_t causal;                     ///< 1, the default: keep j <= i + off
  int64_t window_left;                ///< keep j >= i + off - window_left; -1, the default: open
  int64_t window_right;               ///< keep j <= i + off + window_right; -1, the default: open
  double softcap;                     ///< >= 0; 0: off
  const attend_tensor* alibi_slopes;  ///< f32 (1 or num_sequences, num_heads_q, 1, 1). Null: none
  const attend_tensor* sinks;         ///< any float type (1 or num_sequences, num_heads_q, 1, 1). Null: none
  /// Packed query rows: q is (1, num_heads_q, total_q, head_dim), and sequence s owns the rows [cu_seqlens_q[s],
  /// cu_seqlens_q[s+1]). (num_sequences + 1), on the tensors' device, starts at 0, never decreases, and ends at total_q
  /// or before it. Rows behind the last sequence's are not written. Null: not packed
  const int32_t* cu_seqlens_q;
  int64_t num_sequences;  ///< with cu_seqlens_q only
  int64_t max_seqlen_q;   ///< with cu_seqlens_q only: an upper bound of the query rows of a sequence
  /// A tree of drafts: one word a query row, (num_sequences, seqlen_q), with cu_seqlens_q (total_q), on the tensors'
  /// device. Row i of a sequence sees key off + j where bit j of its word is 1, and all keys before off. It takes the
  /// place of `causal`; at most 64 query rows a sequence. Null: none
  const uint64_t* tree_mask;
  /// "cpu", "reference", on a GPU "decode" or "sm90_forward": as DecodeParams::compute. Null or "auto": the best one
  const char* compute;
  int32_t lse_base2;  ///< 1: lse is the logarithm to the base 2, not the natural one
  int32_t reserved;   ///< 0
} attend_decode_params;

/// causal 1, windows -1, else 0.
ATTEND_API void attend_decode_params_init(attend_decode_params* params, size_t struct_size);

/// The arguments of attend_decode. All tensors lie on the device of q.
typedef struct attend_decode_call {
  size_t struct_size;  ///< sizeof(attend_decode_call)
  /// f32, f16 or bf16, or f64 for the backend `reference`. (num_sequences, num_heads_q, seqlen_q, head_dim), or packed:
  /// attend_decode_params::cu_seqlens_q. 1 <= head_dim <= 1024
  const attend_tensor* q;
  /// Of q's dtype, or f8e4m3 or i8: see attend_cache_index. num_heads_q is a multiple of num_heads_k, and query head h
  /// reads key head h / (num_heads_q / num_heads_k)
  const attend_tensor* k_cache;
  /// Like k_cache, of its dtype, with head_dim_v columns. Null: the values are the first head_dim_v columns of the keys
  const attend_tensor* v_cache;
  const attend_tensor* o;    ///< out, dtype of q, shape of q with head_dim_v columns, 1 <= head_dim_v <= 512
  const attend_tensor* lse;  ///< out, f32, (num_sequences, num_heads_q, seqlen_q, 1), or packed likewise. May be null
  const attend_cache_index* cache;     ///< null: a contiguous cache, full
  const attend_decode_params* params;  ///< null: the defaults
  void* stream;                        ///< CUstream; ignored on a CPU
} attend_decode_call;

/// Every pointer null.
ATTEND_API void attend_decode_call_init(attend_decode_call* call, size_t struct_size);

/// o = softmax(scale * q k^T + options) v over the cached keys of each sequence: decoding, verification of drafts,
/// chunked prefill, and any mixture of them in one call.
///
/// Deterministic and batch-invariant: the bits of a row's result are the same alone and in any batch, for any page size
/// and any number of threads. A row that sees no key gives o = 0 and lse = -inf, or its sink. NaN and inf reach the
/// rows that see them, and no others. On Hopper sequences with many rows are computed by another kernel, which has bits
/// of its own, and whose values that are NaN or inf may reach rows of the same tile of 64 (attend::decode).
/// @return as attend_forward
/// Source: Dao, Haziza, Massa & Sizov, Flash-Decoding for long-context inference (2023)
ATTEND_API int32_t attend_decode(const attend_decode_call* call, attend_error* error);

/// Rotary position embedding: columns of a row at position t are rotated in pairs (a, b), 0 <= c < rotary_dim / 2,
///
///   x[a]' = x[a] cos[t, c] - x[b] sin[t, c],   x[b]' = x[b] cos[t, c] + x[a] sin[t, c]
///
/// with a = c and b = c + rotary_dim / 2, or, interleaved, a = 2c and b = 2c + 1, both counted from first_column. Other
/// columns stay as they are. A position outside [0, max_positions) counts as the nearest one inside; with
/// ATTEND_CHECK=1 it is refused.
/// Source: Su et al., RoFormer (2021), section 3.2
typedef struct attend_rotary {
  size_t struct_size;        ///< sizeof(attend_rotary)
  const attend_tensor* cos;  ///< any float type (1, 1, max_positions, rotary_dim / 2), max_positions >= 1
  const attend_tensor* sin;  ///< likewise, of the same shape
  int64_t first_column;      ///< first_column + rotary_dim <= head_dim
  const int32_t* seqlens;    ///< (num_sequences): in the place of seqlens_k in a row's position. Null: seqlens_k
  int32_t interleaved;       ///< 1: pairs of neighbours
  int32_t reserved;          ///< 0
} attend_rotary;

/// Every field 0.
ATTEND_API void attend_rotary_init(attend_rotary* rotary, size_t struct_size);

/// The positions of a sequence's query rows in attend_append.
enum {
  ATTEND_POSITIONS_LAST = 0,   ///< row i: of new row i + seqlen_new - seqlen_q, the last rows at the same position
  ATTEND_POSITIONS_FIRST = 1,  ///< row i: of new row i. FlashAttention's rule where it masks
  ATTEND_POSITIONS_ONE = 2     ///< every row: of new row 0. FlashAttention's rule where it does not mask
};

/// The arguments of attend_append. All tensors and arrays lie on the device of k. Dtypes are f32, f16 or bf16 but where
/// something else is said. Any pointer but k and k_cache may be null.
typedef struct attend_append_call {
  size_t struct_size;  ///< sizeof(attend_append_call)
  /// New keys (num_sequences, num_heads_k, seqlen_new, head_dim), 1 <= head_dim <= 1024, or packed: cu_seqlens_new
  const attend_tensor* k;
  const attend_tensor* v;        ///< like k, with 1 <= head_dim_v <= 512 columns. Null: keys only
  const attend_tensor* k_cache;  ///< out, see attend_cache_index. Its dtype may be another one, f8e4m3 and i8 too
  const attend_tensor* v_cache;  ///< out, with v: likewise, of the first three dimensions of k_cache
  /// New row i of sequence s becomes key seqlens_k[s] + i, where seqlens_k is not null. Rows beyond the capacity, and
  /// rows whose page does not exist, are dropped; with ATTEND_CHECK=1 they are refused
  const attend_cache_index* cache;
  const int32_t* cu_seqlens_new;  ///< packed new keys, as attend_decode_params::cu_seqlens_q
  int64_t num_sequences;          ///< with cu_seqlens_new only
  int64_t max_seqlen_new;         ///< with cu_seqlens_new only: an upper bound of the new rows of a sequence
  /// Where new rows go instead: (number of new rows). Slot n is row n % page_size of page n / page_size; of a
  /// contiguous cache likewise with its capacity. Slots that are negative or do not exist are skipped
  const int64_t* slot_mapping;
  const int32_t* positions;     ///< (number of new rows): the rows' positions. Null: seqlens_k[s] + i
  const attend_rotary* rotary;  ///< of k and q
  /// Query rows (num_sequences, num_heads_q, seqlen_q, head_dim), or packed: cu_seqlens_q
  const attend_tensor* q;
  const attend_tensor* q_out;   ///< with q: out, dtype and shape of q. May be q itself, with the same strides
  const int32_t* cu_seqlens_q;  ///< as in attend_decode_params, over q
  int64_t max_seqlen_q;         ///< with cu_seqlens_q only: an upper bound of a sequence's query rows
  /// Weights of an RMS norm over all columns, before the rotation: x / sqrt(mean(x^2) + norm_eps) * weight. Any float
  /// type (1, 1, 1, head_dim)
  const attend_tensor* q_norm;
  const attend_tensor* k_norm;  ///< likewise
  double norm_eps;              ///< finite, >= 0; the default is 1e-6
  void* stream;                 ///< CUstream; ignored on a CPU
  int32_t query_positions;      ///< ATTEND_POSITIONS_LAST, ...
  int32_t reserved;             ///< 0
} attend_append_call;

/// norm_eps 1e-6, else 0.
ATTEND_API void attend_append_call_init(attend_append_call* call, size_t struct_size);

/// Writes new keys and values into a cache: normalised, rotated, then rounded to the dtype of the cache. A row that is
/// only copied keeps its bits. A cache of f8e4m3 or i8 gets x / descale, rounded to nearest, ties to even.
///
/// seqlens_k does not change: whoever decodes next counts the new keys. No other byte of the cache is written. No
/// output overlaps an input but q_out, as said. Deterministic. Thread-safe for calls that write different rows.
/// @return as attend_forward
ATTEND_API int32_t attend_append(const attend_append_call* call, attend_error* error);

/// attend_append(append), then attend_decode(decode) over the lengths of the cache plus the new rows. Both name the
/// same cache, with the lengths before the append, and as many sequences. The query rows are those of `decode`: q,
/// q_out, cu_seqlens_q and max_seqlen_q of `append` stay unset, and q is normalised and rotated as `append` says,
/// without being written.
/// @return as both do, before anything is written
ATTEND_API int32_t attend_append_and_decode(const attend_append_call* append, const attend_decode_call* decode,
                                            attend_error* error);

/// Attention over some of the keys, as attend_decode or attend_forward gives it without sinks. Frozen.
typedef struct attend_partial_state {
  const attend_tensor* o;    ///< f32, f16 or bf16 (batch, num_heads_q, seqlen_q, head_dim_v)
  const attend_tensor* lse;  ///< f32 (batch, num_heads_q, seqlen_q, 1)
} attend_partial_state;

/// The arguments of attend_merge.
typedef struct attend_merge_call {
  size_t struct_size;                  ///< sizeof(attend_merge_call)
  const attend_partial_state* states;  ///< (num_states), on the device of o. They may differ in dtype
  int64_t num_states;                  ///< at least one
  const attend_tensor* o;              ///< out, f32, f16 or bf16, of the states' shape. May be the o of a state
  const attend_tensor* lse;            ///< out, f32, of the shape of the states' lse. May be null, or that of a state
  /// Any float type (1 or batch, num_heads_q, 1, 1): counts once in the sum of each row. Null: none
  const attend_tensor* sinks;
  void* stream;       ///< CUstream; ignored on a CPU
  int32_t lse_base2;  ///< 1: every lse, of states and result, is the logarithm to the base 2. Sinks stay natural
  int32_t reserved;   ///< 0
} attend_merge_call;

/// Every field 0.
ATTEND_API void attend_merge_call_init(attend_merge_call* call, size_t struct_size);

/// Attention over all keys from attention over parts of them that share no key:
///
///   lse = log(sum_n exp(lse_n) + exp(sink)),   o = sum_n exp(lse_n - lse) o_n
///
/// A state with an lse of -inf counts for nothing, whatever its o is. A row of which that is all gives o = 0 and lse =
/// -inf, or its sink. Summed up in float64, in the order of the states. Deterministic.
/// @return as attend_forward
ATTEND_API int32_t attend_merge(const attend_merge_call* call, attend_error* error);

#ifdef __cplusplus
}
#endif

#endif  // ATTEND_C_SERVING_H_
