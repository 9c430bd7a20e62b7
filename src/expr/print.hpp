// Functions as C++: what the compiler of kernels gets instead of a user's text.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "expr/graph.hpp"

namespace attend::expr {

/// A struct of that name with one function,
///
///     template <class Float, class Captures>
///     static void evaluate(const ScorePoint<Float>& at, const Captures& captures, Float& r0, bool& r1, ...);
///
/// as C++ for a kernel that includes kernels/attention/score_math.cuh. Result n is nodes[n]'s value: a Float, an int or
/// a bool, as its type is. captures.load<n, m>(i, ...) is an element of capture n, of a type that converts to that of
/// the capture; m: the node of the graph that it is. captures.extent<n, d>() is an extent, at least 1, within which
/// subscripts are. They are not looked at where the shapes that the graph knows make it certain: other shapes want a
/// text of their own.
///
/// Nothing of a user's text is in it: numbers, and names of operations, variables and nodes. So functions that differ
/// in the names of their captures alone are the same code.
[[nodiscard]] std::string print_struct(const Graph& graph, std::string_view name, std::span<const Id> nodes);

/// The member of ScorePoint (kernels/attention/score_point.cuh) that holds a variable.
[[nodiscard]] const char* member_of(Variable variable);

}  // namespace attend::expr
