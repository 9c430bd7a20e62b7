// The checks that concern one tensor or array, or the memory of several tensors: used where problems are made.
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

/// "(2, 8, 512, 64)"; a dimension of -1 prints as "any".
[[nodiscard]] std::string shape_text(const Shape& shape);

inline constexpr std::int64_t kAny = -1;  // a dimension that check_shape does not look at

/// `wanted` in every dimension but those that are kAny. meaning: what the refusal calls it.
void check_shape(const char* name, const Tensor& t, const Shape& wanted, const char* meaning);

/// head_dim of a tensor: 1 to `most`.
void check_head_dim(const char* name, const Tensor& t, std::int64_t most);

/// The heads of k (by its name in the call) divide those of q.
void check_heads(const char* k_name, const Tensor& k, const Tensor& q);

/// A scale, if there is one, and the ends of a window.
void check_scale(const std::optional<double>& scale);
void check_window(std::int64_t window_left, std::int64_t window_right);

/// Sizes, strides, device and pointer of any tensor: sizes in range, strides >= 0, last one 1, extent below 2^62 bytes.
/// owner: the argument whose device it is.
void check_tensor(const char* name, const Tensor& t, Device device, const char* owner = "q");

/// check_tensor, and the dtype is one of f32, f16, bf16, f64.
void check_float_tensor(const char* name, const Tensor& t, Device device);

/// check_tensor, dtype f32 (f64 where q is f64), and shape (batch, num_heads_q, seqlen_q, 1) of p.q.
void check_lse_like(const char* name, const Tensor& t, const Problem& p);

/// What offsets of packed sequences have to be: from 0 on, never decreasing, no length above max_seqlen, up to the
/// total number of tokens. Both are (num_sequences + 1), in memory of the host.
void check_varlen_offsets(const Problem& p, const std::int32_t* cu_seqlens_q, const std::int32_t* cu_seqlens_k,
                          const WholeLengths& total);

/// Offsets of the packed rows of sequences, in memory of the host.
struct RowOffsets {
  const char* name;
  const std::int32_t* offsets;  ///< (num_sequences + 1)
  std::int64_t num_sequences;
  std::int64_t most;      ///< rows of a sequence
  const char* most_name;  ///< the argument that says so
  std::int64_t num_rows;  ///< of the packed tensor
  const char* rows_name;
};

/// They start at 0, never decrease, have no length above `most`, and end at the number of rows or before it.
void check_row_offsets(const RowOffsets& rows);

/// No dimension of an output is broadcast.
void check_output_strides(const char* name, const Tensor& t);

/// May a write to one change the other? False only if they surely have no byte in common: they lie apart, or alternate
/// in one buffer as q, k and v do in a fused one.
[[nodiscard]] bool may_share_bytes(const Tensor& a, const Tensor& b);

/// params.score, which a part of a larger problem may not have. wants_gradients: of its captures.
void resolve_score_function(Problem& p, const Params& params, bool is_whole, bool wants_gradients);

/// params.block_mask, likewise. The lengths are known, and the window.
void resolve_block_mask(Problem& p, const Params& params, bool is_whole);

/// The gradients of its captures, BackwardCall::captures.
void resolve_captured_gradients(Problem& p, const std::vector<CaptureGradient>& given);

/// check_outputs() of the captures of params.score and their gradients, beside the other outputs and inputs. Before
/// that of the options, one of which may be a capture.
void check_captured_memory(const Problem& p, const Params& params, std::span<const NamedTensor> outputs,
                           std::span<const NamedTensor> inputs);

/// The same elements at the same places.
[[nodiscard]] bool is_same_view(const Tensor& a, const Tensor& b);

/// No output has a broadcast dimension, shares memory with an input, or starts where another output starts. Outputs may
/// interleave: dq, dk and dv may be views of one fused buffer.
void check_outputs(std::span<const NamedTensor> outputs, std::span<const NamedTensor> inputs);

}  // namespace attend::core
