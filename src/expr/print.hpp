// Prints functions as C++. The kernel compiler receives this code instead of a user's text.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "expr/graph.hpp"

namespace attend::expr {

/// Returns the source of a struct named `name` with one function
///
///     template <class Float, class Captures>
///     static void evaluate(const ScorePoint<Float>& at, const Captures& captures, Float& r0, bool& r1, ...);
///
/// for a kernel that includes kernels/attention/score_math.cuh. Result n is the value of nodes[n]. It is a Float, an
/// int or a bool, depending on its type. captures.load<n, m>(i, ...) returns an element of capture n. Its type must be
/// convertible to the capture's type. m is the graph node of the load. captures.extent<n, d>() returns the extent of
/// dimension d, which is at least 1. Subscripts are clamped to these extents. The text contains no clamping if the
/// shapes in the graph prove that it is unnecessary. The text is therefore valid only for these shapes.
///
/// The source contains no user text, only numbers and names of operations, variables and nodes. Functions that differ
/// only in the names of their captures therefore have the same source.
[[nodiscard]] std::string print_struct(const Graph& graph, std::string_view name, std::span<const Id> nodes);

/// Returns the name of the member of ScorePoint (kernels/attention/score_point.cuh) that holds a variable.
[[nodiscard]] const char* member_of(Variable variable);

}  // namespace attend::expr
