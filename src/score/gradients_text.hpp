// Source code for gradients of captures in kernels.
#pragma once

#include <string>

#include "expr/score_program.hpp"

namespace attend::score {

/// Returns members of CustomScoreCode (kernels/attention/custom_score.cuh) for a function that reads floats:
///
///   kLines: the lines of pairs along which its gradients are the same
///
///   kSameFrom, kSameUntil: gradients are also the same for all pairs with q - k >= kSameFrom, or <= kSameUntil
///
///   gradients(at, captured, add): for each load that the value depends on, calls add(number of the capture,
///   index of the element over all dimensions, derivative by the element)
///
/// They call ScoreGradientsCode::evaluate(), whose results are ScoreProgram::results_of().
[[nodiscard]] std::string gradients_text(const expr::ScoreProgram& program);

}  // namespace attend::score
