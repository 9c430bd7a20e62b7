// Exact attention, forward and backward: the two calls of the library.
//
//   attend::forward(q, k, v, o, &lse, {.causal = true});
//   attend::backward(dout, q, k, v, o, lse, dq, dk, dv, {.causal = true});
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "attend/error.hpp"
#include "attend/export.hpp"
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
  std::int64_t num_sequences = 0;
  std::int64_t max_seqlen_q = 0;  ///< an upper bound of every query length
  std::int64_t max_seqlen_k = 0;  ///< an upper bound of every key length
};

/// Memory for the scratch of a call, on the tensors' device. A call that is given none takes it from a pool of the
/// library's own, in the stream's order.
struct WorkspaceView {
  void* data = nullptr;   ///< a multiple of 256
  std::size_t bytes = 0;  ///< at least what forward_workspace_bytes() or backward_workspace_bytes() says
};

/// What is computed. Every default means "off".
///
///   s[i,j] = scale * <q[i], k[j]>
///   s      = softcap * tanh(s / softcap)                      if softcap > 0
///   s     += bias[i,j] - alibi_slope * |i + off - j|          off = seqlen_k - seqlen_q
///   s      = -inf where masked
///   p[i,j] = exp(s[i,j]) / sum_j exp(s[i,j]),   o[i] = sum_j dropout(p)[i,j] v[j]
///
/// Masks align bottom right. seqlen_q = 2, seqlen_k = 5, causal keeps (1 = kept):
///
///     1 1 1 1 0        window_left = 1, window_right = 0:    0 0 1 1 0
///     1 1 1 1 1                                              0 0 0 1 1
struct Params {
  std::optional<double> scale = {};         ///< unset: 1/sqrt(head_dim). Any finite value, also 0 and negative ones
  bool causal = false;                      ///< keep j <= i + off
  std::int64_t window_left = -1;            ///< keep j >= i + off - window_left; -1: open
  std::int64_t window_right = -1;           ///< keep j <= i + off + window_right; -1: open
  double softcap = 0.0;                     ///< >= 0; 0: off
  std::optional<Tensor> alibi_slopes = {};  ///< f32 (1 or batch, num_heads_q, 1, 1). Varlen: (1 or num_sequences, ...)
  /// Any float type, (1 or batch, 1 or num_heads_q, 1 or seqlen_q, seqlen_k). -inf hides a key, a finite value never
  /// does. Not with varlen
  std::optional<Tensor> bias = {};
  std::optional<Tensor> mask = {};  ///< kBool, broadcasts like bias; 1 keeps, 0 masks. Not with varlen
  double dropout_p = 0.0;           ///< probability of dropping an entry of p, 0 <= p < 1; kept ones grow by 1/(1-p)
  /// Of dropout, by Philox 4x32-10: the dropped entries are a pure function of seed, offset and (sequence, head, i, j),
  /// the same forward, backward, on every device. Nothing here draws: calls that are to drop other entries (the steps
  /// and layers of a training) have to be given other numbers
  std::uint64_t seed = 0;
  std::uint64_t offset = 0;  ///< with seed, as above: another pattern of the same seed
  /// Seed and offset as two numbers in memory, in the place of those above; null: those. Of tensors on a GPU it is an
  /// address there (or one that the GPU can read), and is read when the kernels run: a CUDA graph's replays drop what
  /// it says then. It has to stay, and say the same, until backward has run
  const std::uint64_t* philox_state = nullptr;
  bool deterministic = false;  ///< bit-equal results from run to run, backward on a GPU too. All else always is
  std::optional<Varlen> varlen = {};
  WorkspaceView workspace = {};       ///< used until the call is done; not by the CPU's backends
  std::string_view compute = "auto";  ///< a backend's name (see backends()) or alias, or the best one for the device
};

/// What backward may take and give beyond the usual.
struct BackwardExtras {
  std::optional<Tensor> dlse = {};   ///< in: gradient of the loss with respect to lse, f32, shaped like lse
  std::optional<Tensor> dbias = {};  ///< out: gradient of params.bias, same shape as it, any float type
};

/// A CUDA stream (CUstream); ignored for CPU tensors, whose calls return when the work is done.
using Stream = void*;

/// o = softmax(scale * q k^T + bias) v, one streaming pass with an online softmax; no seqlen_q x seqlen_k buffer.
///
/// @param q    f32, f16 or bf16 (batch, num_heads_q, seqlen_q, head_dim), 1 <= head_dim <= 512
/// @param k    like q (batch, num_heads_k, seqlen_k, head_dim); num_heads_q is a multiple of num_heads_k, and query
///             head h reads key head h / (num_heads_q / num_heads_k)
/// @param v    like q (batch, num_heads_k, seqlen_k, head_dim_v), 1 <= head_dim_v <= 512
/// @param o    out, dtype of q, (batch, num_heads_q, seqlen_q, head_dim_v). Overlaps no input
/// @param lse  out, may be null; f32 (batch, num_heads_q, seqlen_q, 1): natural log of sum_j exp(s[i,j]).
///             Dropout does not change it
/// @param params  see Params
/// @param stream  of a GPU: the call returns before the work is done there
/// A row that sees no key gives o = 0 and lse = -inf.
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
/// The `cpu` backend takes and gives any mix of f32, f16 and bf16; `reference` of f64 too, and with f64 q, lse may be
/// f64.
ATTEND_API void forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o, const Tensor* lse = nullptr,
                        const Params& params = {}, Stream stream = nullptr);

/// The gradients of forward: given dout = dL/do (and extras.dlse = dL/dlse), writes dq, dk, dv (and extras.dbias).
///
/// @param dout    dtype of q, shape of o, any strides (0 too)
/// @param q       as forward took it
/// @param k       likewise
/// @param v       likewise
/// @param o       as forward gave it
/// @param lse     likewise
/// @param dq      out, dtype and shape of q
/// @param dk      out, dtype and shape of k: summed over the query heads that share it
/// @param dv      out, dtype and shape of v, likewise
/// @param params  as forward took them
/// @param stream  as in forward
/// @param extras  see BackwardExtras
/// Rows that see no key contribute nothing. NaN and inf go where forward says. Recomputes p from lse tile by tile;
/// scratch grows linearly with seqlen. A bias that all keys of a row share changes no gradient, however large: in rows
/// with a bias and |lse| >= 1024, whose lse has lost the number of keys, p is divided by its sum. Not in parts of a
/// ring, nor on GPUs in rows whose lse is large by ALiBi alone (sm90_backward): there p has the relative error of
/// 2^-24 |lse|.
/// Deterministic and independent of the number of threads, but on a GPU without Params::deterministic, where the order
/// of the sums in dq may change. Thread-safe.
/// @throws Error as forward does.
/// Source: Dao, FlashAttention-2 (2023), Algorithm 2.
ATTEND_API void backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o,
                         const Tensor& lse, const Tensor& dq, const Tensor& dk, const Tensor& dv,
                         const Params& params = {}, Stream stream = nullptr, const BackwardExtras& extras = {});

/// Bytes of scratch memory that the same call takes on its device: for Params::workspace. 0 on a CPU, whose backends
/// keep their own. Only shapes, strides, dtypes, devices and alignment of the tensors matter.
/// @throws Error as the call does.
[[nodiscard]] ATTEND_API std::size_t forward_workspace_bytes(const Tensor& q, const Tensor& k, const Tensor& v,
                                                             const Tensor& o, const Tensor* lse = nullptr,
                                                             const Params& params = {});
[[nodiscard]] ATTEND_API std::size_t backward_workspace_bytes(const Tensor& dout, const Tensor& q, const Tensor& k,
                                                              const Tensor& v, const Tensor& o, const Tensor& lse,
                                                              const Tensor& dq, const Tensor& dk, const Tensor& dv,
                                                              const Params& params = {},
                                                              const BackwardExtras& extras = {});

/// Compiles and loads the kernels that the same call needs, and returns when they are there: before a graph is
/// captured, or a server takes its first request. Nothing is read or written.
///
/// Kernels are kept for each combination of: the kernels that are chosen and their tiles (which follow from the sizes);
/// dtypes; head_dim of q and v; kind of mask (none, causal, window); which options are on, not their values; sign of
/// the scale; and whether all addresses, rows and strides are multiples of 16 bytes. A call whose combination is new
/// compiles (seconds) or finds the machine code on disk (milliseconds), also while its stream is being captured.
/// @throws Error as the call does.
ATTEND_API void prepare_forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o,
                                const Tensor* lse = nullptr, const Params& params = {});
ATTEND_API void prepare_backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o,
                                 const Tensor& lse, const Tensor& dq, const Tensor& dk, const Tensor& dv,
                                 const Params& params = {}, const BackwardExtras& extras = {});

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

/// Every backend of the tensors' device and what it makes of the same call, those first that "auto" would rather take.
/// Nothing is compiled, read or written.
/// @throws Error where the arguments are refused whatever the backend.
[[nodiscard]] ATTEND_API std::vector<Candidate> explain_forward(const Tensor& q, const Tensor& k, const Tensor& v,
                                                                const Tensor& o, const Tensor* lse = nullptr,
                                                                const Params& params = {});
[[nodiscard]] ATTEND_API std::vector<Candidate> explain_backward(const Tensor& dout, const Tensor& q, const Tensor& k,
                                                                 const Tensor& v, const Tensor& o, const Tensor& lse,
                                                                 const Tensor& dq, const Tensor& dk, const Tensor& dv,
                                                                 const Params& params = {},
                                                                 const BackwardExtras& extras = {});

/// One way to compute attention.
struct BackendInfo {
  std::string name;         ///< what Params::compute and --compute take
  std::string description;  ///< one line
  DeviceType device;
  bool has_backward;
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

}  // namespace attend
