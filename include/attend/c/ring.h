// Ring attention: exact attention of one sequence whose rows and keys are distributed over several ranks. The ranks are
// threads of the process, or the caller provides functions that connect them. Include attend/attend.h. attend/ring.hpp
// is the same interface in C++, and docs/ring.md explains it.
#ifndef ATTEND_C_RING_H_
#define ATTEND_C_RING_H_

#include "attend/c/attention.h"
#include "attend/c/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/// Sharding of a sequence of n tokens over N ranks: it determines which rows and keys rank r holds. Any n is allowed,
/// including n < N.
///
///   n = 12, N = 3        rank 0         rank 1        rank 2
///   CONTIGUOUS           0 1 2 3        4 5 6 7       8 9 10 11       tokens [r n / N, (r + 1) n / N)
///   ZIGZAG               0 1 10 11      2 3 8 9       4 5 6 7         chunks r and 2N-1-r of 2N chunks
///   STRIPED              0 3 6 9        1 4 7 10      2 5 8 11        every N-th token from r on
enum { ATTEND_SHARDING_CONTIGUOUS = 0, ATTEND_SHARDING_ZIGZAG = 1, ATTEND_SHARDING_STRIPED = 2 };

/// Algorithm of a call: it determines which data travels between ranks. The algorithms differ in cost and in the order
/// of sums. RingAlgorithm in attend/ring.hpp describes them.
enum {
  ATTEND_RING_AUTOMATIC = 0,
  ATTEND_RING_EXCHANGE = 1,  ///< Keys and values travel around the ring, one step at a time.
  /// Every rank receives, in one step, all keys and values that its rows see.
  ATTEND_RING_ALL_GATHER = 2,
  ATTEND_RING_ALL_TO_ALL = 3,  ///< Every rank receives all rows and keys of its share of the heads.
  /// Heads are distributed within groups of ranks, and keys and values travel between groups.
  ATTEND_RING_TWO_LEVEL = 4
};

/// Returns "contiguous", "zigzag" or "striped", or "?" for other numbers. The string stays valid.
ATTEND_API const char* attend_sharding_name(int32_t sharding);

/// Returns "automatic", "exchange", "all_gather", "all_to_all" or "two_level", or "?" for other numbers. The string
/// stays valid.
ATTEND_API const char* attend_ring_algorithm_name(int32_t algorithm);

/// Options that determine how a call is distributed over the ranks. All ranks must pass the same values.
typedef struct attend_ring_params {
  size_t struct_size;  ///< sizeof(attend_ring_params)
  int32_t sharding;    ///< sharding of queries and keys; ATTEND_SHARDING_ZIGZAG is the default
  int32_t algorithm;   ///< algorithm of this call; forward and backward may use different algorithms
  /// If 1, attend_params::seed of rank 0 replaces the seed of the other ranks. Not allowed with philox_state.
  int32_t seed_of_rank_0;
  int32_t reserved;  ///< must be 0
} attend_ring_params;

/// Sets the sharding to zigzag and the algorithm to automatic.
ATTEND_API void attend_ring_params_init(attend_ring_params* params, size_t struct_size);

/// Handle to one rank of a ring. Only one thread at a time may use a rank.
typedef struct attend_ring attend_ring;

/// Makes a ring of threads of this process. Each thread uses one of the ranks. If a rank's call fails after the ranks
/// have agreed on it, the calls of the other ranks fail too, and so does every later call on the ring. Their errors
/// name the failed rank.
/// @param num_ranks   at least 1
/// @param timeout_ms  longest time to wait for a message of another rank, in milliseconds; 0 means no limit
/// @param ranks       output, num_ranks elements, each of which must be freed by attend_ring_free. Written only if all
///   ranks were made
ATTEND_API int32_t attend_make_thread_ring(int32_t num_ranks, int64_t timeout_ms, attend_ring** ranks,
                                           attend_error* error);

/// Functions that transport messages, provided by the caller. Each call on the ring calls these functions from its own
/// thread. A result other than 0 means failure. The call on the ring then ends with ATTEND_INTERNAL, and the error text
/// contains the result. The functions must not throw.
typedef struct attend_ring_callbacks {
  size_t struct_size;  ///< sizeof(attend_ring_callbacks)
  void* user;          ///< passed as first argument to each function
  /// Starts an asynchronous send of `size` bytes (at least one) to another rank. Channels are numbered 0 to 7 and are
  /// independent of each other. Messages of one channel from one rank to another must arrive in the order in which they
  /// were sent. `*request` is null when the function is called. The function may set `*request` to a handle of the
  /// message.
  int32_t (*send)(void* user, int32_t to, int32_t channel, const void* bytes, size_t size, void** request);
  /// Starts an asynchronous receive of `size` bytes.
  int32_t (*receive)(void* user, int32_t from, int32_t channel, void* bytes, size_t size, void** request);
  /// Waits until the message of `request` is sent or received. The pointer may be null if send and receive return only
  /// after the message is complete.
  int32_t (*wait)(void* user, void* request);
  /// The ring calls this function instead of `wait` if the call on the ring has already failed. When the function
  /// returns, the ring frees the memory of the message. For each request the ring calls either `wait` or `abandon`,
  /// exactly once. May be null.
  void (*abandon)(void* user, void* request);
  /// Gathers one message of `size` bytes from every rank, in the order of ranks. If null, the ring uses send and
  /// receive.
  int32_t (*all_gather)(void* user, const void* mine, void* all, size_t size);
  /// The ring calls this function if this rank fails in a call in which other ranks wait. It must make their waits end
  /// with a result other than 0. After this function, the ring calls only `abandon`. May be null.
  void (*fail)(void* user, const char* why);
} attend_ring_callbacks;

/// Sets struct_size, and every other field to 0.
ATTEND_API void attend_ring_callbacks_init(attend_ring_callbacks* callbacks, size_t struct_size);

/// Makes one rank of a ring whose messages the caller transports. Tensors must be on the CPU. If a call fails after the
/// ranks have agreed on it, every later call fails too.
/// @param callbacks  the caller's functions, of which `send` and `receive` are required. The struct is copied, but the
///   object that `user` points to must stay valid until the ring is freed
/// @param ring       output, which the caller must free with attend_ring_free
ATTEND_API int32_t attend_make_callback_ring(int32_t rank, int32_t size, const attend_ring_callbacks* callbacks,
                                             attend_ring** ring, attend_error* error);

/// Frees the rank, which may be null. No call on it may be running.
ATTEND_API void attend_ring_free(attend_ring* ring);

/// Returns the rank, 0 to size - 1, or -1 if `ring` is null. Rank r sends to rank r + 1, and the last rank sends to
/// rank 0.
ATTEND_API int32_t attend_ring_rank(const attend_ring* ring);

/// Returns the number of ranks, or -1 if `ring` is null.
ATTEND_API int32_t attend_ring_size(const attend_ring* ring);

/// Computes attend_forward of the complete sequence. Every rank must call this function. It passes its rows of q, k and
/// v, and receives its rows of o and lse.
///
/// @param call    tensors with the rank's rows; for example, q is (batch, num_heads_q, attend_shard_seqlen of seqlen_q,
///   head_dim). Except for tensors, its params must be the same on every rank. bias and mask have the rank's rows and
///   all keys in sequence order. varlen describes the complete sequence. On a CPU, compute is auto, cpu or reference.
///   On a GPU, it is auto, simt or sm90_forward. The workspace is not used, and sinks are refused
/// @param params  null selects zigzag sharding and the automatic algorithm
///
/// On a CPU, the call returns when this rank has done its work. On a GPU, it returns when the work is queued on the
/// stream. The result is deterministic for a given number of ranks and a given algorithm.
/// @return the status codes of attend_forward. The status is ATTEND_INVALID_ARGUMENT if a rank's shapes or options
///   differ from those of rank 0. Every rank then returns the same error, and no output has been written
ATTEND_API int32_t attend_ring_forward(const attend_ring* ring, const attend_forward_call* call,
                                       const attend_ring_params* params, attend_error* error);

/// Computes the gradients of attend_ring_forward. Every tensor has the rank's rows. dlse is supported, but dbias and
/// dsinks are refused.
ATTEND_API int32_t attend_ring_backward(const attend_ring* ring, const attend_backward_call* call,
                                        const attend_ring_params* params, attend_error* error);

/// Describes a rank of a ring and the sharding, which determine the rows that the rank holds.
typedef struct attend_shard_part {
  size_t struct_size;  ///< sizeof(attend_shard_part)
  int32_t sharding;    ///< ATTEND_SHARDING_ZIGZAG is the default
  int32_t rank;        ///< from 0 to num_ranks - 1
  int32_t num_ranks;   ///< at least 1; 1 is the default
  int32_t reserved;    ///< must be 0
  /// Offsets of packed sequences in the complete sequence: num_sequences + 1 elements. If null, there is one sequence.
  const int32_t* cu_seqlens;
  int64_t num_sequences;  ///< used only with cu_seqlens
} attend_shard_part;

/// Sets zigzag sharding and rank 0 of 1.
ATTEND_API void attend_shard_part_init(attend_shard_part* part, size_t struct_size);

/// @param seqlen  number of tokens of the complete (packed) sequence
/// @param rows    output: number of rows that the rank holds. Packed sequences are sharded separately
ATTEND_API int32_t attend_shard_seqlen(const attend_shard_part* part, int64_t seqlen, int64_t* rows,
                                       attend_error* error);

/// Writes one index for each row of the rank, in the order in which the rank stores its rows. The index is the row's
/// position in the complete (packed) sequence.
/// @param positions      output, num_positions elements. May be null if num_positions is 0
/// @param num_positions  number of rows that attend_shard_seqlen returned
ATTEND_API int32_t attend_shard_positions(const attend_shard_part* part, int64_t seqlen, int64_t* positions,
                                          int64_t num_positions, attend_error* error);

/// Copies a rank's rows out of a complete tensor, along dimension 2. The tensor may be q, k, v, dout, a bias or a mask.
/// @param whole  complete tensor (batch, heads, seqlen, n) of any dtype on the CPU
/// @param local  output, same shape, except that shape[2] is attend_shard_seqlen
ATTEND_API int32_t attend_shard(const attend_shard_part* part, const attend_tensor* whole, const attend_tensor* local,
                                attend_error* error);

/// Writes a rank's rows to their places in the complete tensor `whole` and leaves the other rows unchanged. This is the
/// inverse of attend_shard.
ATTEND_API int32_t attend_unshard(const attend_shard_part* part, const attend_tensor* local, const attend_tensor* whole,
                                  attend_error* error);

/// Sizes of the call that attend_explain_ring describes.
typedef struct attend_ring_problem {
  size_t struct_size;   ///< sizeof(attend_ring_problem)
  int32_t num_ranks;    ///< number of ranks; 2 is the default
  int32_t device_type;  ///< device of the tensors
  int32_t dtype;        ///< ATTEND_BF16 is the default
  int32_t is_backward;  ///< 1 for attend_ring_backward, 0 for attend_ring_forward
  int64_t batch;        ///< number of sequences; 1 is the default
  int64_t num_heads_q;  ///< number of query heads
  int64_t num_heads_k;  ///< number of heads of keys and values
  int64_t seqlen_q;     ///< number of query rows in the complete sequence
  int64_t seqlen_k;     ///< number of keys in the complete sequence
  int64_t head_dim;     ///< head dimension of q and k
  int64_t head_dim_v;   ///< head dimension of v and o
} attend_ring_problem;

/// Sets 2 ranks, bf16, one batch entry and one head, and all other fields to 0.
ATTEND_API void attend_ring_problem_init(attend_ring_problem* problem, size_t struct_size);

/// Describes, as JSON, how each algorithm would run a call. Needs no ring and does not run the call. The times are
/// estimates of a model.
///
///   [{"algorithm": "exchange", "chosen": true, "lack": "", "ranks_of_group": 1, "why": "...",
///     "steps": [{"what": "...", "sent_bytes": 0, "compute_us": 1.5, "exchange_us": 0.5, "exposed_us": 0}, ...],
///     "sent_bytes": 0, "memory_bytes": 0, "estimated_us": 2}, ...]
///
/// The text arguments are those of attend_plan_explain.
/// @param params       mask, window, dropout and varlen of the call. The contents of bias and mask are not read. Null
///   selects the defaults
/// @param ring_params  null selects zigzag sharding and the automatic algorithm
ATTEND_API int32_t attend_explain_ring(const attend_ring_problem* problem, const attend_params* params,
                                       const attend_ring_params* ring_params, char* text, size_t text_bytes,
                                       size_t* needed_bytes, attend_error* error);

#ifdef __cplusplus
}
#endif

#endif  // ATTEND_C_RING_H_
