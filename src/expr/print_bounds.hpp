// Bounds of functions as C++: bounds_of() for a compiler of kernels.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "expr/graph.hpp"

namespace attend::expr {

/// A struct of that name with one function,
///
///     template <class Captures>
///     static void evaluate(const attend::BoundsPoint& at, const Captures& captures, mask_bounds::Bools& result);
///
/// as C++ for a kernel that includes kernels/masks/mask_bounds.cuh: bounds of `root`, a bool. captures.ints<n>(i, ...)
/// are bounds of elements of capture n over bounds of subscripts, and so are floats and bools, by the capture's type.
/// As in print_struct(), nothing of a user's text is in it. The root asks for no inexact operation and no score.
[[nodiscard]] std::string print_bounds_struct(const Graph& graph, std::string_view name, Id root);

/// The first of the operations that `root` asks for whose results differ between machines in their last bits (exp, sin,
/// pow, ...): all but arithmetic, sqrt and rounding. None: its value is the same wherever products and sums are rounded
/// one after the other.
[[nodiscard]] std::optional<Op> inexact_operation(const Graph& graph, Id root);

}  // namespace attend::expr
