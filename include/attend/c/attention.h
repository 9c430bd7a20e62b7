// Forward, backward and plans; backends and threads. Include attend/attend.h, which says what holds for all functions.
// attend/attention.hpp has the same in C++ and says at greater length what is computed.
#ifndef ATTEND_C_ATTENTION_H_
#define ATTEND_C_ATTENTION_H_

#include "attend/c/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/// Packed sequences of different lengths. The tensors then have batch dimension 1 and a seqlen dimension that holds all
/// tokens one after another. Sequence s owns the query rows [cu_seqlens_q[s], cu_seqlens_q[s+1]) and the keys
/// [cu_seqlens_k[s], cu_seqlens_k[s+1]). The arrays start at 0, never decrease, and end at total_q (total_k): on a CPU
/// others are refused; on a GPU what is computed then means nothing, but lies inside the tensors.
typedef struct attend_varlen {
  size_t struct_size;           ///< sizeof(attend_varlen)
  const int32_t* cu_seqlens_q;  ///< (num_sequences + 1), on the tensors' device
  const int32_t* cu_seqlens_k;  ///< (num_sequences + 1), on the tensors' device
  int64_t num_sequences;        ///< how many there are
  int64_t max_seqlen_q;         ///< an upper bound of every query length
  int64_t max_seqlen_k;         ///< an upper bound of every key length
} attend_varlen;

/// Every field 0.
ATTEND_API void attend_varlen_init(attend_varlen* varlen, size_t struct_size);

/// What is computed and, with `deterministic`, `workspace` and `compute`, how.
///
///   s[i,j] = scale * <q[i], k[j]>
///   s      = softcap * tanh(s / softcap)                      if softcap > 0
///   s     += bias[i,j] - alibi_slope * |i + off - j|          off = seqlen_k - seqlen_q
///   s      = -inf where masked
///   p[i,j] = exp(s[i,j]) / sum_j exp(s[i,j]),   o[i] = sum_j dropout(p)[i,j] v[j]
///
/// With sinks, p[i,j] = exp(s[i,j]) / (exp(sink) + sum_j exp(s[i,j])).
///
/// Masks align bottom right. seqlen_q = 2, seqlen_k = 5, causal keeps (1 = kept):
///
///     1 1 1 1 0        window_left = 1, window_right = 0:    0 0 1 1 0
///     1 1 1 1 1                                              0 0 0 1 1
typedef struct attend_params {
  size_t struct_size;                 ///< sizeof(attend_params)
  double scale;                       ///< read with has_scale. Any finite value, also 0 and negative ones
  int32_t has_scale;                  ///< 0: the scale is 1/sqrt(head_dim)
  int32_t causal;                     ///< 1: keep j <= i + off
  int64_t window_left;                ///< keep j >= i + off - window_left; -1, the default: open
  int64_t window_right;               ///< keep j <= i + off + window_right; -1, the default: open
  double softcap;                     ///< >= 0; 0: off
  const attend_tensor* alibi_slopes;  ///< f32 (1 or batch, num_heads_q, 1, 1). Null: none
  /// Any float type, (1 or batch, 1 or num_heads_q, 1 or seqlen_q, seqlen_k). -inf hides a key, a finite value never
  /// does. Not with varlen. Null: none
  const attend_tensor* bias;
  const attend_tensor* mask;  ///< bool, broadcasts like bias; 1 keeps, 0 masks. Not with varlen. Null: none
  /// Any float type (1 or batch, num_heads_q, 1, 1): a score that counts in the sum of each row of the head and belongs
  /// to no key. -inf: none. Not in a ring. Null: none
  const attend_tensor* sinks;
  double dropout_p;  ///< probability of dropping an entry of p, 0 <= p < 1; kept ones grow by 1/(1-p)
  /// Of dropout, by Philox 4x32-10: which entries are dropped is a function of seed, offset and (sequence, head, i, j)
  /// alone. Nothing draws: the steps and layers of a training have to be given other numbers
  uint64_t seed;
  uint64_t offset;  ///< with seed, as above
  /// If not null: the address of {seed, offset}, which replace the two numbers above, in memory that the device can
  /// read. They stay the same until backward has run
  const uint64_t* philox_state;
  const attend_varlen* varlen;  ///< null: no packed sequences
  void* workspace;              ///< scratch memory on the device, a multiple of 256. Null: the library's own
  size_t workspace_bytes;       ///< at least what attend_plan_workspace_bytes says. CPUs use none
  const char* compute;          ///< a backend's name or alias. Null or "auto": the best one for the device
  int32_t deterministic;        ///< 1: bit-equal results from run to run, backward on a GPU too. All else always is
  int32_t reserved;             ///< 0
} attend_params;

/// Windows -1, else 0: full attention.
ATTEND_API void attend_params_init(attend_params* params, size_t struct_size);

/// The arguments of attend_forward. All tensors lie on the device of q.
typedef struct attend_forward_call {
  size_t struct_size;      ///< sizeof(attend_forward_call)
  const attend_tensor* q;  ///< f32, f16 or bf16 (batch, num_heads_q, seqlen_q, head_dim), 1 <= head_dim <= 512
  /// Like q (batch, num_heads_k, seqlen_k, head_dim); num_heads_q is a multiple of num_heads_k, and query head h reads
  /// key head h / (num_heads_q / num_heads_k)
  const attend_tensor* k;
  const attend_tensor* v;  ///< like q (batch, num_heads_k, seqlen_k, head_dim_v), 1 <= head_dim_v <= 512
  const attend_tensor* o;  ///< out, dtype of q, (batch, num_heads_q, seqlen_q, head_dim_v). Overlaps no input
  /// Out, f32 (batch, num_heads_q, seqlen_q, 1): natural log of sum_j exp(s[i,j]), with exp(sink) added to the sum if
  /// there are sinks. Dropout does not change it. May be null
  const attend_tensor* lse;
  const attend_params* params;  ///< null: the defaults
  void* stream;                 ///< CUstream; ignored on a CPU
} attend_forward_call;

/// Every pointer null.
ATTEND_API void attend_forward_call_init(attend_forward_call* call, size_t struct_size);

/// o = softmax(scale * q k^T + bias) v, one streaming pass with an online softmax; no seqlen_q x seqlen_k buffer.
///
/// A row that sees no key gives o = 0 and lse = -inf, or its sink. NaN and inf in the inputs reach the outputs that
/// depend on them, on a CPU exactly those (attend/attention.hpp says what tensor cores leave open). Deterministic, and
/// independent of the number of threads. On a CPU the work is done when the function returns; on a GPU it goes to
/// `stream`.
/// The backend `cpu` takes any mix of f32, f16 and bf16; `reference` any mix of these and f64.
/// @return ATTEND_OK, ATTEND_INVALID_ARGUMENT, ATTEND_UNSUPPORTED, ATTEND_MISSING_HARDWARE, ATTEND_OUT_OF_MEMORY, or
///         ATTEND_INTERNAL where a GPU fails
/// Source: Dao, FlashAttention-2 (2023), Algorithm 1.
ATTEND_API int32_t attend_forward(const attend_forward_call* call, attend_error* error);

/// The arguments of attend_backward. All tensors lie on the device of q.
typedef struct attend_backward_call {
  size_t struct_size;           ///< sizeof(attend_backward_call)
  const attend_tensor* q;       ///< as attend_forward took it
  const attend_tensor* k;       ///< likewise
  const attend_tensor* v;       ///< likewise
  const attend_tensor* o;       ///< as attend_forward gave it
  const attend_tensor* lse;     ///< likewise
  const attend_tensor* dout;    ///< gradient of the loss with respect to o: shape of o, dtype of q, any strides (0 too)
  const attend_tensor* dlse;    ///< gradient of the loss with respect to lse, f32, shaped like lse. May be null
  const attend_tensor* dq;      ///< out, dtype and shape of q
  const attend_tensor* dk;      ///< out, dtype and shape of k: summed over the query heads that share it
  const attend_tensor* dv;      ///< out, dtype and shape of v, likewise
  const attend_tensor* dbias;   ///< out, gradient of params->bias, same shape as it, any float type. May be null
  const attend_tensor* dsinks;  ///< out, gradient of params->sinks, likewise. May be null
  const attend_params* params;  ///< as attend_forward took them. Null: the defaults
  void* stream;                 ///< CUstream; ignored on a CPU
} attend_backward_call;

/// Every pointer null.
ATTEND_API void attend_backward_call_init(attend_backward_call* call, size_t struct_size);

/// The gradients of attend_forward: given dout = dL/do (and dlse = dL/dlse), writes dq, dk, dv (and dbias, dsinks).
///
/// Rows that see no key contribute nothing but their dlse, to dsinks. p is computed again from lse tile by tile.
/// Deterministic but on a GPU without attend_params::deterministic, where the order of the sums in dq may change.
/// @return as attend_forward
/// Source: Dao, FlashAttention-2 (2023), Algorithm 2.
ATTEND_API int32_t attend_backward(const attend_backward_call* call, attend_error* error);

/// A checked call and the backend that will run it. It has copied the structs of the call, also `compute`, but not the
/// memory of tensors, cu_seqlens, philox_state and workspace: that has to stay until its last run is done. Never
/// changes: threads may share it until it is freed.
typedef struct attend_plan attend_plan;

/// Checks the arguments and chooses the backend. Nothing is compiled or written.
/// @param plan  out, to be freed by attend_plan_free
/// @return as attend_forward, if no backend could take the call. A plan whose params->compute cannot run the call can
///         be made: attend_plan_explain says why, and the others return what attend_forward would
ATTEND_API int32_t attend_plan_forward(const attend_forward_call* call, attend_plan** plan, attend_error* error);

/// The same for attend_backward.
ATTEND_API int32_t attend_plan_backward(const attend_backward_call* call, attend_plan** plan, attend_error* error);

/// Frees the plan. May be null. What it has begun on a GPU goes on.
ATTEND_API void attend_plan_free(attend_plan* plan);

/// @param name  out: the backend that runs the call. Stays valid while the process runs
ATTEND_API int32_t attend_plan_compute(const attend_plan* plan, const char** name, attend_error* error);

/// @param bytes  out: scratch memory that the call takes on its device. 0 on a CPU, whose backends keep their own
ATTEND_API int32_t attend_plan_workspace_bytes(const attend_plan* plan, size_t* bytes, attend_error* error);

/// Compiles and loads the kernels that the call needs, and returns when they are there: before a CUDA graph is
/// captured, or a server takes its first request. Nothing is read or written. Nothing to do on a CPU.
ATTEND_API int32_t attend_plan_prepare(const attend_plan* plan, attend_error* error);

/// Does what attend_forward or attend_backward does with the call. On a CPU each run reads cu_seqlens and philox_state
/// again and checks cu_seqlens.
ATTEND_API int32_t attend_plan_run(const attend_plan* plan, attend_error* error);

/// The same with this scratch memory instead of that of the params.
/// @param workspace  on the tensors' device, a multiple of 256. May be null on a CPU
/// @param bytes      at least what attend_plan_workspace_bytes says
ATTEND_API int32_t attend_plan_run_in(const attend_plan* plan, void* workspace, size_t bytes, attend_error* error);

/// Every backend of the device and what it makes of the call, those that "auto" prefers first, as JSON. Nothing is
/// compiled, read or written.
///
///   [{"compute": "cpu", "chosen": true, "lack": "", "why": "...", "variant": "...", "steps": ["..."],
///     "estimated_us": 12.5, "workspace_bytes": 0}, ...]
///
/// `lack` says why the backend cannot, and is empty if it can. `variant` is what its kernels are compiled for, `steps`
/// are kernels with grid, threads and shared memory. `estimated_us` is null for one that "auto" never takes.
/// @param text         out: UTF-8, ends in 0. May be null with text_bytes 0, to ask for the size
/// @param text_bytes   bytes of `text`. Where they are too few nothing is written there: ATTEND_INVALID_ARGUMENT
/// @param needed_bytes out: bytes of the text with its 0, also where text_bytes are too few. May be null
ATTEND_API int32_t attend_plan_explain(const attend_plan* plan, char* text, size_t text_bytes, size_t* needed_bytes,
                                       attend_error* error);

/// One way to compute attention. The strings stay valid.
typedef struct attend_backend_info {
  size_t struct_size;       ///< sizeof(attend_backend_info), from the caller
  const char* name;         ///< what attend_params::compute takes
  const char* description;  ///< one line
  int32_t device_type;      ///< ATTEND_CPU or ATTEND_CUDA
  int32_t has_backward;     ///< 1: attend_backward too
} attend_backend_info;

/// struct_size, and every other field 0.
ATTEND_API void attend_backend_info_init(attend_backend_info* info, size_t struct_size);

/// @param count  out: number of backends of this build
ATTEND_API int32_t attend_num_backends(int32_t* count, attend_error* error);

/// For each device first those backends that "auto" would rather take; the last of a GPU supports most.
/// @param index  0 to the number of backends - 1
/// @param info   out, of which struct_size is set. Of a larger one what this library does not know becomes 0
ATTEND_API int32_t attend_get_backend(int32_t index, attend_backend_info* info, attend_error* error);

/// @param threads  out: threads that the backend `cpu` uses for a call made now from this thread: what
///                 attend_set_cpu_threads was told, else OMP_NUM_THREADS, else the cores of the affinity mask
ATTEND_API int32_t attend_cpu_threads(int32_t* threads, attend_error* error);

/// Sets it for the whole process; 0: back to the default. Of this library: another copy of attend in the process, such
/// as that of Python's package, has a number of its own.
ATTEND_API int32_t attend_set_cpu_threads(int32_t threads, attend_error* error);

/// SIMD target that the backend `cpu` runs on here, for example "AVX3" (AVX-512), "AVX2" or "SSE4".
/// Text as in attend_plan_explain.
ATTEND_API int32_t attend_cpu_simd_target(char* text, size_t text_bytes, size_t* needed_bytes, attend_error* error);

/// What the backend `cpu` multiplies bfloat16 tensors by here: "AMX", "AVX512_BF16", or "float32" units.
/// Text as in attend_plan_explain.
ATTEND_API int32_t attend_cpu_bf16_unit(char* text, size_t text_bytes, size_t* needed_bytes, attend_error* error);

#ifdef __cplusplus
}
#endif

#endif  // ATTEND_C_ATTENTION_H_
