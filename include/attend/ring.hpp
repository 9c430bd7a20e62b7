// Ring attention: exact attention of one sequence whose rows and keys lie on several ranks (context parallelism).
//
//   const std::vector<attend::RingContext> ranks = attend::make_thread_ring(4);  // or ring_nccl.hpp, ring_mpi.hpp
//   attend::ring_forward(ranks[r], q, k, v, o, &lse, {.causal = true}, attend::Sharding::kZigzag);   // on thread r
//
// Every rank calls with its own rows of q, k and v. Keys and values go round the ring, queries stay; each rank merges
// what its rows see of each part by the parts' log-sum-exp. docs/ring.md draws it and counts what it costs.
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
class Transport;  // how messages travel: the library's own business
}

/// Which rows of a sequence of n tokens a rank r of N holds, of queries and keys alike. Any n will do, also n < N.
///
///   n = 12, N = 3        rank 0         rank 1        rank 2
///   kContiguous          0 1 2 3        4 5 6 7       8 9 10 11       tokens [r n / N, (r + 1) n / N)
///   kZigzag              0 1 10 11      2 3 8 9       4 5 6 7         of 2N such chunks those of numbers r and 2N-1-r
///   kStriped             0 3 6 9        1 4 7 10      2 5 8 11        every N-th token from r on
///
/// Under a causal mask the last two give every rank about the same work in every step, the first does not.
enum class Sharding : std::uint8_t { kContiguous, kZigzag, kStriped };

/// "contiguous", "zigzag" or "striped".
[[nodiscard]] ATTEND_API const char* sharding_name(Sharding sharding) noexcept;

/// What travels. The result is the same but for the order of sums; docs/ring.md compares what they cost.
///
///   kExchange   keys and values go round, a step at a time, those of the next step beside the work of this one; their
///               gradients follow them
///   kAllGather  every rank takes the keys and values that its rows see, all at once, and computes with them as one
///               device would; their gradients go home the same way. For few keys: they all lie in a rank's memory
///   kAllToAll   every rank takes all rows and keys of its share of the heads, and computes these as one device would.
///               The number of ranks divides num_heads_q and num_heads_k
///   kTwoLevel   both: ranks are in groups of neighbours (kStriped: of every n-th), within which heads are dealt out as
///               by kAllToAll, and between which keys and values go round as by kExchange. The members of a group
///               divide num_heads_q, num_heads_k and the number of ranks, and are fewer than these; how many, the
///               model says
///   kAutomatic  that of them which takes the least time by a model of it; explain_ring() tells
enum class RingAlgorithm : std::uint8_t { kAutomatic, kExchange, kAllGather, kAllToAll, kTwoLevel };

/// "automatic", "exchange", "all_gather", "all_to_all" or "two_level".
[[nodiscard]] ATTEND_API const char* algorithm_name(RingAlgorithm algorithm) noexcept;

/// How a call is spread over the ranks, the same on every rank. A sharding alone will do: its algorithm is automatic.
struct RingParams {
  /// A sharding and an algorithm; seed_of_rank_0 stays false.
  RingParams(Sharding sharding_of_tokens = Sharding::kZigzag,  // NOLINT(google-explicit-constructor)
             RingAlgorithm algorithm_of_call = RingAlgorithm::kAutomatic)
      : sharding(sharding_of_tokens), algorithm(algorithm_of_call) {}

  Sharding sharding;        ///< of queries and keys
  RingAlgorithm algorithm;  ///< of this call: that of a forward need not be its backward's

  /// Params::seed is rank 0's, whatever it is on the others: where each rank has drawn its own, say. It travels with
  /// what ranks tell each other of a call anyway. Not with Params::philox_state.
  bool seed_of_rank_0 = false;
};

/// One rank of a ring. A handle: copies stand for the same rank. One thread at a time may use a rank.
class ATTEND_API RingContext {
 public:
  /// For the library's own makers of rings, below and in ring_mpi.hpp.
  explicit RingContext(std::shared_ptr<ring::Transport> transport) noexcept;
  RingContext(const RingContext&);
  RingContext(RingContext&&) noexcept;
  RingContext& operator=(const RingContext&);
  RingContext& operator=(RingContext&&) noexcept;
  ~RingContext();

  [[nodiscard]] int rank() const;  ///< 0 to size() - 1; rank r sends to r + 1, the last one to 0
  [[nodiscard]] int size() const;  ///< number of ranks

  /// Of the library's own.
  [[nodiscard]] ring::Transport& transport() const noexcept { return *transport_; }

 private:
  std::shared_ptr<ring::Transport> transport_;
};

/// How long ranks wait for each other.
struct RingLimits {
  /// On CPUs for one message of another rank: as long as that may take to compute a step, and more. After that the rank
  /// throws (a process of an MPI program ends all of them), as one that is gone or stuck would be waited for for ever.
  /// 0: no end. On GPUs: ring_nccl.hpp.
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
};

/// A ring of `num_ranks` threads of this process: each takes one of the contexts. For tests, and for hosts with several
/// sockets. Each rank computes on cpu_threads() threads: set_cpu_threads() shares the cores out. Where a rank's call
/// ends in an error after the ranks have agreed on it, the others' calls end too, with an Error that says which rank
/// failed, and so does every later call on the ring.
/// Tensors may be on GPUs: a rank's are on one of them in all calls, and a GPU for each rank is what makes it fast.
/// Blocks go from memory to memory by the GPUs' copy engines, which leave all multiprocessors to the products; where
/// two GPUs have no access to each other's memory (cuDeviceCanAccessPeer), by way of the host's. The ring lets GPUs at
/// each other's memory for as long as the process lives. Ranks may share a GPU, which is for tests.
/// @throws Error where num_ranks < 1.
[[nodiscard]] ATTEND_API std::vector<RingContext> make_thread_ring(int num_ranks, const RingLimits& limits = {});

/// How messages travel between ranks that the caller connects himself, over the process group of a framework, say. The
/// functions are called within calls on the ring, on the thread of the call; what they throw ends it.
struct RingCallbacks {
  /// Returns when a message is sent, or there. Called once, or never where the call has failed before: the memory of
  /// the message is gone then.
  using Wait = std::function<void()>;

  /// Begins to send `bytes` (> 0) to another rank, and waits for nobody. Messages of different channels, 0 to 7, do not
  /// see each other; those of one channel from one rank to another arrive in the order in which they were sent.
  std::function<Wait(int to, int channel, std::span<const std::byte> bytes)> send;

  /// Begins to receive exactly as many bytes. Not waited for either.
  std::function<Wait(int from, int channel, std::span<std::byte> bytes)> receive;

  /// Every rank's message, of the same size each, one after another by rank. None: by send and receive.
  std::function<void(std::span<const std::byte> mine, std::span<std::byte> all)> all_gather = {};

  /// This rank has failed in a call that others wait in: their waits shall end, by an exception. None: they end as
  /// their own functions have it. No function is called after this.
  std::function<void(const std::string& why)> fail = {};
};

/// A rank of a ring whose messages are the caller's business. Tensors on the CPU.
/// After a call that failed once the ranks had agreed on it, so does every later one.
/// @throws Error where rank or size make no sense, or `send` or `receive` is missing.
[[nodiscard]] ATTEND_API RingContext make_callback_ring(int rank, int size, RingCallbacks callbacks);

/// Number of rows that a rank holds.
///
/// @param seqlen      tokens of the whole sequence
/// @param cu_seqlens  packed sequences: (num_sequences + 1) offsets of the whole, from 0 to seqlen. Each sequence is
///                    cut over the ranks by itself, and a rank holds its parts of them one after another. Empty: one
///                    sequence
/// @throws Error where rank is not one of num_ranks, or seqlen or cu_seqlens make no sense. So do the functions below.
[[nodiscard]] ATTEND_API std::int64_t shard_seqlen(Sharding sharding, std::int64_t seqlen, int rank, int num_ranks,
                                                   std::span<const std::int32_t> cu_seqlens = {});

/// For each row of the rank, in the order in which it holds them, its row in the whole (packed) sequence.
[[nodiscard]] ATTEND_API std::vector<std::int64_t> shard_positions(Sharding sharding, std::int64_t seqlen, int rank,
                                                                   int num_ranks,
                                                                   std::span<const std::int32_t> cu_seqlens = {});

/// Copies a rank's rows (dimension 2) out of a whole tensor: q, k, v, dout, or the rows of a bias or mask.
///
/// @param whole  any dtype (batch, heads, seqlen, n) on the CPU
/// @param local  out, the same but for shape[2], which is shard_seqlen()
ATTEND_API void shard(Sharding sharding, const ConstTensor& whole, const Tensor& local, int rank, int num_ranks,
                      std::span<const std::int32_t> cu_seqlens = {});

/// The way back: writes a rank's rows to their places in `whole` and leaves the others as they are.
ATTEND_API void unshard(Sharding sharding, const ConstTensor& local, const Tensor& whole, int rank, int num_ranks,
                        std::span<const std::int32_t> cu_seqlens = {});

/// attend::forward of the whole sequence: every rank calls with its rows and gets those of o and lse.
///
/// @param context   the rank that calls
/// @param q         as forward takes it, with the rank's rows: (batch, num_heads_q, shard_seqlen(seqlen_q), head_dim)
/// @param k         likewise, (batch, num_heads_k, shard_seqlen(seqlen_k), head_dim)
/// @param v         likewise, (batch, num_heads_k, shard_seqlen(seqlen_k), head_dim_v)
/// @param o         out, the rank's rows, as forward takes it
/// @param lse       out, may be null; f32, the rank's rows
/// @param params    as forward takes it, the same on every rank, but for: bias and mask have the rank's rows and all
///                  keys in their own order, (1 or batch, 1 or num_heads_q, 1 or the rank's rows, seqlen_k); varlen is
///                  that of the whole. compute: auto, cpu or reference; on a GPU auto, simt or sm90_forward. workspace
///                  is not used
/// @param ring_params  sharding and algorithm
/// @param stream    of the rank's GPU
///
/// Masks, windows, ALiBi and dropout are functions of positions in the whole sequence, so that the result is that of
/// one device, but for the order of sums: parts are kept in float32 (float64 where q is), merged in float64 (on a GPU
/// float32) and rounded once. Parts that see nothing are not computed, and keys travel only as far as somebody sees
/// them (by kAllToAll, and within groups by kTwoLevel, everything travels).
/// Memory beside the tensors: two blocks of a rank's k and v, and its o in float32 and in float64 (on a GPU once, in
/// float32); by kAllGather those blocks of all ranks that it sees, twice; by kAllToAll a rank's tensors, three times;
/// by kTwoLevel these and what kExchange has.
/// Blocks of a GPU belong to the context and stay there for its next call.
/// Deterministic for a number of ranks and an algorithm; others change the order of the sums.
/// The call returns when this rank has done its work; on a GPU when that is on `stream`, beside which blocks travel on
/// a stream of the context's own. All ranks have to call; before anything else is sent, they compare shapes and
/// options, for which the host waits, also for blocks of a GPU that earlier calls have sent: no graph can be captured.
/// @throws Error as forward does, and where a rank's shapes or options differ from rank 0's: the same on every rank;
/// then nothing was written. Tensors on a GPU are refused by rings of MPI, others by those of NCCL; on a GPU bias and
/// mask with kStriped, kAllToAll or kTwoLevel.
ATTEND_API void ring_forward(const RingContext& context, const ConstTensor& q, const ConstTensor& k,
                             const ConstTensor& v, const Tensor& o, const Tensor* lse, const Params& params = {},
                             const RingParams& ring_params = {}, Stream stream = nullptr);

/// The gradients of ring_forward: attend::backward of the whole sequence, every tensor with the rank's rows.
///
/// Arguments as in backward and ring_forward; extras.dlse is taken, extras.dbias refused. k, v and the sums of dk and
/// dv, these in float32, go round the ring; what belongs to rows (lse, and <dout, o> - dlse) stays.
/// With dropout and an o of 16 bits the forward is done once more on CPUs, as gradients may cancel to below o's
/// rounding. On a GPU compute is auto, simt or sm90_backward, and without Params::deterministic the order of sums may
/// change.
/// Memory beside the tensors: two blocks of k and v, four of dk and dv (on a GPU three and five), dq in float32 and,
/// on CPUs, in float64.
/// @throws Error as ring_forward does.
ATTEND_API void ring_backward(const RingContext& context, const ConstTensor& dout, const ConstTensor& q,
                              const ConstTensor& k, const ConstTensor& v, const ConstTensor& o, const ConstTensor& lse,
                              const Tensor& dq, const Tensor& dk, const Tensor& dv, const Params& params = {},
                              const RingParams& ring_params = {}, Stream stream = nullptr,
                              const BackwardExtras& extras = {});

/// A call that explain_ring() is asked about, by its sizes.
struct RingProblem {
  int num_ranks = 2;                     ///< of the ring
  DeviceType device = DeviceType::kCPU;  ///< of the tensors
  DType dtype = DType::kBF16;            ///< of q, k and v
  std::int64_t batch = 1;                ///< sequences
  std::int64_t num_heads_q = 1;          ///< query heads
  std::int64_t num_heads_k = 1;          ///< heads of keys and values
  std::int64_t seqlen_q = 0;             ///< of the whole
  std::int64_t seqlen_k = 0;             ///< likewise
  std::int64_t head_dim = 0;             ///< of q and k
  std::int64_t head_dim_v = 0;           ///< of v and o
  bool is_backward = false;              ///< the gradients
};

/// One thing that a rank does while others do the same.
struct RingStep {
  std::string what;             ///< in a few words
  std::int64_t sent_bytes = 0;  ///< most of any rank
  double compute_us = 0;        ///< of the slowest rank, estimated
  double exchange_us = 0;       ///< likewise
  double exposed_us = 0;        ///< of the exchange what no computation hides
};

/// What an algorithm would make of a call.
struct RingCandidate {
  RingAlgorithm algorithm = RingAlgorithm::kExchange;  ///< its name
  bool chosen = false;                                 ///< the one asked for, or kAutomatic's choice
  std::string lack;               ///< why it cannot, or why kAutomatic leaves it out; empty where it takes part
  int ranks_of_group = 1;         ///< of kTwoLevel
  std::string why;                ///< in one line
  std::vector<RingStep> steps;    ///< empty where it cannot
  std::int64_t sent_bytes = 0;    ///< in all, most of any rank
  std::int64_t memory_bytes = 0;  ///< beside the tensors, of messages and of what they become
  double estimated_us = 0;        ///< of the call, by the model
};

/// How each algorithm would do a call, without ranks and without doing it: a pure function, the same that the ranks'
/// choice is made by. Times are those of a model (docs/ring.md), good for comparing.
///
/// @param params  mask, window, dropout and varlen are looked at; of bias and mask, whether they are given
/// @throws Error where sizes make no sense, or `ring_params` names an algorithm that cannot do the call
[[nodiscard]] ATTEND_API std::vector<RingCandidate> explain_ring(const RingProblem& problem, const Params& params = {},
                                                                 const RingParams& ring_params = {});

}  // namespace attend
