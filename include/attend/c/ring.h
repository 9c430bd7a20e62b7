// Ring attention: one sequence whose rows and keys lie on several ranks, threads of the process or whatever the caller
// connects by functions. Include attend/attend.h. attend/ring.hpp has the same in C++; docs/ring.md explains it.
#ifndef ATTEND_C_RING_H_
#define ATTEND_C_RING_H_

#include "attend/c/attention.h"
#include "attend/c/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/// Which rows of a sequence of n tokens a rank r of N holds, of queries and keys alike. Any n will do, also n < N.
///
///   n = 12, N = 3        rank 0         rank 1        rank 2
///   CONTIGUOUS           0 1 2 3        4 5 6 7       8 9 10 11       tokens [r n / N, (r + 1) n / N)
///   ZIGZAG               0 1 10 11      2 3 8 9       4 5 6 7         of 2N such chunks those of numbers r and 2N-1-r
///   STRIPED              0 3 6 9        1 4 7 10      2 5 8 11        every N-th token from r on
enum { ATTEND_SHARDING_CONTIGUOUS = 0, ATTEND_SHARDING_ZIGZAG = 1, ATTEND_SHARDING_STRIPED = 2 };

/// What travels. The result is the same but for the order of sums; RingAlgorithm in attend/ring.hpp compares them.
enum {
  ATTEND_RING_AUTOMATIC = 0,
  ATTEND_RING_EXCHANGE = 1,    ///< keys and values go round, a step at a time
  ATTEND_RING_ALL_GATHER = 2,  ///< every rank takes the keys and values that its rows see, all at once
  ATTEND_RING_ALL_TO_ALL = 3,  ///< every rank takes all rows and keys of its share of the heads
  ATTEND_RING_TWO_LEVEL = 4    ///< heads within groups of ranks, keys and values between groups
};

/// "contiguous", "zigzag" or "striped"; "?" for other numbers. Stays valid.
ATTEND_API const char* attend_sharding_name(int32_t sharding);

/// "automatic", "exchange", "all_gather", "all_to_all" or "two_level"; "?" for other numbers. Stays valid.
ATTEND_API const char* attend_ring_algorithm_name(int32_t algorithm);

/// How a call is spread over the ranks, the same on every rank.
typedef struct attend_ring_params {
  size_t struct_size;      ///< sizeof(attend_ring_params)
  int32_t sharding;        ///< of queries and keys; ATTEND_SHARDING_ZIGZAG is the default
  int32_t algorithm;       ///< of this call: that of a forward need not be its backward's
  int32_t seed_of_rank_0;  ///< 1: attend_params::seed is rank 0's on all ranks. Not with philox_state
  int32_t reserved;        ///< 0
} attend_ring_params;

/// Zigzag, automatic.
ATTEND_API void attend_ring_params_init(attend_ring_params* params, size_t struct_size);

/// One rank of a ring. One thread at a time may use it.
typedef struct attend_ring attend_ring;

/// A ring of threads of this process, each of which takes one of the ranks. Where a rank's call ends in an error after
/// the ranks have agreed on it, the others' calls end too, with an error that says which rank failed, and so does every
/// later call on the ring.
/// @param num_ranks   1 or more
/// @param timeout_ms  how long a rank waits for a message of another one before it gives up; 0: without end
/// @param ranks       out, (num_ranks), each to be freed by attend_ring_free. Written only where all could be made
ATTEND_API int32_t attend_make_thread_ring(int32_t num_ranks, int64_t timeout_ms, attend_ring** ranks,
                                           attend_error* error);

/// How messages travel between ranks that the caller connects. The functions are called within calls on the ring, on
/// the thread of the call. One that returns another number than 0 has failed and ends the call with ATTEND_INTERNAL and
/// that number in the text. They must not throw.
typedef struct attend_ring_callbacks {
  size_t struct_size;  ///< sizeof(attend_ring_callbacks)
  void* user;          ///< handed to each function
  /// Begins to send `size` (> 0) bytes to another rank, and waits for nobody. Messages of different channels, 0 to 7,
  /// do not see each other; those of one channel from one rank to another arrive in the order in which they were sent.
  /// `*request` (null at the call) becomes the caller's mark for it
  int32_t (*send)(void* user, int32_t to, int32_t channel, const void* bytes, size_t size, void** request);
  /// Begins to receive exactly as many bytes. Not waited for either
  int32_t (*receive)(void* user, int32_t from, int32_t channel, void* bytes, size_t size, void** request);
  /// Returns when the message of `request` is sent, or there. May be null: messages are, when send or receive returns
  int32_t (*wait)(void* user, void* request);
  /// In the place of `wait`, where the call has failed before: the memory of the message is gone then. Each request
  /// gets exactly one of the two. May be null
  void (*abandon)(void* user, void* request);
  /// Every rank's message, of `size` bytes each, one after another by rank. May be null: by send and receive
  int32_t (*all_gather)(void* user, const void* mine, void* all, size_t size);
  /// This rank has failed in a call that others wait in: their waits shall end, by a number other than 0. No function
  /// is called after this but `abandon`. May be null
  void (*fail)(void* user, const char* why);
} attend_ring_callbacks;

/// Every field 0.
ATTEND_API void attend_ring_callbacks_init(attend_ring_callbacks* callbacks, size_t struct_size);

/// A rank of a ring whose messages are the caller's business. Tensors on the CPU. After a call that failed once the
/// ranks had agreed on it, so does every later one.
/// @param callbacks  `send` and `receive` are given. The struct is copied; what `user` points to has to stay until the
///                   ring is freed
/// @param ring       out, to be freed by attend_ring_free
ATTEND_API int32_t attend_make_callback_ring(int32_t rank, int32_t size, const attend_ring_callbacks* callbacks,
                                             attend_ring** ring, attend_error* error);

/// Frees the rank, outside of calls on it. May be null.
ATTEND_API void attend_ring_free(attend_ring* ring);

/// 0 to size - 1; rank r sends to r + 1, the last one to 0. -1 for null.
ATTEND_API int32_t attend_ring_rank(const attend_ring* ring);

/// Number of ranks. -1 for null.
ATTEND_API int32_t attend_ring_size(const attend_ring* ring);

/// attend_forward of the whole sequence: every rank calls with its rows of q, k and v and gets those of o and lse.
///
/// @param call    tensors with the rank's rows: q (batch, num_heads_q, attend_shard_seqlen of seqlen_q, head_dim).
///                Params are the same on every rank, but for: bias and mask have the rank's rows and all keys in their
///                own order; varlen is that of the whole. compute: auto, cpu or reference; on a GPU auto, simt or
///                sm90_forward. The workspace is not used, and sinks are refused
/// @param params  null: zigzag, automatic
/// The call returns when this rank has done its work; on a GPU when that is on the stream. All ranks have to call.
/// Deterministic for a number of ranks and an algorithm.
/// @return as attend_forward, and ATTEND_INVALID_ARGUMENT where a rank's shapes or options differ from rank 0's, the
///         same on every rank; then nothing was written
ATTEND_API int32_t attend_ring_forward(const attend_ring* ring, const attend_forward_call* call,
                                       const attend_ring_params* params, attend_error* error);

/// The gradients of attend_ring_forward, every tensor with the rank's rows. dlse is taken, dbias and dsinks are
/// refused.
ATTEND_API int32_t attend_ring_backward(const attend_ring* ring, const attend_backward_call* call,
                                        const attend_ring_params* params, attend_error* error);

/// Which part of a sequence is asked for.
typedef struct attend_shard_part {
  size_t struct_size;         ///< sizeof(attend_shard_part)
  int32_t sharding;           ///< ATTEND_SHARDING_ZIGZAG is the default
  int32_t rank;               ///< 0 to num_ranks - 1
  int32_t num_ranks;          ///< >= 1; 1 is the default
  int32_t reserved;           ///< 0
  const int32_t* cu_seqlens;  ///< packed sequences: (num_sequences + 1) offsets of the whole. Null: one sequence
  int64_t num_sequences;      ///< with cu_seqlens only
} attend_shard_part;

/// Zigzag, rank 0 of 1.
ATTEND_API void attend_shard_part_init(attend_shard_part* part, size_t struct_size);

/// @param seqlen  tokens of the whole (packed) sequence
/// @param rows    out: number of rows that the rank holds. Of packed sequences each is cut over the ranks by itself
ATTEND_API int32_t attend_shard_seqlen(const attend_shard_part* part, int64_t seqlen, int64_t* rows,
                                       attend_error* error);

/// For each row of the rank, in the order in which it holds them, its row in the whole (packed) sequence.
/// @param positions      out, (num_positions). May be null where that is 0
/// @param num_positions  what attend_shard_seqlen says
ATTEND_API int32_t attend_shard_positions(const attend_shard_part* part, int64_t seqlen, int64_t* positions,
                                          int64_t num_positions, attend_error* error);

/// Copies a rank's rows (dimension 2) out of a whole tensor: q, k, v, dout, or the rows of a bias or mask.
/// @param whole  any dtype (batch, heads, seqlen, n) on the CPU
/// @param local  out, the same but for shape[2], which is attend_shard_seqlen
ATTEND_API int32_t attend_shard(const attend_shard_part* part, const attend_tensor* whole, const attend_tensor* local,
                                attend_error* error);

/// The way back: writes a rank's rows to their places in `whole` and leaves the others as they are.
ATTEND_API int32_t attend_unshard(const attend_shard_part* part, const attend_tensor* local, const attend_tensor* whole,
                                  attend_error* error);

/// A call that attend_explain_ring is asked about, by its sizes.
typedef struct attend_ring_problem {
  size_t struct_size;   ///< sizeof(attend_ring_problem)
  int32_t num_ranks;    ///< 2 is the default
  int32_t device_type;  ///< of the tensors
  int32_t dtype;        ///< ATTEND_BF16 is the default
  int32_t is_backward;  ///< 1: of attend_ring_backward
  int64_t batch;        ///< 1 is the default, for heads too
  int64_t num_heads_q;  ///< query heads
  int64_t num_heads_k;  ///< heads of keys and values
  int64_t seqlen_q;     ///< of the whole
  int64_t seqlen_k;     ///< likewise
  int64_t head_dim;     ///< of q and k
  int64_t head_dim_v;   ///< of v and o
} attend_ring_problem;

/// 2 ranks, bf16, one batch entry and head, all other fields 0.
ATTEND_API void attend_ring_problem_init(attend_ring_problem* problem, size_t struct_size);

/// How each algorithm would do a call, without ranks and without doing it, as JSON. Times are those of a model.
///
///   [{"algorithm": "exchange", "chosen": true, "lack": "", "ranks_of_group": 1, "why": "...",
///     "steps": [{"what": "...", "sent_bytes": 0, "compute_us": 1.5, "exchange_us": 0.5, "exposed_us": 0}, ...],
///     "sent_bytes": 0, "memory_bytes": 0, "estimated_us": 2}, ...]
///
/// Text as in attend_plan_explain.
/// @param params       mask, window, dropout and varlen are looked at; of bias and mask, whether they are given. Null:
///                     the defaults
/// @param ring_params  null: zigzag, automatic
ATTEND_API int32_t attend_explain_ring(const attend_ring_problem* problem, const attend_params* params,
                                       const attend_ring_params* ring_params, char* text, size_t text_bytes,
                                       size_t* needed_bytes, attend_error* error);

#ifdef __cplusplus
}
#endif

#endif  // ATTEND_C_RING_H_
