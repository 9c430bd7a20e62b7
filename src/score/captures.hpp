// Checks the tensors that a custom function reads, and converts them to the types that the library uses.
#pragma once

#include <string_view>
#include <vector>

#include "attend/score_function.hpp"
#include "expr/graph.hpp"

namespace attend::score {

/// Checks the properties of captures that the parser does not check. The parser checks names, extents and element
/// categories (float, integer, bool). `argument` is the name of the function in error messages.
void check_captures(std::string_view argument, const std::vector<ScoreCapture>& captures);

/// Returns names, element categories and shapes of the captures. The parser checks them.
[[nodiscard]] std::vector<expr::Capture> names_and_shapes(const std::vector<ScoreCapture>& captures);

/// Returns the captures as tensors whose dimension n is subscript n. Extents must already be checked to be at least 1.
/// If an extent is 1, its stride becomes 0. Throws if a byte offset could exceed int64.
[[nodiscard]] std::vector<Tensor> in_four_dimensions(std::string_view argument,
                                                     const std::vector<ScoreCapture>& captures);

/// Returns whether a program that was made for the captures `a` is also valid for these tensors.
[[nodiscard]] bool is_same_program(const std::vector<expr::Capture>& a, const std::vector<ScoreCapture>& captures);

}  // namespace attend::score
