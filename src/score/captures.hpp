// Tensors that a custom function reads: checks them and converts them to the library's forms.
#pragma once

#include <string_view>
#include <vector>

#include "attend/score_function.hpp"
#include "expr/graph.hpp"

namespace attend::score {

/// Checks the properties that the parser does not see; the parser checks names, extents and kinds of elements.
/// argument: name of the function in error messages.
void check_captures(std::string_view argument, const std::vector<ScoreCapture>& captures);

/// Returns the captures in the form for the parser, which checks them.
[[nodiscard]] std::vector<expr::Capture> names_and_shapes(const std::vector<ScoreCapture>& captures);

/// Returns the captures as tensors: subscript n is dimension n. Extents are at least 1, and must be checked before. If
/// an extent is 1, its stride becomes 0. Refuses strides for which a byte offset may exceed int64.
[[nodiscard]] std::vector<Tensor> in_four_dimensions(std::string_view argument,
                                                     const std::vector<ScoreCapture>& captures);

/// Returns whether a program with the captures `a` runs with these tensors.
[[nodiscard]] bool is_same_program(const std::vector<expr::Capture>& a, const std::vector<ScoreCapture>& captures);

}  // namespace attend::score
