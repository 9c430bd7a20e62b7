// Functions for forward, backward, plans, backends and threads. Programs include attend/attend.h, which states
// conditions that hold for all functions. attend/attention.hpp is the same interface in C++ and describes the
// computation in more detail.
#ifndef ATTEND_C_ATTENTION_H_
#define ATTEND_C_ATTENTION_H_

#include "attend/c/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/// Packed sequences of different lengths. The tensors then have batch dimension 1, and the seqlen dimension holds the
/// tokens of all sequences one after another. Sequence s has the query rows [cu_seqlens_q[s], cu_seqlens_q[s+1]) and
/// the keys [cu_seqlens_k[s], cu_seqlens_k[s+1]). The arrays start at 0, never decrease, and end at total_q and
/// total_k. A call on a CPU refuses arrays that break these conditions. On a GPU the results of such a call are
/// meaningless, but kernels do not access memory outside the tensors.
typedef struct attend_varlen {
  size_t struct_size;           ///< sizeof(attend_varlen)
  const int32_t* cu_seqlens_q;  ///< (num_sequences + 1), on the tensors' device
  const int32_t* cu_seqlens_k;  ///< (num_sequences + 1), on the tensors' device
  int64_t num_sequences;        ///< number of sequences
  int64_t max_seqlen_q;         ///< upper bound of the number of query rows of a sequence
  int64_t max_seqlen_k;         ///< upper bound of the number of keys of a sequence
} attend_varlen;

/// Sets struct_size, and every other field to 0.
ATTEND_API void attend_varlen_init(attend_varlen* varlen, size_t struct_size);

/// Options of the computation. The fields `deterministic`, `workspace` and `compute` control how the call runs.
///
///   s[i,j] = scale * <q[i], k[j]>
///   s      = softcap * tanh(s / softcap)                      if softcap > 0
///   s     += bias[i,j] - alibi_slope * |i + off - j|          off = seqlen_k - seqlen_q
///   s      = -inf where masked
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
typedef struct attend_params {
  size_t struct_size;  ///< sizeof(attend_params)
  /// Factor of the products q.k, used if has_scale is 1; any finite value, including 0 and negative values.
  double scale;
  int32_t has_scale;     ///< if 0, the scale is 1/sqrt(head_dim)
  int32_t causal;        ///< if 1, row i sees keys j <= i + off
  int64_t window_left;   ///< row i sees keys j >= i + off - window_left; -1, the default, means no limit
  int64_t window_right;  ///< row i sees keys j <= i + off + window_right; -1, the default, means no limit
  double softcap;        ///< soft limit of the scores, >= 0; 0 means no limit
  /// Slopes of ALiBi: f32, shape (1 or batch, num_heads_q, 1, 1); null turns ALiBi off.
  const attend_tensor* alibi_slopes;
  /// Bias that is added to the scores. It has any float type and the shape (1 or batch, 1 or num_heads_q, 1 or
  /// seqlen_q, seqlen_k). A bias of -inf hides a key; a finite value never does. Not allowed with varlen. Null means no
  /// bias.
  const attend_tensor* bias;
  /// Mask of dtype bool, with the shape of a bias. 1 keeps a key, and 0 hides it. Not allowed with varlen. Null means
  /// no mask.
  const attend_tensor* mask;
  /// Sinks: any float type, shape (1 or batch, num_heads_q, 1, 1). A sink is a score that belongs to no key. It is
  /// included once in the softmax sum of each row of its head. -inf means no sink. Not allowed in a ring. Null means no
  /// sinks.
  const attend_tensor* sinks;
  /// Probability with which dropout sets an entry of p to 0, 0 <= dropout_p < 1. Kept entries are multiplied by
  /// 1/(1-dropout_p).
  double dropout_p;
  /// Seed of dropout. Philox 4x32-10 computes the dropped entries from seed, offset and (sequence, head, i, j). The
  /// library draws no random numbers, so the caller must pass a different seed or offset for each training step and
  /// layer.
  uint64_t seed;
  uint64_t offset;  ///< number that selects one of many dropout patterns of the same seed
  /// If non-null, the address of {seed, offset}, which override the two fields above. The device must be able to read
  /// this memory. The values must not change until backward has run.
  const uint64_t* philox_state;
  const attend_varlen* varlen;  ///< null if sequences are not packed
  /// Scratch memory on the device, at a multiple of 256 bytes. If null, the library allocates it.
  void* workspace;
  size_t workspace_bytes;  ///< size in bytes, at least attend_plan_workspace_bytes; not used on a CPU
  /// Name or alias of a backend. Null or "auto" selects the best backend for the device.
  const char* compute;
  /// If 1, backward on a GPU is bit-identical from run to run. All other results are always bit-identical.
  int32_t deterministic;
  int32_t reserved;  ///< must be 0
} attend_params;

/// Sets the windows to -1 and all other fields to 0. This means attention without a mask.
ATTEND_API void attend_params_init(attend_params* params, size_t struct_size);

/// The arguments of attend_forward. All tensors must be on the device of q.
typedef struct attend_forward_call {
  size_t struct_size;      ///< sizeof(attend_forward_call)
  const attend_tensor* q;  ///< f32, f16 or bf16 (batch, num_heads_q, seqlen_q, head_dim), 1 <= head_dim <= 512
  /// Keys, with the dtype of q and the shape (batch, num_heads_k, seqlen_k, head_dim). num_heads_q is a multiple of
  /// num_heads_k, and query head h reads key head h / (num_heads_q / num_heads_k).
  const attend_tensor* k;
  const attend_tensor* v;  ///< dtype of q, (batch, num_heads_k, seqlen_k, head_dim_v), 1 <= head_dim_v <= 512
  /// Output, with the dtype of q and the shape (batch, num_heads_q, seqlen_q, head_dim_v). Must not overlap an input.
  const attend_tensor* o;
  /// Output, f32, of shape (batch, num_heads_q, seqlen_q, 1): the natural logarithm of sum_j exp(s[i,j]). If there are
  /// sinks, the sum includes exp(sink). Dropout does not change lse. May be null.
  const attend_tensor* lse;
  const attend_params* params;  ///< null selects the defaults
  void* stream;                 ///< CUDA stream (CUstream); ignored on a CPU
} attend_forward_call;

/// Sets every pointer to null.
ATTEND_API void attend_forward_call_init(attend_forward_call* call, size_t struct_size);

/// Computes o = softmax(scale * q k^T + bias) v in one streaming pass with an online softmax. It allocates no seqlen_q
/// x seqlen_k buffer.
///
/// A row that sees no key gives o = 0. Its lse is -inf, or the sink if there are sinks. NaN and inf in the inputs reach
/// the outputs that depend on them. On a CPU they reach no other output. On tensor cores they may reach others, as
/// attend/attention.hpp describes. The result is deterministic and does not depend on the number of threads. On a CPU
/// the work is done when the function returns. On a GPU the function queues the work on `stream`. In the backend `cpu`,
/// each tensor may be f32, f16 or bf16, independently of the others. In `reference`, f64 is allowed too.
/// @return ATTEND_OK, ATTEND_INVALID_ARGUMENT, ATTEND_UNSUPPORTED, ATTEND_MISSING_HARDWARE, ATTEND_OUT_OF_MEMORY, or
///   ATTEND_INTERNAL if a GPU fails
/// Source: Dao, FlashAttention-2 (2023), Algorithm 1.
ATTEND_API int32_t attend_forward(const attend_forward_call* call, attend_error* error);

/// The arguments of attend_backward. All tensors must be on the device of q.
typedef struct attend_backward_call {
  size_t struct_size;        ///< sizeof(attend_backward_call)
  const attend_tensor* q;    ///< as passed to attend_forward
  const attend_tensor* k;    ///< as passed to attend_forward
  const attend_tensor* v;    ///< as passed to attend_forward
  const attend_tensor* o;    ///< as written by attend_forward
  const attend_tensor* lse;  ///< as written by attend_forward
  /// Gradient of the loss with respect to o. It has the shape of o, the dtype of q, and any strides >= 0.
  const attend_tensor* dout;
  /// Gradient of the loss with respect to lse: f32, with the shape of lse. May be null.
  const attend_tensor* dlse;
  const attend_tensor* dq;  ///< output: gradient with respect to q, with the dtype and shape of q
  /// Output: gradient with respect to k, with the dtype and shape of k. The contributions of all query heads that read
  /// the same key head are summed.
  const attend_tensor* dk;
  /// Output: gradient with respect to v, with the dtype and shape of v. The contributions of all query heads that read
  /// the same key head are summed.
  const attend_tensor* dv;
  /// Output: gradient with respect to params->bias, with the same shape and any float type. May be null.
  const attend_tensor* dbias;
  /// Output: gradient with respect to params->sinks, with the same shape and any float type. May be null.
  const attend_tensor* dsinks;
  const attend_params* params;  ///< as passed to attend_forward; null selects the defaults
  void* stream;                 ///< CUDA stream (CUstream); ignored on a CPU
} attend_backward_call;

/// Sets every pointer to null.
ATTEND_API void attend_backward_call_init(attend_backward_call* call, size_t struct_size);

/// Computes the gradients of attend_forward. Given dout = dL/do and optionally dlse = dL/dlse, writes dq, dk, dv, and
/// if requested dbias and dsinks.
///
/// Recomputes p from lse tile by tile. A row that sees no key contributes to no gradient except dsinks, to which it
/// adds its dlse. The result is deterministic, with one exception. On a GPU without attend_params::deterministic, the
/// order of the sums in dq may change.
/// @return the status codes of attend_forward
/// Source: Dao, FlashAttention-2 (2023), Algorithm 2.
ATTEND_API int32_t attend_backward(const attend_backward_call* call, attend_error* error);

/// A checked call and the backend that will run it. The plan copies the structs of the call, including `compute`. It
/// does not copy the memory of tensors, cu_seqlens, philox_state and workspace, which must stay valid until the plan's
/// last run is done. A plan never changes, so threads may share it until it is freed.
typedef struct attend_plan attend_plan;

/// Checks the arguments and chooses the backend. Compiles no kernel and writes no tensor.
/// @param plan  output, which the caller must free with attend_plan_free
/// @return ATTEND_OK, or a status of attend_forward if no backend can run the call. If only the backend named by
///   params->compute cannot run the call, the function still makes the plan. attend_plan_explain then gives the reason,
///   and the other functions return the status that attend_forward would return
ATTEND_API int32_t attend_plan_forward(const attend_forward_call* call, attend_plan** plan, attend_error* error);

/// Checks the arguments of attend_backward and chooses the backend.
ATTEND_API int32_t attend_plan_backward(const attend_backward_call* call, attend_plan** plan, attend_error* error);

/// Frees the plan, which may be null. Work that the plan has queued on a GPU continues.
ATTEND_API void attend_plan_free(attend_plan* plan);

/// @param name  output: name of the backend that runs the call. The string stays valid while the process runs
ATTEND_API int32_t attend_plan_compute(const attend_plan* plan, const char** name, attend_error* error);

/// @param bytes  output: size of the scratch memory that the call needs on its device. It is 0 on a CPU, whose backends
///   manage their own memory
ATTEND_API int32_t attend_plan_workspace_bytes(const attend_plan* plan, size_t* bytes, attend_error* error);

/// Compiles and loads the kernels that the call needs, and returns when they are loaded. Call it before a CUDA graph is
/// captured or before a server accepts its first request. Reads and writes no tensor. Does nothing on a CPU.
ATTEND_API int32_t attend_plan_prepare(const attend_plan* plan, attend_error* error);

/// Runs the call as attend_forward or attend_backward would. On a CPU each run reads cu_seqlens and philox_state again,
/// and checks the offsets in cu_seqlens again.
ATTEND_API int32_t attend_plan_run(const attend_plan* plan, attend_error* error);

/// Runs the call with the given scratch memory instead of that of the params.
/// @param workspace  memory on the tensors' device, at a multiple of 256 bytes. May be null on a CPU
/// @param bytes      at least attend_plan_workspace_bytes
ATTEND_API int32_t attend_plan_run_in(const attend_plan* plan, void* workspace, size_t bytes, attend_error* error);

/// Describes, as JSON, how every backend of the device would run the call. The backends are in the order in which
/// "auto" prefers them. Compiles nothing, and reads and writes no tensor.
///
///   [{"compute": "cpu", "chosen": true, "lack": "", "why": "...", "variant": "...", "steps": ["..."],
///     "estimated_us": 12.5, "workspace_bytes": 0}, ...]
///
/// `lack` is the reason why the backend cannot run the call. It is empty if the backend can run the call. `variant`
/// lists the compile-time options of its kernels. `steps` lists its kernels, each with grid, threads and shared memory.
/// `estimated_us` is null for a backend that "auto" never chooses.
/// @param text         output: the text in UTF-8, terminated by 0. May be null if text_bytes is 0, to query the size
/// @param text_bytes   size of `text` in bytes. If it is too small, nothing is written to `text` and the function
///   returns ATTEND_INVALID_ARGUMENT
/// @param needed_bytes output: size of the text in bytes, including the terminating 0. It is set even if `text` is too
///   small. May be null
ATTEND_API int32_t attend_plan_explain(const attend_plan* plan, char* text, size_t text_bytes, size_t* needed_bytes,
                                       attend_error* error);

/// A backend: one implementation of attention. The strings stay valid while the process runs.
typedef struct attend_backend_info {
  size_t struct_size;       ///< sizeof(attend_backend_info), set by the caller
  const char* name;         ///< value of attend_params::compute that selects the backend
  const char* description;  ///< one line of text
  int32_t device_type;      ///< ATTEND_CPU or ATTEND_CUDA
  int32_t has_backward;     ///< 1 if it supports attend_backward
} attend_backend_info;

/// Sets struct_size, and every other field to 0.
ATTEND_API void attend_backend_info_init(attend_backend_info* info, size_t struct_size);

/// @param count  output: number of backends of this build
ATTEND_API int32_t attend_num_backends(int32_t* count, attend_error* error);

/// Describes one backend. For each device, the backends are in the order in which "auto" prefers them. On a GPU, the
/// last backend supports the most options.
/// @param index  from 0 to the number of backends - 1
/// @param info   output. The caller must set struct_size. If the struct is larger than this library's, the extra fields
///   become 0
ATTEND_API int32_t attend_get_backend(int32_t index, attend_backend_info* info, attend_error* error);

/// @param threads  output: number of threads that the backend `cpu` would use for a call from this thread. It is the
///   argument of attend_set_cpu_threads if that function was called. Otherwise it is OMP_NUM_THREADS if that is set,
///   and otherwise the number of cores in the affinity mask
ATTEND_API int32_t attend_cpu_threads(int32_t* threads, attend_error* error);

/// Sets the number of threads for the process. 0 restores the default. The setting applies to this copy of the library.
/// Another copy of the library in the same process, such as that of the Python package, has a separate setting.
ATTEND_API int32_t attend_set_cpu_threads(int32_t threads, attend_error* error);

/// Returns the SIMD target of the backend `cpu` on this machine, for example "AVX3" (AVX-512), "AVX2" or "SSE4". The
/// text arguments are those of attend_plan_explain.
ATTEND_API int32_t attend_cpu_simd_target(char* text, size_t text_bytes, size_t* needed_bytes, attend_error* error);

/// Returns the unit that multiplies bfloat16 tensors in the backend `cpu` on this machine: "AMX", "AVX512_BF16", or
/// "float32". The text arguments are those of attend_plan_explain.
ATTEND_API int32_t attend_cpu_bf16_unit(char* text, size_t text_bytes, size_t* needed_bytes, attend_error* error);

#ifdef __cplusplus
}
#endif

#endif  // ATTEND_C_ATTENTION_H_
