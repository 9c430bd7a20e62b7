// Generates source code with which kernels compute the gradients of captures.
#pragma once

#include <string>

#include "expr/score_program.hpp"

namespace attend::score {

/// Returns source code of members of CustomScoreCode (kernels/attention/custom_score.cuh) for a function that reads
/// floats:
///
///   kLines states along which lines of (row, key) pairs the gradients are the same, for example along diagonals.
///
///   kSameFrom and kSameUntil are limits of q - k. The gradients are the same for all pairs with q - k >= kSameFrom,
///   and also the same for all pairs with q - k <= kSameUntil.
///
///   gradients(at, captured, add) calls add() for each load on which the value depends. The arguments of add() are the
///   number of the capture, the linear index of the element, and the derivative with respect to the element.
///
/// These members call ScoreGradientsCode::evaluate(), whose results are ScoreProgram::results_of().
[[nodiscard]] std::string gradients_text(const expr::ScoreProgram& program);

}  // namespace attend::score
