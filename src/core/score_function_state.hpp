// The contents of a ScoreFunction: the CustomScore that a Problem stores, and the objects to which the CustomScore
// points.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "attend/score_function.hpp"
#include "core/custom_score.hpp"

namespace attend {

struct ScoreFunction::State {
  std::string text;
  std::vector<ScoreCapture> captures;
  std::shared_ptr<const expr::ScoreProgram> program;
  core::CustomScore custom;  ///< points to `program`
};

}  // namespace attend
