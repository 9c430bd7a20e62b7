// Tensors that a function of the caller's own reads: the checks of what was given, and the forms in which the library
// has them.
#pragma once

#include <string_view>
#include <vector>

#include "attend/score_function.hpp"
#include "expr/graph.hpp"

namespace attend::score {

/// What the parser does not see: it knows names, extents and kinds of elements. argument: what the function is called
/// in refusals.
void check_captures(std::string_view argument, const std::vector<ScoreCapture>& captures);

/// For the parser, which checks them.
[[nodiscard]] std::vector<expr::Capture> names_and_shapes(const std::vector<ScoreCapture>& captures);

/// Subscript n is dimension n. Extents are at least 1; where one is 1, its stride is 0, whatever was given. Refuses
/// strides by which an offset in bytes may not be an int64. The extents were checked.
[[nodiscard]] std::vector<Tensor> in_four_dimensions(std::string_view argument,
                                                     const std::vector<ScoreCapture>& captures);

/// Does a program of the captures `a` run with these tensors?
[[nodiscard]] bool is_same_program(const std::vector<expr::Capture>& a, const std::vector<ScoreCapture>& captures);

}  // namespace attend::score
