// Ring attention: exact attention of one sequence whose rows and keys lie on several ranks. The ranks are threads of
// the process, or the caller connects them by functions. Include attend/attend.h. attend/ring.hpp is the same interface
// in C++; docs/ring.md explains it.
#ifndef ATTEND_C_RING_H_
#define ATTEND_C_RING_H_

#include "attend/c/attention.h"
#include "attend/c/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/// Sharding of a sequence of n tokens: the rows, of queries and keys alike, that rank r of N holds. Any n is allowed,
/// including n < N.
///
///   n = 12, N = 3        rank 0         rank 1        rank 2
///   CONTIGUOUS           0 1 2 3        4 5 6 7       8 9 10 11       tokens [r n / N, (r + 1) n / N)
///   ZIGZAG               0 1 10 11      2 3 8 9       4 5 6 7         chunks r and 2N-1-r of 2N chunks
///   STRIPED              0 3 6 9        1 4 7 10      2 5 8 11        every N-th token from r on
enum { ATTEND_SHARDING_CONTIGUOUS = 0, ATTEND_SHARDING_ZIGZAG = 1, ATTEND_SHARDING_STRIPED = 2 };

/// Which data travels between ranks. The algorithms differ in cost and in the order of sums; RingAlgorithm in
/// attend/ring.hpp compares them.
enum {
  ATTEND_RING_AUTOMATIC = 0,
  ATTEND_RING_EXCHANGE = 1,    ///< keys and values travel around the ring, one step at a time
  ATTEND_RING_ALL_GATHER = 2,  ///< every rank receives all keys and values that its rows see at once
  ATTEND_RING_ALL_TO_ALL = 3,  ///< every rank receives all rows and keys of its share of the heads
  ATTEND_RING_TWO_LEVEL = 4    ///< heads are distributed within groups of ranks; keys and values travel between groups
};

/// Returns "contiguous", "zigzag" or "striped"; "?" for other numbers. The string stays valid.
ATTEND_API const char* attend_sharding_name(int32_t sharding);

/// Returns "automatic", "exchange", "all_gather", "all_to_all" or "two_level"; "?" for other numbers. The string stays
/// valid.
ATTEND_API const char* attend_ring_algorithm_name(int32_t algorithm);

/// How a call is distributed over the ranks, the same on every rank.
typedef struct attend_ring_params {
  size_t struct_size;      ///< sizeof(attend_ring_params)
  int32_t sharding;        ///< sharding of queries and keys; ATTEND_SHARDING_ZIGZAG is the default
  int32_t algorithm;       ///< algorithm of this call; forward and backward may use different ones
  int32_t seed_of_rank_0;  ///< 1: attend_params::seed of rank 0 replaces that of the other ranks. Not with philox_state
  int32_t reserved;        ///< 0
} attend_ring_params;

/// Sets the sharding to zigzag and the algorithm to automatic.
ATTEND_API void attend_ring_params_init(attend_ring_params* params, size_t struct_size);

/// Handle to one rank of a ring. Only one thread at a time may use a rank.
typedef struct attend_ring attend_ring;

/// Makes a ring of threads of this process; each thread uses one of the ranks. If a rank's call fails after the ranks
/// have agreed on it, the calls of the other ranks and every later call on the ring fail with an error that names the
/// failed rank.
/// @param num_ranks   1 or more
/// @param timeout_ms  longest wait for a message of another rank; 0: no limit
/// @param ranks       out, (num_ranks), each to be freed by attend_ring_free. Written only if all could be made
ATTEND_API int32_t attend_make_thread_ring(int32_t num_ranks, int64_t timeout_ms, attend_ring** ranks,
                                           attend_error* error);

/// Transport of messages that the caller provides. The functions are called within calls on the ring, on the thread of
/// the call. A result other than 0 means failure: it ends the call with ATTEND_INTERNAL and appears in the error text.
/// The functions must not throw.
typedef struct attend_ring_callbacks {
  size_t struct_size;  ///< sizeof(attend_ring_callbacks)
  void* user;          ///< passed to each function
  /// Starts an asynchronous send of `size` (> 0) bytes to another rank. Channels are numbered 0 to 7 and are
  /// independent of each other. Messages of one channel from one rank to another arrive in the order in which they were
  /// sent. `*request` is null at the call; the function may set it to the caller's handle of the message
  int32_t (*send)(void* user, int32_t to, int32_t channel, const void* bytes, size_t size, void** request);
  /// Starts an asynchronous receive of `size` bytes
  int32_t (*receive)(void* user, int32_t from, int32_t channel, void* bytes, size_t size, void** request);
  /// Waits until the message of `request` is sent or received. May be null if messages are complete when send or
  /// receive returns
  int32_t (*wait)(void* user, void* request);
  /// Called instead of `wait` if the call on the ring has failed before; the memory of the message is then freed. Each
  /// request gets exactly one call of `wait` or `abandon`. May be null
  void (*abandon)(void* user, void* request);
  /// Gathers one message of `size` bytes from every rank, in the order of ranks. Null: the ring uses send and receive
  int32_t (*all_gather)(void* user, const void* mine, void* all, size_t size);
  /// Called if this rank fails in a call that others wait in. It must end their waits with a result other than 0. Only
  /// `abandon` may be called after this function. May be null
  void (*fail)(void* user, const char* why);
} attend_ring_callbacks;

/// Sets struct_size, and every other field to 0.
ATTEND_API void attend_ring_callbacks_init(attend_ring_callbacks* callbacks, size_t struct_size);

/// Makes a rank of a ring whose messages the caller transports. Tensors must be on the CPU. If a call fails after the
/// ranks have agreed on it, every later call fails too.
/// @param callbacks  `send` and `receive` are required. The struct is copied; the object of `user` must stay valid
///   until the ring is freed
/// @param ring       out, to be freed by attend_ring_free
ATTEND_API int32_t attend_make_callback_ring(int32_t rank, int32_t size, const attend_ring_callbacks* callbacks,
                                             attend_ring** ring, attend_error* error);

/// Frees the rank. No call on it may be running. May be null.
ATTEND_API void attend_ring_free(attend_ring* ring);

/// Returns the rank, 0 to size - 1, or -1 for null. Rank r sends to r + 1, the last rank to 0.
ATTEND_API int32_t attend_ring_rank(const attend_ring* ring);

/// Returns the number of ranks, or -1 for null.
ATTEND_API int32_t attend_ring_size(const attend_ring* ring);

/// Computes attend_forward of the complete sequence. Every rank calls with its rows of q, k and v and receives its rows
/// of o and lse.
///
/// @param call    tensors with the rank's rows: q (batch, num_heads_q, attend_shard_seqlen of seqlen_q, head_dim).
///   Params are the same on every rank, with these exceptions: bias and mask have the rank's rows and all keys in
///   sequence order; varlen describes the complete sequence. compute is auto, cpu or reference; on a GPU auto, simt or
///   sm90_forward. The workspace is not used, and sinks are refused
/// @param params  null: zigzag, automatic
///
/// The call returns when this rank has done its work; on a GPU when the work is queued on the stream. All ranks have to
/// call. Deterministic for a number of ranks and an algorithm.
/// @return as attend_forward, and ATTEND_INVALID_ARGUMENT if a rank's shapes or options differ from those of rank 0.
///   Every rank returns the same error, and no output was written
ATTEND_API int32_t attend_ring_forward(const attend_ring* ring, const attend_forward_call* call,
                                       const attend_ring_params* params, attend_error* error);

/// Computes the gradients of attend_ring_forward. Every tensor has the rank's rows. dlse is supported; dbias and dsinks
/// are refused.
ATTEND_API int32_t attend_ring_backward(const attend_ring* ring, const attend_backward_call* call,
                                        const attend_ring_params* params, attend_error* error);

/// Selects one rank's part of a sequence.
typedef struct attend_shard_part {
  size_t struct_size;  ///< sizeof(attend_shard_part)
  int32_t sharding;    ///< ATTEND_SHARDING_ZIGZAG is the default
  int32_t rank;        ///< 0 to num_ranks - 1
  int32_t num_ranks;   ///< >= 1; 1 is the default
  int32_t reserved;    ///< 0
  /// offsets of packed sequences, (num_sequences + 1), over the complete sequence. Null: one sequence
  const int32_t* cu_seqlens;
  int64_t num_sequences;  ///< only with cu_seqlens
} attend_shard_part;

/// Sets zigzag sharding and rank 0 of 1.
ATTEND_API void attend_shard_part_init(attend_shard_part* part, size_t struct_size);

/// @param seqlen  tokens of the complete (packed) sequence
/// @param rows    out: number of rows that the rank holds. Packed sequences are sharded separately
ATTEND_API int32_t attend_shard_seqlen(const attend_shard_part* part, int64_t seqlen, int64_t* rows,
                                       attend_error* error);

/// Writes, for each row of the rank in storage order, its index in the complete (packed) sequence.
/// @param positions      out, (num_positions). May be null if num_positions is 0
/// @param num_positions  the number of rows from attend_shard_seqlen
ATTEND_API int32_t attend_shard_positions(const attend_shard_part* part, int64_t seqlen, int64_t* positions,
                                          int64_t num_positions, attend_error* error);

/// Copies a rank's rows (dimension 2) out of a complete tensor: q, k, v, dout, or the rows of a bias or mask.
/// @param whole  any dtype (batch, heads, seqlen, n) on the CPU
/// @param local  out, same shape, except that shape[2] is attend_shard_seqlen
ATTEND_API int32_t attend_shard(const attend_shard_part* part, const attend_tensor* whole, const attend_tensor* local,
                                attend_error* error);

/// The inverse of attend_shard: writes a rank's rows to their places in `whole` and leaves the other rows unchanged.
ATTEND_API int32_t attend_unshard(const attend_shard_part* part, const attend_tensor* local, const attend_tensor* whole,
                                  attend_error* error);

/// Sizes of a call for attend_explain_ring.
typedef struct attend_ring_problem {
  size_t struct_size;   ///< sizeof(attend_ring_problem)
  int32_t num_ranks;    ///< 2 is the default
  int32_t device_type;  ///< device of the tensors
  int32_t dtype;        ///< ATTEND_BF16 is the default
  int32_t is_backward;  ///< 1: the call is attend_ring_backward
  int64_t batch;        ///< sequences; 1 is the default, for heads too
  int64_t num_heads_q;  ///< query heads
  int64_t num_heads_k;  ///< heads of keys and values
  int64_t seqlen_q;     ///< query rows of the complete sequence
  int64_t seqlen_k;     ///< keys of the complete sequence
  int64_t head_dim;     ///< head dimension of q and k
  int64_t head_dim_v;   ///< head dimension of v and o
} attend_ring_problem;

/// Sets 2 ranks, bf16, one batch entry and head, and all other fields to 0.
ATTEND_API void attend_ring_problem_init(attend_ring_problem* problem, size_t struct_size);

/// Describes, as JSON, how each algorithm would run a call, without ranks and without running the call. Times are those
/// of a model.
///
///   [{"algorithm": "exchange", "chosen": true, "lack": "", "ranks_of_group": 1, "why": "...",
///     "steps": [{"what": "...", "sent_bytes": 0, "compute_us": 1.5, "exchange_us": 0.5, "exposed_us": 0}, ...],
///     "sent_bytes": 0, "memory_bytes": 0, "estimated_us": 2}, ...]
///
/// The text arguments are those of attend_plan_explain.
/// @param params       uses mask, window, dropout and varlen; of bias and mask, only whether they are set. Null: the
///   defaults
/// @param ring_params  null: zigzag, automatic
ATTEND_API int32_t attend_explain_ring(const attend_ring_problem* problem, const attend_params* params,
                                       const attend_ring_params* ring_params, char* text, size_t text_bytes,
                                       size_t* needed_bytes, attend_error* error);

#ifdef __cplusplus
}
#endif

#endif  // ATTEND_C_RING_H_
