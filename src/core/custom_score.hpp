// A modification of scores in the caller's own words, as a problem carries it: source text and captured tensors.
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

/// The option alibi_slopes in the words of a function, whose lengths of q and k are equal.
enum class AlibiForm : std::uint8_t {
  kNone,        ///< it is something else
  kDistance,    ///< score - slope[h] |q - k|
  kKeysBefore,  ///< score - slope[h] (q - k): the option where no key behind the row is seen
};

/// It applies after the options of kernels/attention/score_mods.cuh and before masks. The CPU's backends run its
/// program; those of GPUs compile its source.
struct CustomScore {
  /// Two structs as expr::print_struct prints them: ScoreValueCode, the value; ScoreFunctionCode, the value and its
  /// derivative by the score.
  std::string source;
  /// Of the gradients of captures: score/gradients_text.hpp. Empty: the value depends on none.
  std::string gradients = {};
  /// Of what a kernel reads once for a tile: the members of score/held_text.hpp.
  std::string held = {};
  /// Of the source: two problems with equal digests take the same kernels.
  std::array<std::int32_t, 4> digest = {};
  /// Its effects on a score, which tile choices and kernels ask for.
  ScoreModTraits traits = {};
  /// By a constant or an element of a capture, may all values of a row be so large that the rounding of lse shows
  /// (kernels/attention/coarse_lse.cuh), or so low that their products with log2(e) are infinite? Masks are made so.
  bool may_be_huge = false;
  /// Not 0: it is the option of this name, with this value, and nothing else.
  double softcap = 0;
  /// Not kNone: it is that option, with its one capture, and nothing else.
  AlibiForm alibi = AlibiForm::kNone;
  /// Tensors that the source reads, kMostCaptured at most, on the device of q. No key has their values or addresses.
  /// Subscript n of a capture is dimension n: further dimensions have extent 1. Strides are any, the last one too.
  std::vector<Tensor> captured = {};
  static constexpr std::size_t kMostCaptured = attend::kMostCaptured;
  /// The function itself, with as many captures as `captured` has; null: known by its source alone.
  const expr::ScoreProgram* program = nullptr;
  /// What the caller calls them, in the same order.
  std::vector<std::string> names = {};
  /// Of each capture as the function knows it: how many subscripts it has.
  std::vector<std::size_t> ranks = {};
};

/// How the elements of a capture lie in memory, as far as code depends on it.
struct CaptureForm {
  bool is_near = false;  ///< all are within 2^31 of the first
  bool is_unit = false;  ///< neighbours in the last dimension are in memory, too
};
/// rank: of the capture as its function knows it.
[[nodiscard]] CaptureForm form_of(const Tensor& captured, std::size_t rank);

}  // namespace attend::core
