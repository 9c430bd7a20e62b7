// Gradients of captures as kernels compute them.
#pragma once

#include <string>

#include "expr/score_program.hpp"

namespace attend::score {

/// Members of CustomScoreCode (kernels/attention/custom_score.cuh) for a function that reads floats:
///
///   kLines: along which lines of pairs its gradients are the same
///   kSameFrom, kSameUntil: and for all pairs together whose q - k is from kSameFrom on, or until kSameUntil
///   gradients(at, captured, add): calls add(number of the capture, which of its elements it is, counted through all
///   dimensions, derivative by it) for each load that the value depends on
///
/// They call ScoreGradientsCode::evaluate(), whose results are ScoreProgram::results_of().
[[nodiscard]] std::string gradients_text(const expr::ScoreProgram& program);

}  // namespace attend::score
