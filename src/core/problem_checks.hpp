// Checks of single tensors or arrays, and of the memory of several tensors. Used where problems are made.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/problem.hpp"

namespace attend::core {

template <class... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ErrorCode::kInvalidArgument, fmt::format(format, std::forward<Args>(args)...));
}

/// Returns "(2, 8, 512, 64)"; a dimension of -1 prints as "any".
[[nodiscard]] std::string shape_text(const Shape& shape);

inline constexpr std::int64_t kAny = -1;  // a dimension that check_shape ignores

/// Checks that the shape equals `wanted` in every dimension except kAny. meaning: description for the error message.
void check_shape(const char* name, const Tensor& t, const Shape& wanted, const char* meaning);

/// Checks that head_dim of a tensor is 1 to `most`.
void check_head_dim(const char* name, const Tensor& t, std::int64_t most);

/// Checks that the number of heads of k divides that of q. k_name: name of k in the call.
void check_heads(const char* k_name, const Tensor& k, const Tensor& q);

/// Check a scale, if there is one, and the ends of a window.
void check_scale(const std::optional<double>& scale);
void check_window(std::int64_t window_left, std::int64_t window_right);

/// Checks sizes, strides, device and pointer of a tensor: sizes in range, strides >= 0, last one 1, extent below 2^62
/// bytes. owner: the argument that determines the device.
void check_tensor(const char* name, const Tensor& t, Device device, const char* owner = "q");

/// Does check_tensor, and checks that the dtype is f32, f16, bf16 or f64.
void check_float_tensor(const char* name, const Tensor& t, Device device);

/// Does check_tensor, and checks dtype f32 (f64 if q is f64) and shape (batch, num_heads_q, seqlen_q, 1) of p.q.
void check_lse_like(const char* name, const Tensor& t, const Problem& p);

/// Checks offsets of packed sequences. They must start at 0, never decrease, have no length above max_seqlen, and end
/// at the total number of tokens. Both arrays are (num_sequences + 1), in host memory.
void check_varlen_offsets(const Problem& p, const std::int32_t* cu_seqlens_q, const std::int32_t* cu_seqlens_k,
                          const WholeLengths& total);

/// Offsets of the packed rows of sequences, in host memory.
struct RowOffsets {
  const char* name;
  const std::int32_t* offsets;  ///< (num_sequences + 1)
  std::int64_t num_sequences;
  std::int64_t most;      ///< maximum rows of a sequence
  const char* most_name;  ///< argument with this maximum
  std::int64_t num_rows;  ///< rows of the packed tensor
  const char* rows_name;
};

/// Checks that offsets start at 0, never decrease, have no length above `most`, and end at or before the number of
/// rows.
void check_row_offsets(const RowOffsets& rows);

/// Checks that no dimension of an output is broadcast.
void check_output_strides(const char* name, const Tensor& t);

/// Returns false only if the tensors certainly share no byte: they are disjoint, or alternate in one buffer as q, k and
/// v do in a fused one.
[[nodiscard]] bool may_share_bytes(const Tensor& a, const Tensor& b);

/// Checks and sets params.score, which must be absent in a part of a larger problem. wants_gradients: the call requests
/// gradients of its captures.
void resolve_score_function(Problem& p, const Params& params, bool is_whole, bool wants_gradients);

/// Checks and sets params.block_mask, which a part must not have. Requires the lengths and the window.
void resolve_block_mask(Problem& p, const Params& params, bool is_whole);

/// Checks and sets the gradients of captures, BackwardCall::captures.
void resolve_captured_gradients(Problem& p, const std::vector<CaptureGradient>& given);

/// Does check_outputs() for the captures of params.score and their gradients, together with the other outputs and
/// inputs. Call before the check of the options, because an option may also be a capture.
void check_captured_memory(const Problem& p, const Params& params, std::span<const NamedTensor> outputs,
                           std::span<const NamedTensor> inputs);

/// Returns whether the views have the same elements at the same addresses.
[[nodiscard]] bool is_same_view(const Tensor& a, const Tensor& b);

/// Checks that no output has a broadcast dimension, shares memory with an input, or starts at the address of another
/// output. Outputs may interleave: dq, dk and dv may be views of one fused buffer.
void check_outputs(std::span<const NamedTensor> outputs, std::span<const NamedTensor> inputs);

}  // namespace attend::core
