// Ring attention: exact attention of one sequence whose rows and keys are distributed over several ranks (context
// parallelism).
//
//   const std::vector<attend::RingContext> ranks = attend::make_thread_ring(4);  // or ring_nccl.hpp, ring_mpi.hpp
//   attend::ring_forward(ranks[r], q, k, v, o, &lse, {.causal = true}, attend::Sharding::kZigzag);   // on thread r
//
// Every rank calls with its rows of q, k and v. Keys and values travel around the ring, and queries stay on their rank.
// Each rank merges its partial results by their log-sum-exp. docs/ring.md explains the method and its cost.
//
// Sources: Liu, Zaharia, Abbeel, Ring Attention with Blockwise Transformers (2023); Brandon et al., Striped Attention
// (2023); zigzag: Zhu, ring-flash-attention (2024).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "attend/attention.hpp"

namespace attend {

namespace ring {
class Transport;  // internal class that transports messages between ranks
}

/// Sharding of a sequence of n tokens over N ranks: it determines which rows and keys rank r holds. Any n is allowed,
/// including n < N.
///
///   n = 12, N = 3        rank 0         rank 1        rank 2
///   kContiguous          0 1 2 3        4 5 6 7       8 9 10 11       tokens [r n / N, (r + 1) n / N)
///   kZigzag              0 1 10 11      2 3 8 9       4 5 6 7         chunks r and 2N-1-r of 2N chunks
///   kStriped             0 3 6 9        1 4 7 10      2 5 8 11        every N-th token from r on
///
/// Under a causal mask, kZigzag and kStriped give every rank about the same work in every step. kContiguous does not.
enum class Sharding : std::uint8_t { kContiguous, kZigzag, kStriped };

/// Returns "contiguous", "zigzag" or "striped".
[[nodiscard]] ATTEND_API const char* sharding_name(Sharding sharding) noexcept;

/// Algorithm of a call: it determines which data travels between ranks. The algorithms differ in cost and in the order
/// of sums. docs/ring.md compares their cost.
///
///   kExchange:  Keys and values travel around the ring, one step at a time. The transfer for the next step overlaps
///               the computation of the current one. In backward, the gradients of keys and values travel around the
///               ring too.
///
///   kAllGather: Every rank receives, in one step, all keys and values that its rows see. It then computes as a single
///               device would. In backward, the gradients return to the owners of the keys in one step. This algorithm
///               suits short sequences, because a rank stores all received keys at the same time.
///
///   kAllToAll:  Every rank receives all rows and keys of its share of the heads. It then computes attention for these
///               heads as a single device would. The number of ranks must divide num_heads_q and num_heads_k.
///
///   kTwoLevel:  Ranks form groups of neighbours. With kStriped, a group instead consists of every n-th rank, where n
///               is the number of groups. Heads are distributed within a group as with kAllToAll. Keys and values
///               travel between groups as with kExchange. The group size must divide num_heads_q, num_heads_k and the
///               number of ranks, and be smaller than the number of ranks. The cost model chooses the group size.
///
///   kAutomatic: The cost model chooses the algorithm with the lowest estimated time. explain_ring() reports the
///               choice.
enum class RingAlgorithm : std::uint8_t { kAutomatic, kExchange, kAllGather, kAllToAll, kTwoLevel };

/// Returns "automatic", "exchange", "all_gather", "all_to_all" or "two_level".
[[nodiscard]] ATTEND_API const char* algorithm_name(RingAlgorithm algorithm) noexcept;

/// Options that determine how a call is distributed over the ranks. All ranks must pass the same values. A Sharding
/// converts implicitly to RingParams with the automatic algorithm.
struct RingParams {
  /// Sets a sharding and an algorithm. seed_of_rank_0 is false.
  RingParams(Sharding sharding_of_tokens = Sharding::kZigzag,  // NOLINT(google-explicit-constructor)
             RingAlgorithm algorithm_of_call = RingAlgorithm::kAutomatic)
      : sharding(sharding_of_tokens), algorithm(algorithm_of_call) {}

  Sharding sharding;        ///< sharding of queries and keys
  RingAlgorithm algorithm;  ///< algorithm of this call; forward and backward may use different algorithms

  /// If true, Params::seed of rank 0 replaces the seed of the other ranks, for example if each rank has drawn a random
  /// seed. This costs no extra message, because the seed is sent together with the shapes and options that the ranks
  /// compare. Not allowed with Params::philox_state.
  bool seed_of_rank_0 = false;
};

/// Handle to one rank of a ring. Copies of a handle denote the same rank. Only one thread at a time may use a rank.
class ATTEND_API RingContext {
 public:
  /// For the library's own use. The functions that make rings, here and in ring_mpi.hpp and ring_nccl.hpp, call this
  /// constructor.
  explicit RingContext(std::shared_ptr<ring::Transport> transport) noexcept;
  RingContext(const RingContext&);
  RingContext(RingContext&&) noexcept;
  RingContext& operator=(const RingContext&);
  RingContext& operator=(RingContext&&) noexcept;
  ~RingContext();

  /// 0 to size() - 1. Rank r sends to rank r + 1, and the last rank sends to rank 0.
  [[nodiscard]] int rank() const;
  [[nodiscard]] int size() const;  ///< number of ranks

  /// For the library's own use.
  [[nodiscard]] ring::Transport& transport() const noexcept { return *transport_; }

 private:
  std::shared_ptr<ring::Transport> transport_;
};

/// Time limits for waiting for other ranks.
struct RingLimits {
  /// Longest time to wait for one message of another rank on CPUs. It must exceed the time that a rank needs for a
  /// step. After that time the rank assumes that the other rank has died, and throws. In an MPI program, it instead
  /// ends all processes of the program. 0 means no limit. ring_nccl.hpp describes the limit for GPUs.
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
};

/// Makes a ring of `num_ranks` threads of this process. Each thread uses one of the returned contexts. Such a ring is
/// meant for tests, and for hosts with several sockets. Each rank computes on cpu_threads() threads, so
/// set_cpu_threads() should divide the cores among the ranks. If a rank's call fails after the ranks have agreed on it,
/// the calls of the other ranks throw, and so does every later call on the ring. Each Error names the failed rank.
///
/// Tensors may be on GPUs. A rank must use the same GPU in all calls. For speed, each rank should have a separate GPU.
/// In tests, ranks may share a GPU. Copy engines move blocks from the memory of one GPU to that of another, so all
/// multiprocessors remain available for the computation. If two GPUs cannot access each other's memory
/// (cuDeviceCanAccessPeer), blocks are copied through host memory. The ring enables peer access between the GPUs. It
/// stays enabled until the process ends.
/// @throws Error if num_ranks < 1.
[[nodiscard]] ATTEND_API std::vector<RingContext> make_thread_ring(int num_ranks, const RingLimits& limits = {});

/// Functions that transport messages, provided by the caller. They may use, for example, the process group of a
/// framework. Each call on the ring calls these functions from its own thread. If a function throws an exception, the
/// call on the ring fails.
struct RingCallbacks {
  /// Waits until a message is sent or received. The ring calls this function at most once. It does not call the
  /// function if the call on the ring has already failed. In that situation it destroys the function and then frees the
  /// memory of the message.
  using Wait = std::function<void()>;

  /// Starts an asynchronous send of `bytes` (at least one) to another rank. Channels are numbered 0 to 7 and are
  /// independent of each other. Messages of one channel from one rank to another must arrive in the order in which they
  /// were sent.
  std::function<Wait(int to, int channel, std::span<const std::byte> bytes)> send;

  /// Starts an asynchronous receive of `bytes.size()` bytes.
  std::function<Wait(int from, int channel, std::span<std::byte> bytes)> receive;

  /// Gathers one message of equal size from every rank, in the order of ranks. If unset, the ring uses send and
  /// receive.
  std::function<void(std::span<const std::byte> mine, std::span<std::byte> all)> all_gather = {};

  /// The ring calls this function if this rank fails in a call in which other ranks wait. It must make the waits of the
  /// other ranks throw an exception. If unset, those waits end only by time limits of the caller's functions. The ring
  /// calls no function after this one.
  std::function<void(const std::string& why)> fail = {};
};

/// Makes one rank of a ring whose messages the caller transports. Tensors must be on the CPU. If a call fails after the
/// ranks have agreed on it, every later call fails too.
/// @throws Error if `rank` or `size` is invalid, or if `send` or `receive` is missing.
[[nodiscard]] ATTEND_API RingContext make_callback_ring(int rank, int size, RingCallbacks callbacks);

/// Returns the number of rows that a rank holds.
///
/// @param seqlen      number of tokens of the complete sequence
/// @param cu_seqlens  offsets of packed sequences: num_sequences + 1 elements, from 0 to seqlen. Each sequence is
///   sharded separately, and a rank stores its rows of all sequences one after another. If empty, there is one sequence
/// @throws Error if `rank` is not in [0, num_ranks), or if `seqlen` or `cu_seqlens` is invalid. The functions below
///   throw under the same conditions.
[[nodiscard]] ATTEND_API std::int64_t shard_seqlen(Sharding sharding, std::int64_t seqlen, int rank, int num_ranks,
                                                   std::span<const std::int32_t> cu_seqlens = {});

/// Returns one index for each row of the rank, in the order in which the rank stores its rows. The index is the row's
/// position in the complete (packed) sequence.
[[nodiscard]] ATTEND_API std::vector<std::int64_t> shard_positions(Sharding sharding, std::int64_t seqlen, int rank,
                                                                   int num_ranks,
                                                                   std::span<const std::int32_t> cu_seqlens = {});

/// Copies a rank's rows out of a complete tensor, along dimension 2. The tensor may be q, k, v, dout, a bias or a mask.
///
/// @param whole  complete tensor (batch, heads, seqlen, n) of any dtype on the CPU
/// @param local  output, same shape, except that shape[2] is shard_seqlen()
ATTEND_API void shard(Sharding sharding, const ConstTensor& whole, const Tensor& local, int rank, int num_ranks,
                      std::span<const std::int32_t> cu_seqlens = {});

/// Writes a rank's rows to their places in the complete tensor `whole` and leaves the other rows unchanged. This is the
/// inverse of shard().
ATTEND_API void unshard(Sharding sharding, const ConstTensor& local, const Tensor& whole, int rank, int num_ranks,
                        std::span<const std::int32_t> cu_seqlens = {});

/// Computes attend::forward of the complete sequence. Every rank must call this function. It passes its rows of the
/// inputs and receives its rows of o and lse.
///
/// @param context   the rank that calls
/// @param q         the rank's rows of q: (batch, num_heads_q, shard_seqlen(seqlen_q), head_dim)
/// @param k         the rank's rows of k: (batch, num_heads_k, shard_seqlen(seqlen_k), head_dim)
/// @param v         the rank's rows of v: (batch, num_heads_k, shard_seqlen(seqlen_k), head_dim_v)
/// @param o         output, the rank's rows: (batch, num_heads_q, shard_seqlen(seqlen_q), head_dim_v)
/// @param lse       output, f32, the rank's rows: (batch, num_heads_q, shard_seqlen(seqlen_q), 1). May be null
/// @param params    options of forward, the same on every rank except for tensors. bias and mask have the rank's rows
///   and all keys in sequence order: (1 or batch, 1 or num_heads_q, 1 or the rank's rows, seqlen_k). varlen describes
///   the complete sequence. On a CPU, compute is auto, cpu or reference. On a GPU, it is auto, simt or sm90_forward.
///   workspace is not used
/// @param ring_params  sharding and algorithm
/// @param stream    stream of the rank's GPU
///
/// Masks, windows, ALiBi and dropout use positions in the complete sequence. The result therefore equals that of a
/// single device, except for the order of sums. Partial results are kept in float32, or in float64 if q is float64.
/// They are merged in float64, or in float32 on a GPU, and rounded once. Blocks that no row sees are not computed. A
/// block of keys travels only until it has reached the last rank that sees any of its keys. Within a group of kTwoLevel
/// and with kAllToAll, however, all keys are sent.
///
/// The call needs memory in addition to the tensors. A block is a buffer for the k and v, or their gradients, of one
/// rank. With kExchange, the call needs two blocks of k and v, and a copy of the rank's o. That copy is float32 on a
/// GPU; on a CPU there is one in float32 and one in float64. With kAllGather, it needs two copies of the k and v of all
/// ranks whose keys the rank sees. With kAllToAll, it needs three copies of a rank's tensors. With kTwoLevel, it needs
/// the memory of both kAllToAll and kExchange. On a GPU, the context owns these buffers and keeps them for its next
/// call.
///
/// The result is deterministic for a given number of ranks and a given algorithm. Another number of ranks or another
/// algorithm changes the order of the sums.
///
/// On a CPU, the call returns when this rank has done its work. On a GPU it returns when the work is queued on
/// `stream`, and messages travel on a separate stream of the context. Before any other data is sent, the ranks compare
/// shapes and options. The host waits for this comparison. On a GPU it also waits until the messages of earlier calls
/// have been sent, so the call cannot be captured in a graph.
/// @throws Error naming the argument, as forward does, or if a rank's shapes or options differ from those of rank 0.
///   Every rank throws the same error, and no output has been written. Rings over MPI refuse tensors on a GPU, and
///   rings over NCCL refuse tensors on a CPU. On a GPU, the call refuses bias and mask with kStriped, kAllToAll or
///   kTwoLevel.
ATTEND_API void ring_forward(const RingContext& context, const ConstTensor& q, const ConstTensor& k,
                             const ConstTensor& v, const Tensor& o, const Tensor* lse, const Params& params = {},
                             const RingParams& ring_params = {}, Stream stream = nullptr);

/// Computes attend::backward of the complete sequence: the gradients of ring_forward. Every tensor has the rank's rows.
///
/// backward and ring_forward describe the arguments. extras.dlse is supported, and extras.dbias is refused. k, v and
/// the float32 sums of dk and dv travel around the ring. Values of query rows, such as lse, stay on the rank that holds
/// the rows.
///
/// On CPUs, if dropout is on and o has 16 bits, the call computes forward again. The reason is that the terms of a
/// gradient may cancel, and the rounding error of o may then exceed the gradient. On a GPU, compute is auto, simt or
/// sm90_backward. On a GPU without Params::deterministic, the order of sums may change from run to run.
///
/// The call needs memory in addition to the tensors. On CPUs it needs two blocks of k and v, four blocks of dk and dv,
/// and two copies of dq: one in float32 and one in float64. On a GPU it needs three blocks of k and v, five blocks of
/// dk and dv, and a copy of dq in float32.
/// @throws Error naming the argument, as ring_forward does.
ATTEND_API void ring_backward(const RingContext& context, const ConstTensor& dout, const ConstTensor& q,
                              const ConstTensor& k, const ConstTensor& v, const ConstTensor& o, const ConstTensor& lse,
                              const Tensor& dq, const Tensor& dk, const Tensor& dv, const Params& params = {},
                              const RingParams& ring_params = {}, Stream stream = nullptr,
                              const BackwardExtras& extras = {});

/// Sizes of the call that explain_ring() describes.
struct RingProblem {
  int num_ranks = 2;                     ///< number of ranks in the ring
  DeviceType device = DeviceType::kCPU;  ///< device of the tensors
  DType dtype = DType::kBF16;            ///< dtype of q, k and v
  std::int64_t batch = 1;                ///< number of sequences
  std::int64_t num_heads_q = 1;          ///< number of query heads
  std::int64_t num_heads_k = 1;          ///< number of heads of keys and values
  std::int64_t seqlen_q = 0;             ///< number of query rows in the complete sequence
  std::int64_t seqlen_k = 0;             ///< number of keys in the complete sequence
  std::int64_t head_dim = 0;             ///< head dimension of q and k
  std::int64_t head_dim_v = 0;           ///< head dimension of v and o
  bool is_backward = false;              ///< true for ring_backward, false for ring_forward
};

/// One step of an algorithm. All ranks execute a step at the same time.
struct RingStep {
  std::string what;             ///< short description of the step
  std::int64_t sent_bytes = 0;  ///< largest number of bytes that any rank sends
  double compute_us = 0;        ///< estimated compute time of the slowest rank
  double exchange_us = 0;       ///< estimated exchange time of the slowest rank
  double exposed_us = 0;        ///< the part of exchange_us during which nothing is computed
};

/// Describes how one algorithm would run the call.
struct RingCandidate {
  RingAlgorithm algorithm = RingAlgorithm::kExchange;  ///< the algorithm that this object describes
  bool chosen = false;  ///< true for the requested algorithm, or for the one that kAutomatic chooses
  /// Reason why the algorithm cannot run the call, or why kAutomatic does not choose it. Empty if there is none.
  std::string lack;
  int ranks_of_group = 1;         ///< group size; greater than 1 only for kTwoLevel
  std::string why;                ///< one line that shows how the estimate is computed
  std::vector<RingStep> steps;    ///< empty if the algorithm cannot run the call
  std::int64_t sent_bytes = 0;    ///< number of bytes that a rank sends in the call; the maximum over all ranks
  std::int64_t memory_bytes = 0;  ///< memory in addition to the tensors, for messages and merged results
  double estimated_us = 0;        ///< estimated time of the call, in microseconds
};

/// Returns how each algorithm would run a call. Needs no ring and does not run the call. The result depends only on the
/// arguments. With kAutomatic, the ranks of a ring use this function to choose the algorithm. The times are estimates
/// of a model (docs/ring.md). They are meant for comparing algorithms.
///
/// @param params  mask, window, dropout and varlen of the call. The contents of bias and mask are not read
/// @throws Error if sizes are invalid, or if `ring_params` names an algorithm that cannot run the call
[[nodiscard]] ATTEND_API std::vector<RingCandidate> explain_ring(const RingProblem& problem, const Params& params = {},
                                                                 const RingParams& ring_params = {});

}  // namespace attend
