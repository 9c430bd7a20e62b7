// Custom functions that change scores before the softmax. Examples are ALiBi, a table of relative positions, and packed
// documents. The caller writes a function as a one-line expression.
//
//   const attend::ScoreFunction relative("score + table[h][clamp(q - k, -128, 127) + 128]",
//                                        {{"table", {.data = table, .shape = {num_heads, 256}}}});
//   attend::forward({.q = q, .k = k, .v = v, .o = o, .lse = lse, .params = {.score = &relative}});
//   attend::backward({..., .captures = {{"table", {.data = dtable, .shape = {num_heads, 256}}}},
//                     .params = {.score = &relative}});
//
// docs/custom_scores.md describes the expression language and has a cookbook.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "attend/error.hpp"
#include "attend/export.hpp"
#include "attend/tensor.hpp"

namespace attend {

/// A view of memory that a call only reads. It has 0 to 4 dimensions and any strides. It describes tensors whose
/// dimensions are not (batch, heads, seqlen, head_dim). The caller owns the memory and keeps it alive until the call is
/// done with it.
struct ConstStridedTensor {
  const void* data = nullptr;            ///< address of the element whose subscripts are all 0
  DType dtype = DType::kF32;             ///< type of every element
  std::vector<std::int64_t> shape = {};  ///< extents; if empty, there is a single element
  /// Strides in elements, one per dimension. If empty, the tensor is dense and its last stride is 1.
  std::vector<std::int64_t> stride = {};
  Device device = {};  ///< device that holds the memory
};

/// A view of memory that a call may write. The fields have the meaning of those of ConstStridedTensor.
struct StridedTensor {
  void* data = nullptr;                   ///< address of the element whose subscripts are all 0
  DType dtype = DType::kF32;              ///< type of every element
  std::vector<std::int64_t> shape = {};   ///< extents; if empty, there is a single element
  std::vector<std::int64_t> stride = {};  ///< strides in elements, one per dimension; if empty, the tensor is dense
  Device device = {};                     ///< device that holds the memory

  /// Converts to a read-only view of the same memory.
  // NOLINTNEXTLINE(google-explicit-constructor)
  [[nodiscard]] operator ConstStridedTensor() const { return {data, dtype, shape, stride, device}; }
};

/// A tensor that a score function reads, and the name by which the text refers to it.
struct ScoreCapture {
  std::string name;  ///< name in the text
  /// The tensor. f32, f16, bf16 and f64 are floats. i32 and i64 are integers. The function uses only the lowest 32 bits
  /// of an i64 value. A bool is a byte, and 0 is false. Each extent is 1 to 2^31 - 1. Strides may be 0 or negative.
  ConstStridedTensor tensor;
};

/// Destination of the gradient of a captured tensor.
struct CaptureGradient {
  std::string name;  ///< name of a capture whose elements are floats
  /// Output, f32 or f64, with the shape of the capture. No other output may use its memory. Strides must be >= 0, and
  /// may be 0 only if the extent is 1. Elements must not overlap: each stride must exceed the span of all dimensions
  /// that have smaller strides. Every element is overwritten. An element that no score has read becomes 0.
  StridedTensor gradient;
};

/// A function s = f(score, b, h, q, k, q_len, k_len, captured tensors), applied to every row and key. Its expression
/// may use these names:
///
///   score         scale <q, k>, after softcap, ALiBi and bias, before masks (window, causal, lengths, Params::mask)
///   b             index of the sequence
///   h             query head
///   q, k          row and key, counted from 0 at the beginning of the sequence
///   q_len, k_len  number of rows and keys of the sequence
///
/// If s is -inf, the row does not see the key. A row that sees no key gives o = 0. Its lse is -inf, or the sink if
/// there are sinks. The text is an expression in the syntax of C. In addition, the language has floor division (//), a
/// modulo whose result has the sign of the divisor (%), names defined by `let`, and the functions listed in
/// docs/custom_scores.md. Subscripts are clamped to the extents of the tensor, so no access leaves the tensor.
///
/// The constructor parses and differentiates the text once. The values of captured tensors may change between calls.
/// with() returns the same function with other captured tensors. Copies share one immutable state. All functions are
/// thread-safe.
class ATTEND_API ScoreFunction {
 public:
  /// @param text      the expression
  /// @param captures  at most kMostCaptures tensors. The constructor does not read their memory.
  /// @throws Error (kInvalidArgument) naming the invalid capture, or the column of the text that has an error.
  explicit ScoreFunction(std::string_view text, std::vector<ScoreCapture> captures = {});

  /// The class can be copied but not moved, because a moved-from ScoreFunction would have no state.
  ScoreFunction(const ScoreFunction&) = default;
  ScoreFunction& operator=(const ScoreFunction&) = default;

  /// Returns the same function with other tensors. The text is parsed again only if a name, a shape, or an element
  /// category (float, integer, bool) has changed.
  [[nodiscard]] ScoreFunction with(std::vector<ScoreCapture> captures) const;

  [[nodiscard]] const std::string& text() const noexcept;                    ///< the expression that was passed
  [[nodiscard]] const std::vector<ScoreCapture>& captures() const noexcept;  ///< the captures that were passed

  static constexpr std::size_t kMostCaptures = 8;  ///< maximum number of tensors that a function may read

  /// For the library's own use.
  struct State;
  [[nodiscard]] const std::shared_ptr<const State>& state() const noexcept { return state_; }

 private:
  explicit ScoreFunction(std::shared_ptr<const State> state) noexcept;

  std::shared_ptr<const State> state_;
};

}  // namespace attend
