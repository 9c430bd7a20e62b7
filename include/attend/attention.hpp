// Exact attention, forward and backward: the two calls of the library.
//
//   attend::forward({.q = q, .k = k, .v = v, .o = o, .lse = lse, .params = {.causal = true}});
//   attend::backward({.q = q, .k = k, .v = v, .o = o, .lse = lse, .dout = dout,
//                     .dq = dq, .dk = dk, .dv = dv, .params = {.causal = true}});
//
// plan() makes a Plan of either call. The Plan says what the call will do, prepares it, and runs it any number of
// times. At the end of the file are the same functions with their arguments in a row.
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

/// Packed sequences of different lengths. The tensors then have batch dimension 1 and a seqlen dimension that holds all
/// tokens one after another: q is (1, num_heads_q, total_q, head_dim). Sequence s owns the query rows
/// [cu_seqlens_q[s], cu_seqlens_q[s+1]) and the keys [cu_seqlens_k[s], cu_seqlens_k[s+1]).
/// The arrays start at 0, never decrease, and end at total_q (total_k): on a CPU others are refused; on a GPU, where
/// they are not read before the kernels run, what is computed then means nothing, but lies inside the tensors. Rows of
/// different sequences do not see each other.
struct Varlen {
  const std::int32_t* cu_seqlens_q = nullptr;  ///< (num_sequences + 1), on the tensors' device
  const std::int32_t* cu_seqlens_k = nullptr;  ///< (num_sequences + 1), on the tensors' device
  std::int64_t num_sequences = 0;              ///< how many there are
  std::int64_t max_seqlen_q = 0;               ///< an upper bound of every query length
  std::int64_t max_seqlen_k = 0;               ///< an upper bound of every key length
};

/// Memory for the scratch of a call, on the tensors' device. A call that is given none takes it from a pool of the
/// library's own, in the stream's order.
struct WorkspaceView {
  void* data = nullptr;   ///< a multiple of 256
  std::size_t bytes = 0;  ///< at least what Plan::workspace_bytes() says
};

/// What is computed and, with `deterministic`, `workspace` and `compute`, how. Every default means "off".
///
///   s[i,j] = scale * <q[i], k[j]>
///   s      = softcap * tanh(s / softcap)                      if softcap > 0
///   s     += bias[i,j] - alibi_slope * |i + off - j|          off = seqlen_k - seqlen_q
///   s      = score(s, b, h, i, j, ...)                        if there is a score function
///   s      = -inf where masked (causal, window, mask, block_mask)
///   p[i,j] = exp(s[i,j]) / sum_j exp(s[i,j]),   o[i] = sum_j dropout(p)[i,j] v[j]
///
/// With sinks, p[i,j] = exp(s[i,j]) / (exp(sink) + sum_j exp(s[i,j])): the sum has exp(sink) of the head once.
///
/// Masks align bottom right. seqlen_q = 2, seqlen_k = 5, causal keeps (1 = kept):
///
///     1 1 1 1 0        window_left = 1, window_right = 0:    0 0 1 1 0
///     1 1 1 1 1                                              0 0 0 1 1
struct Params {
  std::optional<double> scale = {};  ///< unset: 1/sqrt(head_dim). Any finite value, also 0 and negative ones
  bool causal = false;               ///< keep j <= i + off
  std::int64_t window_left = -1;     ///< keep j >= i + off - window_left; -1: open
  std::int64_t window_right = -1;    ///< keep j <= i + off + window_right; -1: open
  double softcap = 0.0;              ///< >= 0; 0: off
  /// f32 (1 or batch, num_heads_q, 1, 1). Varlen: (1 or num_sequences, ...)
  std::optional<ConstTensor> alibi_slopes = {};
  /// Any float type, (1 or batch, 1 or num_heads_q, 1 or seqlen_q, seqlen_k). -inf hides a key, a finite value never
  /// does. Not with varlen
  std::optional<ConstTensor> bias = {};
  std::optional<ConstTensor> mask = {};  ///< kBool, broadcasts like bias; 1 keeps, 0 masks. Not with varlen
  /// Any float type (1 or batch, num_heads_q, 1, 1), varlen: (1 or num_sequences, ...): a score that counts in the sum
  /// of each row of the head and belongs to no key. Scale, softcap, masks and dropout leave it alone. -inf: none.
  /// Not in a ring
  std::optional<ConstTensor> sinks = {};
  /// A function of the caller's own. With bias, a key that the bias hides stays hidden. Not in a ring.
  /// It stays until the call is done
  const ScoreFunction* score = nullptr;
  /// Keeps the pairs of rows and keys that the mask sees, of those that the other masks keep. What a kernel computes
  /// together, at most 192 rows and 128 keys, is left out if all of its tiles are empty. Of this seqlen_q and seqlen_k,
  /// and of 1 or batch sequences, 1 or num_heads_q heads. On a CPU, for calls on CPUs and GPUs. Not with varlen, not in
  /// a ring. It may go when the call, or plan(), has returned
  const BlockMask* block_mask = nullptr;
  double dropout_p = 0.0;  ///< probability of dropping an entry of p, 0 <= p < 1; kept ones grow by 1/(1-p)
  /// Of dropout, by Philox 4x32-10: the dropped entries are a pure function of seed, offset and (sequence, head, i, j),
  /// the same forward, backward, on every device. Nothing here draws: calls that are to drop other entries (the steps
  /// and layers of a training) have to be given other numbers
  std::uint64_t seed = 0;
  std::uint64_t offset = 0;  ///< with seed, as above: another pattern of the same seed
  /// If not null: the address of {seed, offset}, which replace the two numbers above. The numbers lie in the host's
  /// memory for tensors on a CPU, and in memory that the GPU can read for tensors on a GPU. There the kernels read them
  /// when they run: each replay of a CUDA graph drops what they then say. They stay the same until backward has run
  const std::uint64_t* philox_state = nullptr;
  bool deterministic = false;         ///< bit-equal results from run to run, backward on a GPU too. All else always is
  std::optional<Varlen> varlen = {};  ///< packed sequences; unset: all have seqlen_q rows and seqlen_k keys
  WorkspaceView workspace = {};       ///< used until the call is done; not by the CPU's backends
  /// A backend's name (see backends()) or alias, or "auto": the best one for the device. This is a view: the characters
  /// have to stay until the call, or plan(), has returned
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
  Params params = {};       ///< what is computed, and how
  Stream stream = nullptr;  ///< of a GPU: forward returns before the work is done there
};

/// o = softmax(scale * q k^T + bias) v, one streaming pass with an online softmax; no seqlen_q x seqlen_k buffer.
///
/// A row that sees no key gives o = 0 and lse = -inf, or its sink.
/// NaN and inf in the inputs reach the outputs that depend on them. Exactly those on a CPU and with compute `reference`
/// and `simt`. Kernels on tensor cores multiply whole tiles, in which 0 * NaN is NaN: there a NaN or inf at a key, or
/// in backward at a row, that some row of a tile sees may reach the tile's other rows and keys too. What lies beyond a
/// length, in another head or packed sequence, or where no row of a tile looks, reaches nothing there either.
/// Scores are computed in float32 (float64 by `reference`), and so is lse: below the lowest float32 it is -inf, above
/// the largest inf. On a CPU o is right even if all scores of a row lie beyond float32; backward then takes a row with
/// an lse of -inf for one that sees no key, and gradients of one with inf mean nothing. On a GPU a row whose scores
/// overflow float32 may look like one that sees no key; kernels on tensor cores need |scale log2(e) <q, k>| to stay
/// within float32. bfloat16 subnormals (below 1.2e-38) count as 0 if cpu_bf16_unit() is AVX512_BF16 or AMX. o is a
/// float32 sum: a mean of equal values is that value to 2e-6 of it.
/// Deterministic, and independent of the number of threads. Thread-safe.
/// @throws Error naming the argument, the value found and what is allowed; then nothing was written.
/// Source: Dao, FlashAttention-2 (2023), Algorithm 1; Milakov & Gimelshein, Online normalizer calculation (2018).
/// The `cpu` backend takes and gives any mix of f32, f16 and bf16, and dbias and dsinks in f64 as well; `reference` any
/// mix of all four, and with f64 q, lse may be f64.
ATTEND_API void forward(const ForwardCall& call);

/// The arguments of backward. Inputs may lie in const memory. All tensors lie on the device of q.
struct BackwardCall {
  ConstTensor q;     ///< as forward took it
  ConstTensor k;     ///< likewise
  ConstTensor v;     ///< likewise
  ConstTensor o;     ///< as forward gave it
  ConstTensor lse;   ///< likewise
  ConstTensor dout;  ///< gradient of the loss with respect to o: shape of o, dtype of q, any strides (0 too)
  std::optional<ConstTensor> dlse = {};  ///< gradient of the loss with respect to lse, f32, shaped like lse
  Tensor dq;                             ///< out, dtype and shape of q
  Tensor dk;                             ///< out, dtype and shape of k: summed over the query heads that share it
  Tensor dv;                             ///< out, dtype and shape of v, likewise
  std::optional<Tensor> dbias = {};      ///< out, gradient of params.bias, same shape as it, any float type
  std::optional<Tensor> dsinks = {};     ///< out, gradient of params.sinks, likewise
  /// Out, gradients of tensors that params.score reads: of each element, the sum over the scores that have read it, in
  /// float64 on CPUs and in float32 on GPUs
  std::vector<CaptureGradient> captures = {};
  Params params = {};       ///< as forward took them
  Stream stream = nullptr;  ///< as in ForwardCall
};

/// The gradients of forward: given dout = dL/do (and dlse = dL/dlse), writes dq, dk, dv (and dbias, dsinks).
///
/// Rows that see no key contribute nothing but their dlse, to dsinks. NaN and inf go where forward says. Recomputes p
/// from lse tile by tile; scratch grows linearly with seqlen. A bias that all keys of a row share changes no gradient,
/// however large: in rows with a bias and |lse| >= 1024, whose lse has lost the number of keys, p is divided by its
/// sum. Not in parts of a ring, nor on GPUs in rows whose lse is large by ALiBi alone (sm90_backward): there p has the
/// relative error of 2^-24 |lse|. So has, on a GPU, the share of a sink beside such an lse, in o and dsinks.
/// Deterministic and independent of the number of threads, but on a GPU without Params::deterministic, where the order
/// of the sums in dq may change. Thread-safe.
/// @throws Error as forward does.
/// Source: Dao, FlashAttention-2 (2023), Algorithm 2.
ATTEND_API void backward(const BackwardCall& call);

/// What one backend makes of a call.
struct Candidate {
  std::string compute;       ///< its name
  bool chosen = false;       ///< the call takes it
  std::string lack = {};     ///< why it cannot, one line; empty: it can
  std::string why = {};      ///< why it would do it as it does, one line
  std::string variant = {};  ///< what its kernels are compiled for, "head_dim=128 mask=causal block_m=64 ..."
  std::vector<std::string> steps = {};  ///< each kernel: its name, grid, threads and shared memory
  double estimated_us = 0;              ///< what "auto" compares; infinity: it never takes this one
  std::size_t workspace_bytes = 0;      ///< of scratch memory on the device
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
/// A plan copies the call, but not the memory that the call points to: tensors, cu_seqlens, philox_state and the
/// workspace have to stay until its last run is done. Params::compute, score and block_mask may go when plan() has
/// returned.
/// If Params::compute cannot run the call, explanation() still says what each backend lacks, and the other functions
/// throw the Error that forward() or backward() throws.
/// Copies share one state, which never changes. Thread-safe.
class ATTEND_API Plan {
 public:
  /// Name of the backend that runs the call, one of backends(). It stays valid while the process runs.
  [[nodiscard]] std::string_view compute() const;

  /// Every backend of the tensors' device and what it makes of the call. Those that "auto" prefers come first. Nothing
  /// is compiled, read or written.
  [[nodiscard]] std::vector<Candidate> explanation() const;

  /// Bytes of scratch memory that the call takes on its device. 0 on a CPU, whose backends keep their own. Only shapes,
  /// strides, dtypes, devices and alignment of the tensors matter.
  [[nodiscard]] std::size_t workspace_bytes() const;

  /// Compiles and loads the kernels that the call needs, and returns when they are there: before a graph is captured,
  /// or a server takes its first request. Nothing is read or written.
  ///
  /// Kernels are kept for each combination of: the kernels that are chosen and their tiles (which follow from the
  /// sizes); dtypes; head_dim of q and v; kind of mask (none, causal, window); which options are on, not their values;
  /// sign of the scale; and whether all addresses, rows and strides are multiples of 16 bytes. A call whose combination
  /// is new compiles (seconds) or finds the machine code on disk (milliseconds), also while its stream is being
  /// captured.
  void prepare() const;

  /// Does what forward() or backward() does with the call. On a CPU each run reads cu_seqlens and philox_state again
  /// and checks cu_seqlens.
  /// @throws Error as forward does.
  void run() const;

  /// The same with this scratch memory instead of Params::workspace.
  void run(const WorkspaceView& workspace) const;

 private:
  friend ATTEND_API Plan plan(const ForwardCall& call);
  friend ATTEND_API Plan plan(const BackwardCall& call);
  struct State;
  explicit Plan(std::shared_ptr<const State> state) noexcept;

  std::shared_ptr<const State> state_;
};

/// Checks the arguments and chooses the backend. Nothing is compiled or written.
/// @throws Error naming the argument, if no backend could take it.
[[nodiscard]] ATTEND_API Plan plan(const ForwardCall& call);
/// The same for the gradients.
[[nodiscard]] ATTEND_API Plan plan(const BackwardCall& call);

/// One way to compute attention.
struct BackendInfo {
  std::string name;         ///< what Params::compute and --compute take
  std::string description;  ///< one line
  DeviceType device;        ///< where its tensors lie
  bool has_backward;        ///< it computes gradients, too
};

/// Every backend of this build, for each device first those that "auto" would rather take; the last of a GPU supports
/// most.
[[nodiscard]] ATTEND_API std::vector<BackendInfo> backends();

/// Number of threads that the `cpu` backend uses, but for the smallest problems, for a call made now from this thread:
/// what set_cpu_threads() was told, else OMP_NUM_THREADS, else the cores of the process's affinity mask. What other
/// libraries tell OpenMP does not change it.
[[nodiscard]] ATTEND_API int cpu_threads();

/// Sets it for the whole process; 0: back to the default.
/// @throws Error where threads < 0.
ATTEND_API void set_cpu_threads(int threads);

/// SIMD target that the `cpu` backend runs on here, for example "AVX3" (AVX-512), "AVX2" or "SSE4": the best one of the
/// processor, or what the environment variable ATTEND_SIMD names.
/// @throws Error where ATTEND_SIMD names none that this processor can run.
[[nodiscard]] ATTEND_API std::string cpu_simd_target();

/// What the `cpu` backend multiplies bfloat16 tensors by here: "AMX" (Intel, 4th generation Xeon and later),
/// "AVX512_BF16" (AMD, Zen 4 and later), or "float32" units. The environment variable ATTEND_CPU_BF16_DOT decides
/// otherwise (docs/building.md), and can make it "emulated AMX".
/// @throws Error where that names no unit, or one that this processor or the SIMD target lacks.
[[nodiscard]] ATTEND_API std::string cpu_bf16_unit();

// The same with the arguments in a row, as ForwardCall and BackwardCall describe them. `lse` of a forward may be null.

/// Optional tensors of a BackwardCall.
struct BackwardExtras {
  std::optional<ConstTensor> dlse = {};        ///< in
  std::optional<Tensor> dbias = {};            ///< out
  std::optional<Tensor> dsinks = {};           ///< out
  std::vector<CaptureGradient> captures = {};  ///< out
};

/// A ForwardCall of these arguments.
[[nodiscard]] inline ForwardCall forward_call(const ConstTensor& q, const ConstTensor& k, const ConstTensor& v,
                                              const Tensor& o, const Tensor* lse, const Params& params,
                                              Stream stream = nullptr) {
  ForwardCall call = {.q = q, .k = k, .v = v, .o = o, .params = params, .stream = stream};
  if (lse != nullptr) call.lse = *lse;
  return call;
}

/// A BackwardCall of these arguments.
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

/// forward(ForwardCall).
inline void forward(const ConstTensor& q, const ConstTensor& k, const ConstTensor& v, const Tensor& o,
                    const Tensor* lse = nullptr, const Params& params = {}, Stream stream = nullptr) {
  forward(forward_call(q, k, v, o, lse, params, stream));
}

/// backward(BackwardCall).
inline void backward(const ConstTensor& dout, const ConstTensor& q, const ConstTensor& k, const ConstTensor& v,
                     const ConstTensor& o, const ConstTensor& lse, const Tensor& dq, const Tensor& dk, const Tensor& dv,
                     const Params& params = {}, Stream stream = nullptr, const BackwardExtras& extras = {}) {
  backward(backward_call(dout, q, k, v, o, lse, dq, dk, dv, params, extras, stream));
}

/// Plan::workspace_bytes() of the same call.
[[nodiscard]] inline std::size_t forward_workspace_bytes(const ConstTensor& q, const ConstTensor& k,
                                                         const ConstTensor& v, const Tensor& o,
                                                         const Tensor* lse = nullptr, const Params& params = {}) {
  return plan(forward_call(q, k, v, o, lse, params)).workspace_bytes();
}
/// The same for backward.
[[nodiscard]] inline std::size_t backward_workspace_bytes(const ConstTensor& dout, const ConstTensor& q,
                                                          const ConstTensor& k, const ConstTensor& v,
                                                          const ConstTensor& o, const ConstTensor& lse,
                                                          const Tensor& dq, const Tensor& dk, const Tensor& dv,
                                                          const Params& params = {},
                                                          const BackwardExtras& extras = {}) {
  return plan(backward_call(dout, q, k, v, o, lse, dq, dk, dv, params, extras)).workspace_bytes();
}

/// Plan::prepare() of the same call.
inline void prepare_forward(const ConstTensor& q, const ConstTensor& k, const ConstTensor& v, const Tensor& o,
                            const Tensor* lse = nullptr, const Params& params = {}) {
  plan(forward_call(q, k, v, o, lse, params)).prepare();
}
/// The same for backward.
inline void prepare_backward(const ConstTensor& dout, const ConstTensor& q, const ConstTensor& k, const ConstTensor& v,
                             const ConstTensor& o, const ConstTensor& lse, const Tensor& dq, const Tensor& dk,
                             const Tensor& dv, const Params& params = {}, const BackwardExtras& extras = {}) {
  plan(backward_call(dout, q, k, v, o, lse, dq, dk, dv, params, extras)).prepare();
}

/// Plan::explanation() of the same call.
[[nodiscard]] inline std::vector<Candidate> explain_forward(const ConstTensor& q, const ConstTensor& k,
                                                            const ConstTensor& v, const Tensor& o,
                                                            const Tensor* lse = nullptr, const Params& params = {}) {
  return plan(forward_call(q, k, v, o, lse, params)).explanation();
}
/// The same for backward.
[[nodiscard]] inline std::vector<Candidate> explain_backward(const ConstTensor& dout, const ConstTensor& q,
                                                             const ConstTensor& k, const ConstTensor& v,
                                                             const ConstTensor& o, const ConstTensor& lse,
                                                             const Tensor& dq, const Tensor& dk, const Tensor& dv,
                                                             const Params& params = {},
                                                             const BackwardExtras& extras = {}) {
  return plan(backward_call(dout, q, k, v, o, lse, dq, dk, dv, params, extras)).explanation();
}

}  // namespace attend
