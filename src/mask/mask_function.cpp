#include "mask/mask_function.hpp"

#include <array>
#include <utility>

#include "expr/parse.hpp"
#include "score/captures.hpp"

namespace attend {

MaskFunction::MaskFunction(std::string_view text, std::vector<ScoreCapture> captures) {
  score::check_captures("mask", captures);
  auto state = std::make_shared<State>();
  expr::Function function = expr::parse("mask", text, score::names_and_shapes(captures), expr::Type::kBool);
  state->text = text;
  state->captured = score::in_four_dimensions("mask", captures);
  state->captures = std::move(captures);
  state->graph = std::move(function.graph);
  state->result = function.result;
  state->program = expr::RowProgram::of(state->graph, std::array{state->result});
  state_ = std::move(state);
}

const std::string& MaskFunction::text() const noexcept {
  return state_->text;
}

const std::vector<ScoreCapture>& MaskFunction::captures() const noexcept {
  return state_->captures;
}

}  // namespace attend
