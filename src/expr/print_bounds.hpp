// Prints the bounds of functions as C++: bounds_of() for the kernel compiler.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "expr/graph.hpp"

namespace attend::expr {

/// Returns the source of a struct named `name` with one function,
///
///     template <class Captures>
///     static void evaluate(const attend::BoundsPoint& at, const Captures& captures, mask_bounds::Bools& result);
///
/// for a kernel that includes kernels/masks/mask_bounds.cuh. The function computes bounds of `root`, a bool.
/// captures.ints<n>(i, ...), and likewise floats and bools by the capture's type, are bounds of elements of capture n
/// over bounds of subscripts. As in print_struct(), the source contains no user text. `root` must not depend on inexact
/// operations or on the score.
[[nodiscard]] std::string print_bounds_struct(const Graph& graph, std::string_view name, Id root);

/// Returns the first operation that `root` depends on and whose last bits differ between machines (exp, sin, pow, ...).
/// Arithmetic, sqrt and rounding are exact. If there is none, the value is the same on every machine that rounds
/// products and sums separately.
[[nodiscard]] std::optional<Op> inexact_operation(const Graph& graph, Id root);

}  // namespace attend::expr
