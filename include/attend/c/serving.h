// Attention for serving: a few query rows of each sequence attend to a cache of keys and values. Include
// attend/attend.h.
//
//   attend_append   writes new keys and values into a cache
//   attend_decode   reads the cache
//   attend_merge    combines results over different keys
//
// attend/serving.hpp is the same interface in C++; docs/serving.md explains it.
#ifndef ATTEND_C_SERVING_H_
#define ATTEND_C_SERVING_H_

#include "attend/c/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/// The pages of a paged cache. Row r of the table lists the pages of one sequence: entry n is the page that holds the
/// keys from n * page_size on.
typedef struct attend_page_table {
  size_t struct_size;     ///< sizeof(attend_page_table)
  const int32_t* pages;   ///< (num_rows, pages_per_row), on the tensors' device
  int64_t num_rows;       ///< rows of the table
  int64_t pages_per_row;  ///< entries of a row
  int64_t row_stride;     ///< entries from one row to the next, >= 0; 0: all rows are the same
} attend_page_table;

/// Sets struct_size, and every other field to 0.
ATTEND_API void attend_page_table_init(attend_page_table* table, size_t struct_size);

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
/// A sequence is dead if its length is negative, or if its cache row or table row does not exist. The call then reads
/// and writes nothing in its cache, its rows of o are 0, and its rows of lse are -inf. A length above the capacity
/// counts as the capacity. A key whose page does not exist (for example -1) is not seen. The call never reads keys
/// beyond a length; these keys may be NaN. With the environment variable ATTEND_CHECK=1 the calls refuse a row, length
/// or page that does not exist, and name the entry.
typedef struct attend_cache_index {
  size_t struct_size;                   ///< sizeof(attend_cache_index)
  const int32_t* seqlens_k;             ///< (num_sequences): keys in the cache. Null: every sequence fills the capacity
  const attend_page_table* page_table;  ///< null: the cache is contiguous
  const int32_t* cache_batch_idx;       ///< (num_sequences): the sequence's cache row or table row. Null: s
  const int32_t* cache_leftpad;         ///< (num_sequences): first visible key; keys before it are hidden. Null: 0
  /// Scale factors of a cache of f8e4m3 or i8, whose element x stands for the number x * descale. f32, any strides >=
  /// 0, in one of two shapes:
  ///
  ///   (1 or num_sequences, 1 or num_heads_k, 1, 1)   one factor in all, or per head, or per sequence and head
  ///   (pages or cache rows, 1 or num_heads_k, page_size or capacity, 1)   one factor per row of the cache
  ///
  /// If the pointer is null, all factors are 1. If pages or cache rows hold one key and their number equals
  /// num_sequences, a tensor fits both shapes, and the call refuses it. Without v_cache the values use the factors of
  /// the keys.
  const attend_tensor* k_descale;
  const attend_tensor* v_descale;  ///< scale factors of v_cache, likewise. Null: 1
} attend_cache_index;

/// Sets every pointer to null: a contiguous, full cache.
ATTEND_API void attend_cache_index_init(attend_cache_index* cache, size_t struct_size);

/// Options of attend_decode. Fields that attend_params also has mean the same, with off = seqlen_k - seqlen_q of the
/// sequence.
typedef struct attend_decode_params {
  size_t struct_size;                 ///< sizeof(attend_decode_params)
  double scale;                       ///< used if has_scale is 1
  int32_t has_scale;                  ///< 0: the scale is 1/sqrt(head_dim)
  int32_t causal;                     ///< 1, the default: keep j <= i + off
  int64_t window_left;                ///< keep j >= i + off - window_left; -1, the default: open
  int64_t window_right;               ///< keep j <= i + off + window_right; -1, the default: open
  double softcap;                     ///< >= 0; 0: off
  const attend_tensor* alibi_slopes;  ///< f32 (1 or num_sequences, num_heads_q, 1, 1). Null: none
  const attend_tensor* sinks;         ///< any float type (1 or num_sequences, num_heads_q, 1, 1). Null: none
  /// Packed query rows: q is (1, num_heads_q, total_q, head_dim), and sequence s owns the rows [cu_seqlens_q[s],
  /// cu_seqlens_q[s+1]). The array has num_sequences + 1 entries on the tensors' device, starts at 0, never decreases,
  /// and ends at or before total_q. Rows after those of the last sequence are not written. Null: not packed
  const int32_t* cu_seqlens_q;
  int64_t num_sequences;  ///< only with cu_seqlens_q
  int64_t max_seqlen_q;   ///< only with cu_seqlens_q: upper bound of the query rows of a sequence
  /// Tree of draft tokens: one word per query row, (num_sequences, seqlen_q), or (total_q) with cu_seqlens_q, on the
  /// tensors' device. Row i of a sequence sees all keys before off, and key off + j if bit j of its word is 1. The tree
  /// replaces `causal`. A sequence may have at most 64 query rows. Null: none
  const uint64_t* tree_mask;
  /// "cpu" or "reference", on a GPU "decode" or "sm90_forward"; DecodeParams::compute in attend/serving.hpp describes
  /// them. Null or "auto": the best backend
  const char* compute;
  int32_t lse_base2;  ///< 1: lse is a logarithm to base 2 instead of e
  int32_t reserved;   ///< 0
} attend_decode_params;

/// Sets causal to 1, the windows to -1, and the other fields to 0.
ATTEND_API void attend_decode_params_init(attend_decode_params* params, size_t struct_size);

/// The arguments of attend_decode. All tensors lie on the device of q.
typedef struct attend_decode_call {
  size_t struct_size;  ///< sizeof(attend_decode_call)
  /// Query rows: f32, f16 or bf16, or f64 for the backend `reference`. (num_sequences, num_heads_q, seqlen_q,
  /// head_dim), or packed by attend_decode_params::cu_seqlens_q. 1 <= head_dim <= 1024
  const attend_tensor* q;
  /// Cached keys: dtype of q, or f8e4m3 or i8. attend_cache_index defines the shape. num_heads_q is a multiple of
  /// num_heads_k, and query head h reads key head h / (num_heads_q / num_heads_k)
  const attend_tensor* k_cache;
  /// Cached values: like k_cache, same dtype, with head_dim_v columns. Null: the values are the first head_dim_v
  /// columns of the keys
  const attend_tensor* v_cache;
  const attend_tensor* o;    ///< out, dtype of q, shape of q with head_dim_v columns, 1 <= head_dim_v <= 512
  const attend_tensor* lse;  ///< out, f32, (num_sequences, num_heads_q, seqlen_q, 1), or packed like q. May be null
  const attend_cache_index* cache;     ///< null: a contiguous, full cache
  const attend_decode_params* params;  ///< null: the defaults
  void* stream;                        ///< CUstream; ignored on a CPU
} attend_decode_call;

/// Sets every pointer to null.
ATTEND_API void attend_decode_call_init(attend_decode_call* call, size_t struct_size);

/// Computes o = softmax(scale * q k^T + options) v over the cached keys of each sequence. One call handles decoding,
/// verification of drafts, chunked prefill, and any mixture of them.
///
/// Deterministic and batch-invariant: the bits of a row's result do not depend on the batch, the page size, or the
/// number of threads. A row that sees no key gives o = 0 and lse = -inf; with sinks, lse is the sink. NaN and inf reach
/// only the rows that see them. On Hopper the training kernel computes sequences with many rows. Its bits differ from
/// those of the decode kernel, and a NaN or inf in a value may also reach other rows of the same tile of 64 (see
/// attend::decode).
/// @return as attend_forward
/// Source: Dao, Haziza, Massa & Sizov, Flash-Decoding for long-context inference (2023)
ATTEND_API int32_t attend_decode(const attend_decode_call* call, attend_error* error);

/// Rotary position embedding. Rotates pairs of columns (a, b) of a row at position t. For 0 <= c < rotary_dim / 2:
///
///   x[a]' = x[a] cos[t, c] - x[b] sin[t, c],   x[b]' = x[b] cos[t, c] + x[a] sin[t, c]
///
/// with a = c and b = c + rotary_dim / 2, or, interleaved, a = 2c and b = 2c + 1, counted from first_column. Other
/// columns are unchanged. A position outside [0, max_positions) is clamped to that range; with ATTEND_CHECK=1 the call
/// refuses it.
/// Source: Su et al., RoFormer (2021), section 3.2
typedef struct attend_rotary {
  size_t struct_size;        ///< sizeof(attend_rotary)
  const attend_tensor* cos;  ///< any float type (1, 1, max_positions, rotary_dim / 2), max_positions >= 1
  const attend_tensor* sin;  ///< same shape, any float type
  int64_t first_column;      ///< first rotated column; first_column + rotary_dim <= head_dim
  const int32_t* seqlens;    ///< (num_sequences): replaces seqlens_k in the position of a row. Null: seqlens_k
  int32_t interleaved;       ///< 1: pairs are neighbouring columns, not columns of two halves
  int32_t reserved;          ///< 0
} attend_rotary;

/// Sets struct_size, and every other field to 0.
ATTEND_API void attend_rotary_init(attend_rotary* rotary, size_t struct_size);

/// The positions of a sequence's query rows in attend_append.
enum {
  ATTEND_POSITIONS_LAST = 0,   ///< row i has the position of new row i + seqlen_new - seqlen_q: the last rows align
  ATTEND_POSITIONS_FIRST = 1,  ///< row i has the position of new row i: FlashAttention's rule with a mask
  ATTEND_POSITIONS_ONE = 2     ///< every row has the position of new row 0: FlashAttention's rule without a mask
};

/// The arguments of attend_append. All tensors and arrays lie on the device of k. Dtypes are f32, f16 or bf16 unless
/// stated otherwise. Any pointer except k and k_cache may be null.
typedef struct attend_append_call {
  size_t struct_size;  ///< sizeof(attend_append_call)
  /// New keys (num_sequences, num_heads_k, seqlen_new, head_dim), 1 <= head_dim <= 1024, or packed by cu_seqlens_new
  const attend_tensor* k;
  const attend_tensor* v;  ///< new values: like k, with 1 <= head_dim_v <= 512 columns. Null: keys only
  /// out; attend_cache_index defines the shape. Its dtype may differ from that of k, and may also be f8e4m3 or i8
  const attend_tensor* k_cache;
  const attend_tensor* v_cache;  ///< out, with v: like k_cache, with the same first three dimensions
  /// New row i of sequence s becomes key seqlens_k[s] + i; seqlens_k may be null only with slot_mapping. Rows beyond
  /// the capacity, and rows whose page does not exist, are dropped; with ATTEND_CHECK=1 the call refuses them
  const attend_cache_index* cache;
  const int32_t* cu_seqlens_new;  ///< packs the new keys, as attend_decode_params::cu_seqlens_q packs q
  int64_t num_sequences;          ///< only with cu_seqlens_new
  int64_t max_seqlen_new;         ///< only with cu_seqlens_new: upper bound of the new rows of a sequence
  /// Explicit destinations, which override seqlens_k: one slot for each new row. Slot n is row n % page_size of page n
  /// / page_size; in a contiguous cache the capacity takes the role of page_size. Slots that are negative or do not
  /// exist are skipped
  const int64_t* slot_mapping;
  const int32_t* positions;     ///< one position for each new row. Null: seqlens_k[s] + i
  const attend_rotary* rotary;  ///< rotation of k and q
  /// Query rows (num_sequences, num_heads_q, seqlen_q, head_dim), or packed by cu_seqlens_q
  const attend_tensor* q;
  const attend_tensor* q_out;   ///< out, with q: dtype and shape of q. May be q itself, with the same strides
  const int32_t* cu_seqlens_q;  ///< packs q, as in attend_decode_params
  int64_t max_seqlen_q;         ///< only with cu_seqlens_q: upper bound of the query rows of a sequence
  /// Weights of an RMS norm of q over all columns, before the rotation: x / sqrt(mean(x^2) + norm_eps) * weight. Any
  /// float type (1, 1, 1, head_dim)
  const attend_tensor* q_norm;
  const attend_tensor* k_norm;  ///< weights of an RMS norm of k, likewise
  double norm_eps;              ///< finite, >= 0; the default is 1e-6
  void* stream;                 ///< CUstream; ignored on a CPU
  int32_t query_positions;      ///< ATTEND_POSITIONS_LAST, ...
  int32_t reserved;             ///< 0
} attend_append_call;

/// Sets norm_eps to 1e-6 and the other fields to 0.
ATTEND_API void attend_append_call_init(attend_append_call* call, size_t struct_size);

/// Writes new keys and values into a cache. Each row is normalised, rotated, and then rounded to the dtype of the
/// cache. A row that is only copied keeps its bits. A cache of f8e4m3 or i8 receives x / descale, rounded to nearest,
/// ties to even.
///
/// The call does not change seqlens_k: the caller adds the new keys to the lengths before the next decode. It writes no
/// cache byte other than those of the new rows. No output may overlap an input, except q_out as stated. Deterministic.
/// Thread-safe for calls that write different rows.
/// @return as attend_forward
ATTEND_API int32_t attend_append(const attend_append_call* call, attend_error* error);

/// Runs attend_append(append), then attend_decode(decode) over the lengths of the cache plus the new rows. Both
/// arguments name the same cache, with the lengths before the append, and the same number of sequences. The query rows
/// are those of `decode`: q, q_out, cu_seqlens_q and max_seqlen_q of `append` stay unset. q is normalised and rotated
/// as `append` specifies, without being written to memory.
/// @return as both functions, before anything is written
ATTEND_API int32_t attend_append_and_decode(const attend_append_call* append, const attend_decode_call* decode,
                                            attend_error* error);

/// Attention over some of the keys, as computed by attend_decode or attend_forward without sinks. Frozen.
typedef struct attend_partial_state {
  const attend_tensor* o;    ///< f32, f16 or bf16 (batch, num_heads_q, seqlen_q, head_dim_v)
  const attend_tensor* lse;  ///< f32 (batch, num_heads_q, seqlen_q, 1)
} attend_partial_state;

/// The arguments of attend_merge.
typedef struct attend_merge_call {
  size_t struct_size;                  ///< sizeof(attend_merge_call)
  const attend_partial_state* states;  ///< (num_states), on the device of o. They may differ in dtype
  int64_t num_states;                  ///< at least one
  const attend_tensor* o;              ///< out, f32, f16 or bf16, same shape as in the states. May be the o of a state
  const attend_tensor* lse;  ///< out, f32, same shape as the lse of the states. May be null, or the lse of a state
  /// Any float type (1 or batch, num_heads_q, 1, 1). The sink counts once in the sum of each row. Null: none
  const attend_tensor* sinks;
  void* stream;       ///< CUstream; ignored on a CPU
  int32_t lse_base2;  ///< 1: every lse, of states and result, is a logarithm to base 2; sinks stay natural logarithms
  int32_t reserved;   ///< 0
} attend_merge_call;

/// Sets struct_size, and every other field to 0.
ATTEND_API void attend_merge_call_init(attend_merge_call* call, size_t struct_size);

/// Combines attention over disjoint sets of keys into attention over all keys:
///
///   lse = log(sum_n exp(lse_n) + exp(sink)),   o = sum_n exp(lse_n - lse) o_n
///
/// A state with lse = -inf is ignored, whatever its o is. A row with only such states gives o = 0 and lse = -inf; with
/// sinks, lse is the sink. The sums are float64, in the order of the states. Deterministic.
/// @return as attend_forward
ATTEND_API int32_t attend_merge(const attend_merge_call* call, attend_error* error);

#ifdef __cplusplus
}
#endif

#endif  // ATTEND_C_SERVING_H_
