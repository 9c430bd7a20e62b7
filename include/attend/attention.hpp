// Functions for exact attention: forward, backward and plans.
//
//   attend::forward({.q = q, .k = k, .v = v, .o = o, .lse = lse, .params = {.causal = true}});
//   attend::backward({.q = q, .k = k, .v = v, .o = o, .lse = lse, .dout = dout,
//                     .dq = dq, .dk = dk, .dv = dv, .params = {.causal = true}});
//
// plan() makes a Plan for a forward or a backward call. The Plan explains how the call will run, compiles its kernels,
// and runs it any number of times. The end of this file has overloads with positional arguments.
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
/// tokens of all sequences one after another. For example, q is (1, num_heads_q, total_q, head_dim). Sequence s has the
/// query rows [cu_seqlens_q[s], cu_seqlens_q[s+1]) and the keys [cu_seqlens_k[s], cu_seqlens_k[s+1]). A row never sees
/// keys of another sequence.
///
/// The arrays start at 0, never decrease, and end at total_q and total_k. A call on a CPU refuses arrays that break
/// these conditions. A call on a GPU cannot check the arrays, because only the kernels read them. If the arrays are
/// invalid, the results of the call are meaningless, but the kernels do not access memory outside the tensors.
struct Varlen {
  /// Offsets of the query rows: num_sequences + 1 elements, on the tensors' device.
  const std::int32_t* cu_seqlens_q = nullptr;
  /// Offsets of the keys: num_sequences + 1 elements, on the tensors' device.
  const std::int32_t* cu_seqlens_k = nullptr;
  std::int64_t num_sequences = 0;  ///< number of sequences
  std::int64_t max_seqlen_q = 0;   ///< upper bound of the number of query rows of a sequence
  std::int64_t max_seqlen_k = 0;   ///< upper bound of the number of keys of a sequence
};

/// Scratch memory for a call, on the tensors' device. If it is not set, the call allocates memory in stream order from
/// a pool of the library.
struct WorkspaceView {
  void* data = nullptr;   ///< address, a multiple of 256
  std::size_t bytes = 0;  ///< size in bytes, at least Plan::workspace_bytes()
};

/// Options of the computation. The fields `deterministic`, `workspace` and `compute` control how the call runs. By
/// default every option is off.
///
///   s[i,j] = scale * <q[i], k[j]>
///   s      = softcap * tanh(s / softcap)                      if softcap > 0
///   s     += bias[i,j] - alibi_slope * |i + off - j|          off = seqlen_k - seqlen_q
///   s      = score(s, b, h, i, j, ...)                        if there is a score function
///   s      = -inf where masked (causal, window, mask, block_mask)
///   p[i,j] = exp(s[i,j]) / sum_j exp(s[i,j]),   o[i] = sum_j dropout(p)[i,j] v[j]
///
/// If there are sinks, let `sink` be the sink of the query head. Then p[i,j] = exp(s[i,j]) / (exp(sink) + sum_j
/// exp(s[i,j])).
///
/// Causal and window masks are aligned to the bottom right corner: the last row aligns with the last key. In these
/// examples, seqlen_q is 2, seqlen_k is 5, and 1 marks the visible keys. The left example is a causal mask:
///
///     1 1 1 1 0        window_left = 1, window_right = 0:    0 0 1 1 0
///     1 1 1 1 1                                              0 0 0 1 1
struct Params {
  /// Factor by which the products q.k are multiplied. Any finite value is allowed, including 0 and negative values. If
  /// unset, it is 1/sqrt(head_dim).
  std::optional<double> scale = {};
  bool causal = false;             ///< if true, row i sees keys j <= i + off
  std::int64_t window_left = -1;   ///< row i sees keys j >= i + off - window_left; -1 means no limit
  std::int64_t window_right = -1;  ///< row i sees keys j <= i + off + window_right; -1 means no limit
  double softcap = 0.0;            ///< soft limit of the scores, >= 0; 0 means no limit
  /// Slopes of ALiBi, f32, of shape (1 or batch, num_heads_q, 1, 1). With varlen, the first dimension is 1 or
  /// num_sequences.
  std::optional<ConstTensor> alibi_slopes = {};
  /// Bias that is added to the scores. It has any float type and the shape (1 or batch, 1 or num_heads_q, 1 or
  /// seqlen_q, seqlen_k). A bias of -inf hides a key; a finite value never does. Not allowed with varlen.
  std::optional<ConstTensor> bias = {};
  /// Mask of dtype kBool, with the shape of a bias. 1 keeps a key, and 0 hides it. Not allowed with varlen.
  std::optional<ConstTensor> mask = {};
  /// Sinks: any float type, shape (1 or batch, num_heads_q, 1, 1). With varlen, the first dimension is 1 or
  /// num_sequences. A sink is a score that belongs to no key. It is included once in the softmax sum of each row of its
  /// head. Scale, softcap, masks and dropout do not change it. -inf means no sink. Not allowed in a ring.
  std::optional<ConstTensor> sinks = {};
  /// A custom function of scores. A key that the bias hides stays hidden. The object must stay alive until the call is
  /// done. Not allowed in a ring.
  const ScoreFunction* score = nullptr;
  /// Custom mask, which hides pairs of rows and keys. The other masks still apply. A kernel tile has at most 192 rows
  /// and 128 keys. A kernel skips a tile if all tiles of the mask that overlap it are empty. The mask must have the
  /// seqlen_q and seqlen_k of the call, 1 or batch sequences, and 1 or num_heads_q heads. The mask is in host memory,
  /// even for calls on GPUs. It may be destroyed when the call, or plan(), has returned. Not allowed with varlen or in
  /// a ring.
  const BlockMask* block_mask = nullptr;
  /// Factors of q, k and v of dtype f8e4m3. An element x represents the number x * descale, and factors must be
  /// positive. The tensors are f32. q_descale has the shape (1 or batch, 1 or num_heads_k, 1, 1); a factor belongs to
  /// all query heads that read the key head. k_descale and v_descale have the shape (1 or batch, 1 or num_heads_k, 1 or
  /// ceil(seqlen_k / 128), 1): a block has 128 keys, and the last block of a sequence may have fewer. With varlen, the
  /// first dimension is 1 or num_sequences, the blocks of each sequence begin at its start, and their number is
  /// ceil(max_seqlen_k / 128). If a tensor is absent, its factors are 1. Not allowed with other dtypes.
  std::optional<ConstTensor> q_descale = {};
  std::optional<ConstTensor> k_descale = {};  ///< factors of k, see q_descale
  std::optional<ConstTensor> v_descale = {};  ///< factors of v, see q_descale
  /// Probability with which dropout sets an entry of p to 0, 0 <= dropout_p < 1. Kept entries are multiplied by
  /// 1/(1-dropout_p).
  double dropout_p = 0.0;
  /// Seed of dropout. Philox 4x32-10 computes the dropped entries from seed, offset and (sequence, head, i, j). They
  /// are therefore the same in forward and backward, and on every device. The library draws no random numbers. If
  /// training steps or layers must drop different entries, the caller must pass a different seed or offset for each.
  std::uint64_t seed = 0;
  std::uint64_t offset = 0;  ///< number that selects one of many dropout patterns of the same seed
  /// If non-null, the address of {seed, offset}, which override the two fields above. For tensors on a CPU, the address
  /// is in host memory. For tensors on a GPU, it is in memory that the GPU can read. Kernels read the two numbers when
  /// they run, so each replay of a CUDA graph uses the current values. The values must not change until backward has
  /// run.
  const std::uint64_t* philox_state = nullptr;
  /// Makes backward on a GPU bit-identical from run to run. All other results are always bit-identical.
  bool deterministic = false;
  /// Packed sequences; if unset, every sequence has seqlen_q rows and seqlen_k keys.
  std::optional<Varlen> varlen = {};
  WorkspaceView workspace = {};  ///< scratch memory, used until the call is done; CPU backends ignore it
  /// Name or alias of a backend (see backends()), or "auto", which selects the best backend for the device. The field
  /// is a string_view, so its characters must stay valid until the call, or plan(), has returned.
  std::string_view compute = "auto";
};

/// The arguments of forward. Inputs may be in const memory. All tensors must be on the device of q.
struct ForwardCall {
  /// f32, f16 or bf16 (batch, num_heads_q, seqlen_q, head_dim), 1 <= head_dim <= 512. On a Hopper GPU, q, k and v may
  /// be f8e4m3. Compute `sm90_fp8_forward` then runs the call. It supports head_dim 64, 96 and 128, causal and window
  /// masks, and packed sequences.
  ConstTensor q;
  /// Keys, with the dtype of q and the shape (batch, num_heads_k, seqlen_k, head_dim). num_heads_q is a multiple of
  /// num_heads_k, and query head h reads key head h / (num_heads_q / num_heads_k).
  ConstTensor k;
  ConstTensor v;  ///< dtype of q, (batch, num_heads_k, seqlen_k, head_dim_v), 1 <= head_dim_v <= 512
  /// Output, of shape (batch, num_heads_q, seqlen_q, head_dim_v) and with the dtype of q. If q is f8e4m3, the dtype is
  /// f32, f16 or bf16. Must not overlap an input.
  Tensor o;
  /// Output, f32, of shape (batch, num_heads_q, seqlen_q, 1): the natural logarithm of sum_j exp(s[i,j]). If there are
  /// sinks, the sum includes exp(sink). Dropout does not change lse.
  std::optional<Tensor> lse = {};
  Params params = {};       ///< the computation and its options
  Stream stream = nullptr;  ///< stream of a GPU; forward returns before the GPU has finished
};

/// Computes o = softmax(scale * q k^T + bias) v in one streaming pass with an online softmax. It allocates no seqlen_q
/// x seqlen_k buffer.
///
/// A row that sees no key gives o = 0. Its lse is -inf, or the sink if there are sinks.
///
/// NaN and inf in the inputs reach the outputs that depend on them. On a CPU, and with compute `reference` and `simt`,
/// they reach no other output. Kernels on tensor cores multiply complete tiles, in which 0 * NaN is NaN. If a row of a
/// tile sees a key or value with NaN or inf, the NaN may therefore also reach other rows and keys of the tile. In
/// backward, a NaN or inf in a row may do the same. On every backend, an output never depends on values beyond a
/// sequence's length, in another head or packed sequence, or in tiles that no row sees.
///
/// Scores and lse are computed in float32, or in float64 by `reference`. An lse below the lowest float32 is -inf, and
/// one above the largest is inf. On a CPU, o is correct even if all scores of a row exceed the range of float32.
/// Backward treats a row with lse = -inf as a row that sees no key. The gradients of a row with lse = inf are
/// meaningless. On a GPU, a row whose scores overflow float32 may be treated as a row that sees no key. Kernels on
/// tensor cores require that |scale log2(e) <q, k>| does not overflow float32. bfloat16 subnormals (below 1.2e-38) are
/// treated as 0 if cpu_bf16_unit() is AVX512_BF16 or AMX. o is summed in float32. If all values are equal, o differs
/// from that value by a relative error of at most 2e-6.
///
/// In the `cpu` backend, each input and output may be f32, f16 or bf16, independently of the others. dbias and dsinks
/// may also be f64. In `reference`, each tensor may have any of these four dtypes, independently of the others. If q is
/// f64, lse may be f64.
///
/// The result is deterministic and does not depend on the number of threads. The function is thread-safe.
/// @throws Error naming the argument, the value found and the allowed values. If it throws, no output has been written.
/// Source: Dao, FlashAttention-2 (2023), Algorithm 1; Milakov & Gimelshein, Online normalizer calculation (2018).
ATTEND_API void forward(const ForwardCall& call);

/// The arguments of backward. Inputs may be in const memory. All tensors must be on the device of q.
struct BackwardCall {
  ConstTensor q;    ///< as passed to forward
  ConstTensor k;    ///< as passed to forward
  ConstTensor v;    ///< as passed to forward
  ConstTensor o;    ///< as written by forward
  ConstTensor lse;  ///< as written by forward
  /// Gradient of the loss with respect to o. It has the shape of o, the dtype of q, and any strides, including 0.
  ConstTensor dout;
  std::optional<ConstTensor> dlse = {};  ///< gradient of the loss with respect to lse: f32, with the shape of lse
  Tensor dq;                             ///< output: gradient with respect to q, with the dtype and shape of q
  /// Output: gradient with respect to k, with the dtype and shape of k. The contributions of all query heads that read
  /// the same key head are summed.
  Tensor dk;
  /// Output: gradient with respect to v, with the dtype and shape of v. The contributions of all query heads that read
  /// the same key head are summed.
  Tensor dv;
  /// output: gradient with respect to params.bias, with the same shape and any float type.
  std::optional<Tensor> dbias = {};
  /// output: gradient with respect to params.sinks, with the same shape and any float type.
  std::optional<Tensor> dsinks = {};
  /// Outputs: gradients with respect to the tensors that params.score reads. The gradient of an element is the sum of
  /// the contributions of all scores that read the element. It is summed in float64 on CPUs and in float32 on GPUs.
  std::vector<CaptureGradient> captures = {};
  Params params = {};       ///< as passed to forward
  Stream stream = nullptr;  ///< stream of a GPU; backward returns before the GPU has finished
};

/// Computes the gradients of forward. Given dout = dL/do and optionally dlse = dL/dlse, writes dq, dk, dv, and if
/// requested dbias, dsinks and the gradients of captures.
///
/// Recomputes p from lse tile by tile, so scratch memory grows linearly with seqlen (above head_dim 256 on Hopper plus
/// 256 MB). A row that sees no key only adds its dlse to dsinks. NaN and inf propagate as in forward.
///
/// A bias that is the same for all keys of a row changes no gradient, however large it is. If a row has a bias and
/// |lse| >= 1024, the rounding error of lse is too large to normalise p. p is then divided by its row sum. In two
/// situations this division is not done, and p has a relative error of 2^-24 |lse|. The first is a ring. The second is
/// sm90_backward, if lse is large only because of ALiBi. On a GPU, the weight of a sink in o and in dsinks also has
/// this error if lse is that large.
///
/// The result is deterministic and does not depend on the number of threads, with one exception. On a GPU without
/// Params::deterministic, the order of the sums in dq can change, and also in dk and dv if many query heads share a key
/// head. The function is thread-safe.
/// @throws Error naming the argument, as forward does.
/// Source: Dao, FlashAttention-2 (2023), Algorithm 2.
ATTEND_API void backward(const BackwardCall& call);

/// Describes how one backend would run a call.
struct Candidate {
  std::string compute;  ///< the backend's name
  bool chosen = false;  ///< true if this backend runs the call
  /// Reason why the backend cannot run the call, as one line; empty if the backend can run it.
  std::string lack = {};
  std::string why = {};      ///< reason for the algorithm and the tile sizes that the backend would use, as one line
  std::string variant = {};  ///< compile-time options of its kernels, for example "head_dim=128 mask=causal block_m=64"
  std::vector<std::string> steps = {};  ///< one line for each kernel: name, grid, threads and shared memory
  /// Estimated time. "auto" chooses the backend with the lowest one. If it is infinity, "auto" never chooses this
  /// backend.
  double estimated_us = 0;
  std::size_t workspace_bytes = 0;  ///< scratch memory on the device, in bytes
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
/// when plan() has returned. If the backend named by Params::compute cannot run the call, explanation() still works and
/// gives the reason. The other functions then throw the same Error as forward() or backward(). Copies of a plan share
/// one immutable state. All functions are thread-safe.
class ATTEND_API Plan {
 public:
  /// Returns the name of the backend that runs the call, one of backends(). The name stays valid while the process
  /// runs.
  [[nodiscard]] std::string_view compute() const;

  /// Returns how every backend of the tensors' device would run the call. The backends are in the order in which "auto"
  /// prefers them. Compiles nothing, and reads and writes no tensor.
  [[nodiscard]] std::vector<Candidate> explanation() const;

  /// Returns the size in bytes of the scratch memory that the call needs on its device. Returns 0 for a CPU, whose
  /// backends manage their own memory. The result depends only on shapes, strides, dtypes, devices and alignment of the
  /// tensors.
  [[nodiscard]] std::size_t workspace_bytes() const;

  /// Compiles and loads the kernels that the call needs, and returns when they are loaded. Call it before a graph is
  /// captured or before a server accepts its first request. Reads and writes no tensor.
  ///
  /// The first call with a new combination of the following properties compiles kernels, which takes seconds, or loads
  /// their machine code from disk, which takes milliseconds. This also happens if the call's stream is being captured.
  ///
  /// - the chosen kernels and their tile sizes, which depend on the sizes of the call
  /// - the dtypes
  /// - the head_dim of q and of v
  /// - the type of mask: none, causal or window
  /// - the set of options that are on, but not their values
  /// - the sign of the scale
  /// - whether all addresses, rows and strides are multiples of 16 bytes
  void prepare() const;

  /// Runs the call as forward() or backward() would. On a CPU each run reads cu_seqlens and philox_state again, and
  /// checks the offsets in cu_seqlens again.
  /// @throws Error naming the argument, as forward does.
  void run() const;

  /// Runs the call with the given scratch memory instead of Params::workspace.
  void run(const WorkspaceView& workspace) const;

 private:
  friend ATTEND_API Plan plan(const ForwardCall& call);
  friend ATTEND_API Plan plan(const BackwardCall& call);
  struct State;
  explicit Plan(std::shared_ptr<const State> state) noexcept;

  std::shared_ptr<const State> state_;
};

/// Checks the arguments and chooses the backend. Compiles no kernel and writes no tensor.
/// @throws Error naming the argument if no backend can run the call.
[[nodiscard]] ATTEND_API Plan plan(const ForwardCall& call);
/// Checks the arguments of a backward call and chooses the backend.
[[nodiscard]] ATTEND_API Plan plan(const BackwardCall& call);

/// A backend: one implementation of attention.
struct BackendInfo {
  std::string name;         ///< value of Params::compute and of --compute that selects the backend
  std::string description;  ///< one line of text
  DeviceType device;        ///< type of device on which its tensors must be
  bool has_backward;        ///< true if it computes gradients
};

/// Returns every backend of this build. For each device, the backends are in the order in which "auto" prefers them.
/// On a GPU, the last backend supports the most options.
[[nodiscard]] ATTEND_API std::vector<BackendInfo> backends();

/// Returns the number of threads that the `cpu` backend would use for a call from this thread. Very small problems use
/// fewer threads. The number is the argument of set_cpu_threads() if that function was called. Otherwise it is
/// OMP_NUM_THREADS if that is set, and otherwise the number of cores in the process's affinity mask. OpenMP settings
/// made by other libraries do not change it.
[[nodiscard]] ATTEND_API int cpu_threads();

/// Sets the number of threads for the process. 0 restores the default.
/// @throws Error if threads < 0.
ATTEND_API void set_cpu_threads(int threads);

/// Returns the SIMD target of the `cpu` backend on this machine, for example "AVX3" (AVX-512), "AVX2" or "SSE4". It is
/// the best target of the processor, or the one that the environment variable ATTEND_SIMD names.
/// @throws Error if the value of ATTEND_SIMD is not a target that this processor supports.
[[nodiscard]] ATTEND_API std::string cpu_simd_target();

/// Returns the unit that multiplies bfloat16 tensors in the `cpu` backend on this machine. It is "AMX" on Intel Xeons
/// of the 4th generation and later, "AVX512_BF16" on AMD Zen 4 and later, and otherwise "float32". The environment
/// variable ATTEND_CPU_BF16_DOT overrides the choice (docs/building.md); for tests, the variable can also select
/// "emulated AMX".
/// @throws Error if the variable's value is invalid, or names a unit that this processor or SIMD target does not have.
[[nodiscard]] ATTEND_API std::string cpu_bf16_unit();

// These functions have positional arguments instead of a struct. ForwardCall and BackwardCall describe the arguments.
// The `lse` of forward may be null.

/// Optional tensors of a BackwardCall.
struct BackwardExtras {
  std::optional<ConstTensor> dlse = {};        ///< input: gradient of the loss with respect to lse
  std::optional<Tensor> dbias = {};            ///< output: gradient with respect to the bias
  std::optional<Tensor> dsinks = {};           ///< output: gradient with respect to the sinks
  std::vector<CaptureGradient> captures = {};  ///< outputs: gradients with respect to captured tensors
};

/// Returns a ForwardCall with these arguments.
[[nodiscard]] inline ForwardCall forward_call(const ConstTensor& q, const ConstTensor& k, const ConstTensor& v,
                                              const Tensor& o, const Tensor* lse, const Params& params,
                                              Stream stream = nullptr) {
  ForwardCall call = {.q = q, .k = k, .v = v, .o = o, .params = params, .stream = stream};
  if (lse != nullptr) call.lse = *lse;
  return call;
}

/// Returns a BackwardCall with these arguments.
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

/// Runs forward() with a ForwardCall that has these arguments.
inline void forward(const ConstTensor& q, const ConstTensor& k, const ConstTensor& v, const Tensor& o,
                    const Tensor* lse = nullptr, const Params& params = {}, Stream stream = nullptr) {
  forward(forward_call(q, k, v, o, lse, params, stream));
}

/// Runs backward() with a BackwardCall that has these arguments.
inline void backward(const ConstTensor& dout, const ConstTensor& q, const ConstTensor& k, const ConstTensor& v,
                     const ConstTensor& o, const ConstTensor& lse, const Tensor& dq, const Tensor& dk, const Tensor& dv,
                     const Params& params = {}, Stream stream = nullptr, const BackwardExtras& extras = {}) {
  backward(backward_call(dout, q, k, v, o, lse, dq, dk, dv, params, extras, stream));
}

/// Returns Plan::workspace_bytes() of a forward call with these arguments.
[[nodiscard]] inline std::size_t forward_workspace_bytes(const ConstTensor& q, const ConstTensor& k,
                                                         const ConstTensor& v, const Tensor& o,
                                                         const Tensor* lse = nullptr, const Params& params = {}) {
  return plan(forward_call(q, k, v, o, lse, params)).workspace_bytes();
}
/// Returns Plan::workspace_bytes() of a backward call with these arguments.
[[nodiscard]] inline std::size_t backward_workspace_bytes(const ConstTensor& dout, const ConstTensor& q,
                                                          const ConstTensor& k, const ConstTensor& v,
                                                          const ConstTensor& o, const ConstTensor& lse,
                                                          const Tensor& dq, const Tensor& dk, const Tensor& dv,
                                                          const Params& params = {},
                                                          const BackwardExtras& extras = {}) {
  return plan(backward_call(dout, q, k, v, o, lse, dq, dk, dv, params, extras)).workspace_bytes();
}

/// Compiles and loads the kernels of a forward call with these arguments, as Plan::prepare() does.
inline void prepare_forward(const ConstTensor& q, const ConstTensor& k, const ConstTensor& v, const Tensor& o,
                            const Tensor* lse = nullptr, const Params& params = {}) {
  plan(forward_call(q, k, v, o, lse, params)).prepare();
}
/// Compiles and loads the kernels of a backward call with these arguments, as Plan::prepare() does.
inline void prepare_backward(const ConstTensor& dout, const ConstTensor& q, const ConstTensor& k, const ConstTensor& v,
                             const ConstTensor& o, const ConstTensor& lse, const Tensor& dq, const Tensor& dk,
                             const Tensor& dv, const Params& params = {}, const BackwardExtras& extras = {}) {
  plan(backward_call(dout, q, k, v, o, lse, dq, dk, dv, params, extras)).prepare();
}

/// Returns Plan::explanation() of a forward call with these arguments.
[[nodiscard]] inline std::vector<Candidate> explain_forward(const ConstTensor& q, const ConstTensor& k,
                                                            const ConstTensor& v, const Tensor& o,
                                                            const Tensor* lse = nullptr, const Params& params = {}) {
  return plan(forward_call(q, k, v, o, lse, params)).explanation();
}
/// Returns Plan::explanation() of a backward call with these arguments.
[[nodiscard]] inline std::vector<Candidate> explain_backward(const ConstTensor& dout, const ConstTensor& q,
                                                             const ConstTensor& k, const ConstTensor& v,
                                                             const ConstTensor& o, const ConstTensor& lse,
                                                             const Tensor& dq, const Tensor& dk, const Tensor& dv,
                                                             const Params& params = {},
                                                             const BackwardExtras& extras = {}) {
  return plan(backward_call(dout, q, k, v, o, lse, dq, dk, dv, params, extras)).explanation();
}

}  // namespace attend
