// Checks of single tensors and arrays, and of memory that several tensors share. The functions that make problems call
// them.
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

/// Formats a shape, for example "(2, 8, 512, 64)". A dimension of -1 is printed as "any".
[[nodiscard]] std::string shape_text(const Shape& shape);

inline constexpr std::int64_t kAny = -1;  // a dimension that check_shape ignores

/// Checks that the shape equals `wanted` in every dimension that is not kAny. `meaning` describes the shape in the
/// error message.
void check_shape(const char* name, const Tensor& t, const Shape& wanted, const char* meaning);

/// Checks that the last dimension of a tensor is 1 to `most`.
void check_head_dim(const char* name, const Tensor& t, std::int64_t most);

/// Checks that the number of heads of k divides that of q. `k_name` is the argument name of k.
void check_heads(const char* k_name, const Tensor& k, const Tensor& q);

/// Check two arguments: the scale, if it is set, and the two ends of a window.
void check_scale(const std::optional<double>& scale);
void check_window(std::int64_t window_left, std::int64_t window_right);

/// Checks the sizes, strides, device and pointer of a tensor. Sizes must be in range. Strides must be >= 0, and the
/// last stride must be 1. The tensor must span less than 2^62 bytes. `owner` is the name of the argument that
/// determines the device of the call.
void check_tensor(const char* name, const Tensor& t, Device device, const char* owner = "q");

/// Calls check_tensor, and checks that the dtype is f32, f16, bf16 or f64.
void check_float_tensor(const char* name, const Tensor& t, Device device);

/// Calls check_tensor. Also checks that the shape is (batch, num_heads_q, seqlen_q, 1) with the sizes of p.q. The dtype
/// must be f32, or f64 if q is f64.
void check_lse_like(const char* name, const Tensor& t, const Problem& p);

/// Checks the offsets of packed sequences. They must start at 0, never decrease, and end at the total number of tokens.
/// No length may exceed max_seqlen. Both arrays have num_sequences + 1 elements in host memory.
void check_varlen_offsets(const Problem& p, const std::int32_t* cu_seqlens_q, const std::int32_t* cu_seqlens_k,
                          const WholeLengths& total);

/// Offsets of packed rows in host memory, and the names of the arguments for error messages.
struct RowOffsets {
  const char* name;
  const std::int32_t* offsets;  ///< (num_sequences + 1)
  std::int64_t num_sequences;
  std::int64_t most;      ///< maximum number of rows of a sequence
  const char* most_name;  ///< name of the argument that sets this maximum
  std::int64_t num_rows;  ///< number of rows of the packed tensor
  const char* rows_name;
};

/// Checks that the offsets start at 0, never decrease, and end at or before the number of rows. No length may exceed
/// `most`.
void check_row_offsets(const RowOffsets& rows);

/// Checks that no dimension of an output is broadcast.
void check_output_strides(const char* name, const Tensor& t);

/// Returns whether the two tensors may share a byte. Returns false only if they certainly share none. This is certain
/// if their memory is disjoint, or if they are interleaved in one buffer, as q, k and v are in a fused buffer.
[[nodiscard]] bool may_share_bytes(const Tensor& a, const Tensor& b);

/// Checks params.score and stores it in the problem. It must be absent if the problem is a part of a larger one.
/// `wants_gradients` is true if the call requests gradients of the function's captures.
void resolve_score_function(Problem& p, const Params& params, bool is_whole, bool wants_gradients);

/// Checks params.block_mask and stores it in the problem. It must be absent if the problem is a part of a larger one.
/// The lengths and the window must already be set.
void resolve_block_mask(Problem& p, const Params& params, bool is_whole);

/// Checks BackwardCall::captures, the gradients of captures, and stores them in the problem.
void resolve_captured_gradients(Problem& p, const std::vector<CaptureGradient>& given);

/// Calls check_outputs() for the captures of params.score and their gradients, together with the other outputs and
/// inputs. Must be called before the memory of the option tensors is checked, because a capture may be the same tensor
/// as an option.
void check_captured_memory(const Problem& p, const Params& params, std::span<const NamedTensor> outputs,
                           std::span<const NamedTensor> inputs);

/// Returns whether the two views have the same shape, and the same elements at the same addresses.
[[nodiscard]] bool is_same_view(const Tensor& a, const Tensor& b);

/// Checks that no output has a broadcast dimension, shares memory with an input, or starts at the address of another
/// output. Outputs may be interleaved; for example, dq, dk and dv may be views of one fused buffer.
void check_outputs(std::span<const NamedTensor> outputs, std::span<const NamedTensor> inputs);

}  // namespace attend::core
