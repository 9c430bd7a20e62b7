// The checks that concern one tensor, or the memory of several: used by problem.cpp only.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "core/problem.hpp"

namespace attend::core {

template <class... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ErrorCode::kInvalidArgument, fmt::format(format, std::forward<Args>(args)...));
}

/// "(2, 8, 512, 64)"; a dimension of -1 prints as "any".
[[nodiscard]] std::string shape_text(const Shape& shape);

/// Sizes, strides, device and pointer of any tensor: sizes in range, strides >= 0, last one 1, extent below 2^62 bytes.
void check_tensor(const char* name, const Tensor& t, Device device);

/// check_tensor, and the dtype is one of f32, f16, bf16, f64.
void check_float_tensor(const char* name, const Tensor& t, Device device);

/// check_tensor, dtype f32 (f64 where q is f64), and shape (batch, num_heads_q, seqlen_q, 1) of p.q.
void check_lse_like(const char* name, const Tensor& t, const Problem& p);

/// What offsets of packed sequences have to be: from 0 on, never decreasing, no length above max_seqlen, up to the
/// total number of tokens. Both are (num_sequences + 1), in memory of the host.
void check_varlen_offsets(const Problem& p, const std::int32_t* cu_seqlens_q, const std::int32_t* cu_seqlens_k,
                          const WholeLengths& total);

/// No output has a broadcast dimension, shares memory with an input, or starts where another output starts. Outputs may
/// interleave: dq, dk and dv may be views of one fused buffer.
void check_outputs(std::span<const NamedTensor> outputs, std::span<const NamedTensor> inputs);

}  // namespace attend::core
