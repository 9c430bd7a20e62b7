// A custom function of scores, as a problem carries it: source text and captured tensors.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "attend/tensor.hpp"
#include "kernels/attention/score_mods.cuh"

namespace attend::expr {
struct ScoreProgram;
}

namespace attend::core {

/// Recognised forms of the option alibi_slopes in a function. The lengths of q and k must be equal.
enum class AlibiForm : std::uint8_t {
  kNone,        ///< any other function
  kDistance,    ///< score - slope[h] |q - k|
  kKeysBefore,  ///< score - slope[h] (q - k): equals the option if no row sees a key after itself
};

/// Applied after the options of kernels/attention/score_mods.cuh and before masks. CPU backends run its program; GPU
/// backends compile its source.
struct CustomScore {
  /// Two structs from expr::print_struct: ScoreValueCode computes the value, ScoreFunctionCode the value and its
  /// derivative by the score.
  std::string source;
  /// Source of the gradients of captures (score/gradients_text.hpp). Empty: the value depends on no capture of floats.
  std::string gradients = {};
  /// Source of values that a kernel loads once per tile: the members of score/held_text.hpp.
  std::string held = {};
  /// Digest of the source. Problems with equal digests use the same kernels.
  std::array<std::int32_t, 4> digest = {};
  /// Effects on a score, used to choose tiles and kernels.
  ScoreModTraits traits = {};
  /// Whether a constant or an element of a capture may make all values of a row very large or very low. Large values
  /// make the rounding of lse visible (kernels/attention/coarse_lse.cuh). Low values, as in masks, make products with
  /// log2(e) infinite.
  bool may_be_huge = false;
  /// Nonzero: the function is exactly the option softcap with this value.
  double softcap = 0;
  /// Not kNone: the function is exactly the option alibi_slopes, with its single capture.
  AlibiForm alibi = AlibiForm::kNone;
  /// Tensors that the source reads, at most kMostCaptured, on the device of q. Kernel keys do not contain their values
  /// or addresses. Subscript n of a capture is dimension n; further dimensions have extent 1. Any strides are allowed,
  /// including the last one.
  std::vector<Tensor> captured = {};
  static constexpr std::size_t kMostCaptured = attend::kMostCaptured;
  /// The function's program, with one capture for each tensor of `captured`; null: only the source is available.
  const expr::ScoreProgram* program = nullptr;
  /// Names of the captures, in the same order.
  std::vector<std::string> names = {};
  /// Number of subscripts of each capture in the function.
  std::vector<std::size_t> ranks = {};
};

/// Memory layout of a capture, as far as generated code depends on it.
struct CaptureForm {
  bool is_near = false;  ///< all elements are within 2^31 of the first one
  bool is_unit = false;  ///< neighbours in the last dimension are neighbours in memory
};
/// Returns the form of a capture. rank: its number of subscripts in the function.
[[nodiscard]] CaptureForm form_of(const Tensor& captured, std::size_t rank);

}  // namespace attend::core
