// State of a ScoreFunction: the function as a Problem carries it, and the objects that it points to.
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
  core::CustomScore custom;  ///< points to the program above
};

}  // namespace attend
