// A custom score function in the form that a problem stores: source text and captured tensors. The function reads the
// captured tensors.
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

/// Two formulas of functions that are equivalent to the option alibi_slopes if q and k have equal lengths.
enum class AlibiForm : std::uint8_t {
  kNone,      ///< any other function
  kDistance,  ///< score - slope[h] |q - k|
  /// Score - slope[h] (q - k); equivalent to the option only if no row sees a key after the row's own position.
  kKeysBefore,
};

/// The function is applied after the options of kernels/attention/score_mods.cuh and before masks. CPU backends run the
/// function's program, and GPU backends compile its source.
struct CustomScore {
  /// Source text of two structs, made by expr::print_struct(). ScoreValueCode computes the value. ScoreFunctionCode
  /// computes the value and its derivative with respect to the score.
  std::string source;
  /// Source text of the gradients of captures (score/gradients_text.hpp). Empty if the value depends on no capture of
  /// floats.
  std::string gradients = {};
  /// Source text of values that a kernel loads once per tile (score/held_text.hpp).
  std::string held = {};
  /// Digest of the source texts. Problems with equal digests use the same kernels.
  std::array<std::int32_t, 4> digest = {};
  /// Properties of the function, which determine the choice of tiles and kernels.
  ScoreModTraits traits = {};
  /// True if a constant or an element of a capture may make all values of a row very large or very low. For large
  /// values, the rounding of lse affects results (kernels/attention/coarse_lse.cuh). Very low values, which masks use,
  /// become infinite when they are multiplied by log2(e).
  bool may_be_huge = false;
  /// If nonzero, the function equals the option softcap with this value.
  double softcap = 0;
  /// If not kNone, the function equals the option alibi_slopes with the function's single capture as slopes.
  AlibiForm alibi = AlibiForm::kNone;
  /// Tensors that the source reads. There are at most kMostCaptured, on the device of q. Kernels are compiled
  /// independently of the values and addresses of these tensors. Dimension n of a tensor corresponds to subscript n;
  /// further dimensions have extent 1. All strides are allowed, including any last stride.
  std::vector<Tensor> captured = {};
  static constexpr std::size_t kMostCaptured = attend::kMostCaptured;
  /// The function's program, whose captures are those of `captured`. Null if only the source is available.
  const expr::ScoreProgram* program = nullptr;
  /// Names of the captures, in the order of `captured`.
  std::vector<std::string> names = {};
  /// Number of subscripts that the function uses for each capture.
  std::vector<std::size_t> ranks = {};
};

/// Properties of a capture's memory layout that change the generated code.
struct CaptureForm {
  bool is_near = false;  ///< if true, all elements are within 2^31 elements of the first one
  bool is_unit = false;  ///< if true, the last stride is 1
};
/// Returns the form of a capture. `rank` is the number of subscripts that the function uses for it.
[[nodiscard]] CaptureForm form_of(const Tensor& captured, std::size_t rank);

}  // namespace attend::core
