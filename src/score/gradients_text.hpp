// Generates source code that computes gradients of captures in kernels.
#pragma once

#include <string>

#include "expr/score_program.hpp"

namespace attend::score {

/// Returns source code of members of CustomScoreCode (kernels/attention/custom_score.cuh) for a function that reads
/// floats:
///
///   kLines: along which lines of pairs the gradients are the same
///
///   kSameFrom, kSameUntil: the gradients are also the same for all pairs with q - k >= kSameFrom, or with q - k <=
///   kSameUntil
///
///   gradients(at, captured, add): for each load on which the value depends, calls add(number of the capture,
///   index of the element over all dimensions, derivative with respect to the element)
///
/// These members call ScoreGradientsCode::evaluate(), whose results are ScoreProgram::results_of().
[[nodiscard]] std::string gradients_text(const expr::ScoreProgram& program);

}  // namespace attend::score
