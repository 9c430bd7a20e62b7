// A function of the caller's own that changes scores before the softmax: ALiBi, a table of relative positions, packed
// documents, or whatever a line of text can say.
//
//   const attend::ScoreFunction relative("score + table[h][clamp(q - k, -128, 127) + 128]",
//                                        {{"table", {.data = table, .shape = {num_heads, 256}}}});
//   attend::forward({.q = q, .k = k, .v = v, .o = o, .lse = lse, .params = {.score = &relative}});
//   attend::backward({..., .captures = {{"table", {.data = dtable, .shape = {num_heads, 256}}}},
//                     .params = {.score = &relative}});
//
// docs/custom_scores.md has the language and a cookbook.
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

/// A view of 0 to 4 dimensions with any strides, for tensors that are not (batch, heads, seqlen, head_dim). The caller
/// owns the memory and keeps it alive until the call is done with it. This one is of memory that a call only reads.
struct ConstStridedTensor {
  const void* data = nullptr;             ///< of the element whose subscripts are all 0
  DType dtype = DType::kF32;              ///< of every element
  std::vector<std::int64_t> shape = {};   ///< no dimensions: one element
  std::vector<std::int64_t> stride = {};  ///< in elements, one for each dimension; empty: dense, the last one is 1
  Device device = {};                     ///< where the memory lies
};

/// The same of memory that a call may write.
struct StridedTensor {
  void* data = nullptr;                   ///< as in ConstStridedTensor
  DType dtype = DType::kF32;              ///< likewise
  std::vector<std::int64_t> shape = {};   ///< likewise
  std::vector<std::int64_t> stride = {};  ///< likewise
  Device device = {};                     ///< likewise

  /// The same view, for reading only.
  // NOLINTNEXTLINE(google-explicit-constructor)
  [[nodiscard]] operator ConstStridedTensor() const { return {data, dtype, shape, stride, device}; }
};

/// A tensor that a score function reads, and its name in the text.
struct ScoreCapture {
  std::string name;  ///< as the text has it
  /// f32, f16, bf16, f64: floats. i32, i64: integers; those of 64 bits are taken modulo 2^32. bool: a byte, 0 is false.
  /// Each extent is 1 to 2^31 - 1. Strides may be 0 or negative
  ConstStridedTensor tensor;
};

/// Where backward puts the gradient of a captured tensor.
struct CaptureGradient {
  std::string name;  ///< of a capture of floats
  /// Out, f32 or f64, of the capture's shape, in memory that no other output shares. Strides >= 0; 0 only where the
  /// extent is 1; each beyond what the dimensions of smaller strides span. Every element is overwritten: with 0 where
  /// no score has read it
  StridedTensor gradient;
};

/// s = f(score, b, h, q, k, q_len, k_len, captured tensors), for every row and key.
///
///   score         scale <q, k>, after softcap, ALiBi and bias, before masks (window, causal, lengths, Params::mask)
///   b             index of the sequence
///   h             query head
///   q, k          row and key, counted from 0 at the beginning of the sequence
///   q_len, k_len  number of rows and keys of the sequence
///
/// An s of -inf hides the key from the row. A row that sees no key gives o = 0 and lse = -inf, with sinks the sink. The
/// text is an expression in the language of C, with floor division (//), a modulo of the divisor's sign (%), lets, and
/// the functions of docs/custom_scores.md. Subscripts are taken within the tensor: none reads beyond it.
///
/// The text is parsed and differentiated once, here. The values of captured tensors may change between calls, and
/// with() gives the same function of other tensors. Copies share one state, which never changes. Thread-safe.
class ATTEND_API ScoreFunction {
 public:
  /// @param captures  at most kMostCaptures. Their memory is not read here.
  /// @throws Error (kInvalidArgument) naming the column of the text, or the capture.
  explicit ScoreFunction(std::string_view text, std::vector<ScoreCapture> captures = {});

  /// Moves copy: every ScoreFunction has a state.
  ScoreFunction(const ScoreFunction&) = default;
  ScoreFunction& operator=(const ScoreFunction&) = default;

  /// The same function of these tensors. The text is parsed again only if a name, a kind of element (float, integer,
  /// bool) or a shape is another one.
  [[nodiscard]] ScoreFunction with(std::vector<ScoreCapture> captures) const;

  [[nodiscard]] const std::string& text() const noexcept;                    ///< as it was given
  [[nodiscard]] const std::vector<ScoreCapture>& captures() const noexcept;  ///< as they were given

  static constexpr std::size_t kMostCaptures = 8;  ///< tensors that a function may read

  /// Of the library's own.
  struct State;
  [[nodiscard]] const std::shared_ptr<const State>& state() const noexcept { return state_; }

 private:
  explicit ScoreFunction(std::shared_ptr<const State> state) noexcept;

  std::shared_ptr<const State> state_;
};

}  // namespace attend
