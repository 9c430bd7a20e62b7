// Prints the bounds of functions as C++. The printed code does on a GPU what bounds_of() does on the host.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "expr/graph.hpp"

namespace attend::expr {

/// Returns the source of a struct named `name` with one function
///
///     template <class Captures>
///     static void evaluate(const attend::BoundsPoint& at, const Captures& captures, mask_bounds::Bools& result);
///
/// for a kernel that includes kernels/masks/mask_bounds.cuh. The function computes bounds of `root`, which must be a
/// bool. The arguments of captures.ints<n>(i, ...) are bounds of the subscripts. The result is bounds of the elements
/// of capture n in that range. captures.floats and captures.bools do the same for captures of other types. As in
/// print_struct(), the source contains no user text. `root` must not depend on inexact operations or on the score.
[[nodiscard]] std::string print_bounds_struct(const Graph& graph, std::string_view name, Id root);

/// Returns the first inexact operation on which `root` depends. An operation is inexact if the last bits of its result
/// differ between machines, like exp, sin or pow. Arithmetic, sqrt and rounding are exact. If `root` depends on no
/// inexact operation, its value is the same on every machine that rounds products and sums separately.
[[nodiscard]] std::optional<Op> inexact_operation(const Graph& graph, Id root);

}  // namespace attend::expr
