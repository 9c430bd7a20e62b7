// Exact attention: forward and backward.
//
//   attend::forward({.q = q, .k = k, .v = v, .o = o, .lse = lse, .params = {.causal = true}});
//   attend::backward({.q = q, .k = k, .v = v, .o = o, .lse = lse, .dout = dout,
//                     .dq = dq, .dk = dk, .dv = dv, .params = {.causal = true}});
//
// plan() makes a Plan of either call. The Plan explains what the call will do, prepares it, and runs it any number of
// times. The end of the file has overloads of the same functions with positional arguments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "attend/block_mask.hpp"
#include "attend/error.hpp"
#include "attend/export.hpp"
#include "attend/score_function.hpp"
#include "attend/tensor.hpp"
#include "attend/version.hpp"

namespace attend {

/// Packed sequences of different lengths. The tensors then have batch dimension 1, and the seqlen dimension holds the
/// tokens of all sequences one after another: q is (1, num_heads_q, total_q, head_dim). Sequence s owns the query rows
/// [cu_seqlens_q[s], cu_seqlens_q[s+1]) and the keys [cu_seqlens_k[s], cu_seqlens_k[s+1]). Rows of different sequences
/// do not see each other.
///
/// The arrays start at 0, never decrease, and end at total_q (total_k). A call on a CPU refuses arrays that break these
/// conditions. A call on a GPU cannot check them, because only the kernels read the arrays; with invalid arrays the
/// results are meaningless, but no access leaves the tensors.
struct Varlen {
  const std::int32_t* cu_seqlens_q = nullptr;  ///< (num_sequences + 1), on the tensors' device
  const std::int32_t* cu_seqlens_k = nullptr;  ///< (num_sequences + 1), on the tensors' device
  std::int64_t num_sequences = 0;              ///< number of sequences
  std::int64_t max_seqlen_q = 0;               ///< upper bound of every query length
  std::int64_t max_seqlen_k = 0;               ///< upper bound of every key length
};

/// Scratch memory for a call, on the tensors' device. Without it, the call allocates from a pool of the library, in
/// stream order.
struct WorkspaceView {
  void* data = nullptr;   ///< address, a multiple of 256
  std::size_t bytes = 0;  ///< at least Plan::workspace_bytes()
};

/// The computation. The fields `deterministic`, `workspace` and `compute` control how the call runs. Every default
/// means "off".
///
///   s[i,j] = scale * <q[i], k[j]>
///   s      = softcap * tanh(s / softcap)                      if softcap > 0
///   s     += bias[i,j] - alibi_slope * |i + off - j|          off = seqlen_k - seqlen_q
///   s      = score(s, b, h, i, j, ...)                        if there is a score function
///   s      = -inf where masked (causal, window, mask, block_mask)
///   p[i,j] = exp(s[i,j]) / sum_j exp(s[i,j]),   o[i] = sum_j dropout(p)[i,j] v[j]
///
/// With sinks, p[i,j] = exp(s[i,j]) / (exp(sink) + sum_j exp(s[i,j])): the sum includes exp(sink) of the head once.
///
/// Masks align to the bottom right. For seqlen_q = 2 and seqlen_k = 5, a causal mask keeps (1 = kept):
///
///     1 1 1 1 0        window_left = 1, window_right = 0:    0 0 1 1 0
///     1 1 1 1 1                                              0 0 0 1 1
struct Params {
  std::optional<double> scale = {};  ///< any finite value, including 0 and negative ones; unset: 1/sqrt(head_dim)
  bool causal = false;               ///< keep j <= i + off
  std::int64_t window_left = -1;     ///< keep j >= i + off - window_left; -1: open
  std::int64_t window_right = -1;    ///< keep j <= i + off + window_right; -1: open
  double softcap = 0.0;              ///< >= 0; 0: off
  /// f32 (1 or batch, num_heads_q, 1, 1). Varlen: (1 or num_sequences, ...)
  std::optional<ConstTensor> alibi_slopes = {};
  /// Any float type, (1 or batch, 1 or num_heads_q, 1 or seqlen_q, seqlen_k). -inf hides a key; a finite value never
  /// does. Not with varlen.
  std::optional<ConstTensor> bias = {};
  std::optional<ConstTensor> mask = {};  ///< kBool, broadcasts like bias; 1 keeps, 0 masks. Not with varlen
  /// Any float type (1 or batch, num_heads_q, 1, 1), varlen: (1 or num_sequences, ...). A sink is a score that belongs
  /// to no key but counts in the sum of each row of the head. Scale, softcap, masks and dropout do not change it. -inf:
  /// no sink. Not in a ring.
  std::optional<ConstTensor> sinks = {};
  /// A custom function of scores. A key that the bias hides stays hidden. Must stay alive until the call is done. Not
  /// in a ring.
  const ScoreFunction* score = nullptr;
  /// Hides the pairs of rows and keys that this mask does not see; the other masks still apply. A kernel skips a tile
  /// of at most 192 rows and 128 keys if all mask tiles under it are empty. The mask must have this seqlen_q and
  /// seqlen_k, 1 or batch sequences, and 1 or num_heads_q heads. It lies in host memory, for calls on CPUs and GPUs. It
  /// may be destroyed when the call, or plan(), has returned. Not with varlen, not in a ring.
  const BlockMask* block_mask = nullptr;
  double dropout_p = 0.0;  ///< probability of dropping an entry of p, 0 <= p < 1; kept entries are scaled by 1/(1-p)
  /// Seed of dropout. Philox 4x32-10 makes the dropped entries a pure function of seed, offset and (sequence, head, i,
  /// j): the same forward and backward, on every device. The library draws no random numbers. Training steps and layers
  /// that must drop different entries have to pass different numbers.
  std::uint64_t seed = 0;
  std::uint64_t offset = 0;  ///< selects another pattern of the same seed
  /// If non-null, points to {seed, offset}, which override the two fields above. The numbers lie in host memory for
  /// tensors on a CPU, and in memory that the GPU can read for tensors on a GPU. On a GPU the kernels read them when
  /// they run, so each replay of a CUDA graph uses the current values. The values must not change until backward has
  /// run.
  const std::uint64_t* philox_state = nullptr;
  /// Makes the backward on a GPU bit-identical from run to run. All other results always are.
  bool deterministic = false;
  std::optional<Varlen> varlen = {};  ///< packed sequences; unset: all have seqlen_q rows and seqlen_k keys
  WorkspaceView workspace = {};       ///< scratch memory, used until the call is done; CPU backends ignore it
  /// A backend's name (see backends()) or alias, or "auto": the best backend for the device. This is a view: the
  /// characters must stay valid until the call, or plan(), has returned.
  std::string_view compute = "auto";
};

/// The arguments of forward. Inputs may lie in const memory. All tensors lie on the device of q.
struct ForwardCall {
  ConstTensor q;  ///< f32, f16 or bf16 (batch, num_heads_q, seqlen_q, head_dim), 1 <= head_dim <= 512
  /// Like q (batch, num_heads_k, seqlen_k, head_dim); num_heads_q is a multiple of num_heads_k, and query head h reads
  /// key head h / (num_heads_q / num_heads_k)
  ConstTensor k;
  ConstTensor v;  ///< like q (batch, num_heads_k, seqlen_k, head_dim_v), 1 <= head_dim_v <= 512
  Tensor o;       ///< out, dtype of q, (batch, num_heads_q, seqlen_q, head_dim_v). Overlaps no input
  /// Out, f32 (batch, num_heads_q, seqlen_q, 1): natural log of sum_j exp(s[i,j]), with exp(sink) added to
  /// the sum if there are sinks. Dropout does not change it
  std::optional<Tensor> lse = {};
  Params params = {};       ///< the computation and its options
  Stream stream = nullptr;  ///< stream of a GPU; forward returns before the GPU has finished
};

/// Computes o = softmax(scale * q k^T + bias) v in one streaming pass with an online softmax. It allocates no seqlen_q
/// x seqlen_k buffer.
///
/// A row that sees no key gives o = 0 and lse = -inf; with sinks, lse is the sink.
///
/// NaN and inf in the inputs reach the outputs that depend on them. On a CPU, and with compute `reference` and `simt`,
/// they reach no other output. Kernels on tensor cores multiply complete tiles, in which 0 * NaN is NaN. If some row of
/// a tile sees a NaN or inf, it may therefore reach the tile's other rows and keys; in backward, the same holds for a
/// NaN or inf at a row. Values beyond a sequence's length, in another head or packed sequence, or in tiles that no row
/// sees, reach no output on any backend.
///
/// Scores and lse are computed in float32 (float64 by `reference`). An lse below the lowest float32 is -inf, one above
/// the largest is inf. On a CPU, o is correct even if all scores of a row lie outside float32. Backward then treats a
/// row with lse = -inf as a row that sees no key, and the gradients of a row with lse = inf are meaningless. On a GPU,
/// a row whose scores overflow float32 may be treated as a row that sees no key. Kernels on tensor cores need |scale
/// log2(e) <q, k>| to stay within float32. bfloat16 subnormals (below 1.2e-38) count as 0 if cpu_bf16_unit() is
/// AVX512_BF16 or AMX. o is summed in float32: the mean of equal values differs from that value by at most 2e-6 of it.
///
/// The `cpu` backend accepts any mix of f32, f16 and bf16 for inputs and outputs, and f64 for dbias and dsinks.
/// `reference` accepts any mix of all four; if q is f64, lse may be f64.
///
/// Deterministic, and independent of the number of threads. Thread-safe.
/// @throws Error naming the argument, the value found and the allowed values. In that case no output was written.
/// Source: Dao, FlashAttention-2 (2023), Algorithm 1; Milakov & Gimelshein, Online normalizer calculation (2018).
ATTEND_API void forward(const ForwardCall& call);

/// The arguments of backward. Inputs may lie in const memory. All tensors lie on the device of q.
struct BackwardCall {
  ConstTensor q;     ///< as passed to forward
  ConstTensor k;     ///< as passed to forward
  ConstTensor v;     ///< as passed to forward
  ConstTensor o;     ///< as written by forward
  ConstTensor lse;   ///< as written by forward
  ConstTensor dout;  ///< gradient of the loss with respect to o: shape of o, dtype of q, any strides, including 0
  std::optional<ConstTensor> dlse = {};  ///< gradient of the loss with respect to lse, f32, shaped like lse
  Tensor dq;                             ///< out, dtype and shape of q
  Tensor dk;                          ///< out, dtype and shape of k; sums over the query heads that share each key head
  Tensor dv;                          ///< out, dtype and shape of v, summed likewise
  std::optional<Tensor> dbias = {};   ///< out, gradient of params.bias, same shape, any float type
  std::optional<Tensor> dsinks = {};  ///< out, gradient of params.sinks, same shape, any float type
  /// Out, gradients of tensors that params.score reads. The gradient of an element is a sum over the scores that read
  /// the element, in float64 on CPUs and in float32 on GPUs.
  std::vector<CaptureGradient> captures = {};
  Params params = {};       ///< as passed to forward
  Stream stream = nullptr;  ///< stream, as in ForwardCall
};

/// Computes the gradients of forward. Given dout = dL/do (and dlse = dL/dlse), writes dq, dk, dv (and dbias, dsinks).
///
/// Recomputes p from lse tile by tile; scratch memory grows linearly with seqlen. A row that sees no key contributes
/// only its dlse, to dsinks. NaN and inf propagate as in forward.
///
/// A bias that is the same for all keys of a row changes no gradient, however large it is. In rows with a bias and
/// |lse| >= 1024, lse is too coarse to normalise p, so p is divided by its row sum. Two cases skip this division, and p
/// then has a relative error of 2^-24 |lse|: the parts of a ring, and, on GPUs, rows whose lse is large because of
/// ALiBi alone (sm90_backward). On a GPU, the weight of a sink next to such an lse has the same error, in o and in
/// dsinks.
///
/// Deterministic and independent of the number of threads. The exception is a GPU without Params::deterministic, where
/// the order of the sums in dq may change. Thread-safe.
/// @throws Error as forward does.
/// Source: Dao, FlashAttention-2 (2023), Algorithm 2.
ATTEND_API void backward(const BackwardCall& call);

/// How one backend would run a call.
struct Candidate {
  std::string compute;       ///< the backend's name
  bool chosen = false;       ///< true for the backend that runs the call
  std::string lack = {};     ///< why the backend cannot run the call, one line; empty if it can
  std::string why = {};      ///< why the backend would use its algorithm and tiles, one line
  std::string variant = {};  ///< compile-time options of its kernels, "head_dim=128 mask=causal block_m=64 ..."
  std::vector<std::string> steps = {};  ///< one line for each kernel: name, grid, threads and shared memory
  double estimated_us = 0;              ///< "auto" compares this time; infinity: "auto" never chooses this backend
  std::size_t workspace_bytes = 0;      ///< scratch memory on the device
};

/// A checked call and the backend that will run it:
///
///   const attend::Plan plan = attend::plan(attend::ForwardCall{.q = q, .k = k, .v = v, .o = o});
///   plan.prepare();
///   for (const Batch& batch : batches) {
///     ...  // fill q, k and v
///     plan.run();
///   }
///
/// A plan copies the call, but not the memory that the call points to. Tensors, cu_seqlens, philox_state and the
/// workspace must stay valid until the plan's last run is done. Params::compute, score and block_mask may be destroyed
/// when plan() has returned. If Params::compute cannot run the call, explanation() still gives each backend's reason,
/// and the other functions throw the Error that forward() or backward() throws. Copies share one immutable state.
/// Thread-safe.
class ATTEND_API Plan {
 public:
  /// Returns the name of the backend that runs the call, one of backends(). The name stays valid while the process
  /// runs.
  [[nodiscard]] std::string_view compute() const;

  /// Returns how every backend of the tensors' device would run the call. Backends that "auto" prefers come first.
  /// Compiles nothing, and reads and writes no tensor.
  [[nodiscard]] std::vector<Candidate> explanation() const;

  /// Returns the bytes of scratch memory that the call needs on its device. Returns 0 for a CPU, whose backends manage
  /// their own memory. The result depends only on shapes, strides, dtypes, devices and alignment of the tensors.
  [[nodiscard]] std::size_t workspace_bytes() const;

  /// Compiles and loads the kernels that the call needs, and returns when they are loaded. Call it before a graph is
  /// captured or before a server accepts its first request. Reads and writes no tensor.
  ///
  /// The library keeps kernels for each combination of: the chosen kernels and their tiles (which follow from the
  /// sizes); dtypes; head_dim of q and v; kind of mask (none, causal, window); which options are on, not their values;
  /// sign of the scale; and whether all addresses, rows and strides are multiples of 16 bytes. The first call with a
  /// new combination compiles (seconds) or loads the machine code from disk (milliseconds), even while its stream is
  /// being captured.
  void prepare() const;

  /// Runs the call as forward() or backward() would. On a CPU each run reads cu_seqlens and philox_state again and
  /// checks cu_seqlens.
  /// @throws Error as forward does.
  void run() const;

  /// Runs the call with this scratch memory instead of Params::workspace.
  void run(const WorkspaceView& workspace) const;

 private:
  friend ATTEND_API Plan plan(const ForwardCall& call);
  friend ATTEND_API Plan plan(const BackwardCall& call);
  struct State;
  explicit Plan(std::shared_ptr<const State> state) noexcept;

  std::shared_ptr<const State> state_;
};

/// Checks the arguments and chooses the backend. Compiles and writes nothing.
/// @throws Error naming the argument, if no backend can run the call.
[[nodiscard]] ATTEND_API Plan plan(const ForwardCall& call);
/// Does the same for backward.
[[nodiscard]] ATTEND_API Plan plan(const BackwardCall& call);

/// One way to compute attention.
struct BackendInfo {
  std::string name;         ///< value for Params::compute and --compute
  std::string description;  ///< one line
  DeviceType device;        ///< device of its tensors
  bool has_backward;        ///< true if it computes gradients
};

/// Returns every backend of this build. For each device, backends that "auto" prefers come first; the last one of a GPU
/// supports the most options.
[[nodiscard]] ATTEND_API std::vector<BackendInfo> backends();

/// Returns the number of threads that the `cpu` backend would use for a call from this thread; the smallest problems
/// use fewer. The number is the argument of set_cpu_threads(), otherwise OMP_NUM_THREADS, otherwise the number of cores
/// in the process's affinity mask. OpenMP settings made by other libraries do not change it.
[[nodiscard]] ATTEND_API int cpu_threads();

/// Sets the number of threads for the process; 0 restores the default.
/// @throws Error if threads < 0.
ATTEND_API void set_cpu_threads(int threads);

/// Returns the SIMD target of the `cpu` backend on this machine, for example "AVX3" (AVX-512), "AVX2" or "SSE4". It is
/// the best target of the processor, or the one that the environment variable ATTEND_SIMD names.
/// @throws Error if ATTEND_SIMD names no target that this processor can run.
[[nodiscard]] ATTEND_API std::string cpu_simd_target();

/// Returns the unit that multiplies bfloat16 tensors in the `cpu` backend on this machine: "AMX" (Intel, 4th generation
/// Xeon and later), "AVX512_BF16" (AMD, Zen 4 and later), or "float32". The environment variable ATTEND_CPU_BF16_DOT
/// overrides the choice (docs/building.md); it can also select "emulated AMX".
/// @throws Error if the variable names no unit, or a unit that this processor or SIMD target does not have.
[[nodiscard]] ATTEND_API std::string cpu_bf16_unit();

// The same functions with positional arguments. ForwardCall and BackwardCall describe the arguments. `lse` of a forward
// may be null.

/// Optional tensors of a BackwardCall.
struct BackwardExtras {
  std::optional<ConstTensor> dlse = {};        ///< in
  std::optional<Tensor> dbias = {};            ///< out
  std::optional<Tensor> dsinks = {};           ///< out
  std::vector<CaptureGradient> captures = {};  ///< out
};

/// Returns a ForwardCall of these arguments.
[[nodiscard]] inline ForwardCall forward_call(const ConstTensor& q, const ConstTensor& k, const ConstTensor& v,
                                              const Tensor& o, const Tensor* lse, const Params& params,
                                              Stream stream = nullptr) {
  ForwardCall call = {.q = q, .k = k, .v = v, .o = o, .params = params, .stream = stream};
  if (lse != nullptr) call.lse = *lse;
  return call;
}

/// Returns a BackwardCall of these arguments.
[[nodiscard]] inline BackwardCall backward_call(const ConstTensor& dout, const ConstTensor& q, const ConstTensor& k,
                                                const ConstTensor& v, const ConstTensor& o, const ConstTensor& lse,
                                                const Tensor& dq, const Tensor& dk, const Tensor& dv,
                                                const Params& params, const BackwardExtras& extras,
                                                Stream stream = nullptr) {
  return {.q = q,
          .k = k,
          .v = v,
          .o = o,
          .lse = lse,
          .dout = dout,
          .dlse = extras.dlse,
          .dq = dq,
          .dk = dk,
          .dv = dv,
          .dbias = extras.dbias,
          .dsinks = extras.dsinks,
          .captures = extras.captures,
          .params = params,
          .stream = stream};
}

/// Calls forward(ForwardCall).
inline void forward(const ConstTensor& q, const ConstTensor& k, const ConstTensor& v, const Tensor& o,
                    const Tensor* lse = nullptr, const Params& params = {}, Stream stream = nullptr) {
  forward(forward_call(q, k, v, o, lse, params, stream));
}

/// Calls backward(BackwardCall).
inline void backward(const ConstTensor& dout, const ConstTensor& q, const ConstTensor& k, const ConstTensor& v,
                     const ConstTensor& o, const ConstTensor& lse, const Tensor& dq, const Tensor& dk, const Tensor& dv,
                     const Params& params = {}, Stream stream = nullptr, const BackwardExtras& extras = {}) {
  backward(backward_call(dout, q, k, v, o, lse, dq, dk, dv, params, extras, stream));
}

/// Returns Plan::workspace_bytes() of the same forward call.
[[nodiscard]] inline std::size_t forward_workspace_bytes(const ConstTensor& q, const ConstTensor& k,
                                                         const ConstTensor& v, const Tensor& o,
                                                         const Tensor* lse = nullptr, const Params& params = {}) {
  return plan(forward_call(q, k, v, o, lse, params)).workspace_bytes();
}
/// Returns Plan::workspace_bytes() of the same backward call.
[[nodiscard]] inline std::size_t backward_workspace_bytes(const ConstTensor& dout, const ConstTensor& q,
                                                          const ConstTensor& k, const ConstTensor& v,
                                                          const ConstTensor& o, const ConstTensor& lse,
                                                          const Tensor& dq, const Tensor& dk, const Tensor& dv,
                                                          const Params& params = {},
                                                          const BackwardExtras& extras = {}) {
  return plan(backward_call(dout, q, k, v, o, lse, dq, dk, dv, params, extras)).workspace_bytes();
}

/// Calls Plan::prepare() of the same forward call.
inline void prepare_forward(const ConstTensor& q, const ConstTensor& k, const ConstTensor& v, const Tensor& o,
                            const Tensor* lse = nullptr, const Params& params = {}) {
  plan(forward_call(q, k, v, o, lse, params)).prepare();
}
/// Calls Plan::prepare() of the same backward call.
inline void prepare_backward(const ConstTensor& dout, const ConstTensor& q, const ConstTensor& k, const ConstTensor& v,
                             const ConstTensor& o, const ConstTensor& lse, const Tensor& dq, const Tensor& dk,
                             const Tensor& dv, const Params& params = {}, const BackwardExtras& extras = {}) {
  plan(backward_call(dout, q, k, v, o, lse, dq, dk, dv, params, extras)).prepare();
}

/// Returns Plan::explanation() of the same forward call.
[[nodiscard]] inline std::vector<Candidate> explain_forward(const ConstTensor& q, const ConstTensor& k,
                                                            const ConstTensor& v, const Tensor& o,
                                                            const Tensor* lse = nullptr, const Params& params = {}) {
  return plan(forward_call(q, k, v, o, lse, params)).explanation();
}
/// Returns Plan::explanation() of the same backward call.
[[nodiscard]] inline std::vector<Candidate> explain_backward(const ConstTensor& dout, const ConstTensor& q,
                                                             const ConstTensor& k, const ConstTensor& v,
                                                             const ConstTensor& o, const ConstTensor& lse,
                                                             const Tensor& dq, const Tensor& dk, const Tensor& dv,
                                                             const Params& params = {},
                                                             const BackwardExtras& extras = {}) {
  return plan(backward_call(dout, q, k, v, o, lse, dq, dk, dv, params, extras)).explanation();
}

}  // namespace attend
