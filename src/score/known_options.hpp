// Recognises functions that are equivalent to an option. Kernels have special code for options.
#pragma once

#include "core/custom_score.hpp"
#include "expr/graph.hpp"

namespace attend::score {

/// Returns c if the function is c tanh(score / c) or c tanh(score (1 / c)) and all kernels support the cap c. Otherwise
/// returns 0.
[[nodiscard]] double softcap_of(const expr::Graph& graph, expr::Id id);

/// Returns the form of ALiBi if the function is score - slope[h] |q - k| or score - slope[h] (q - k), where slope is
/// the only capture of the graph. Operands may be in any order.
[[nodiscard]] core::AlibiForm alibi_of(const expr::Graph& graph, expr::Id id);

}  // namespace attend::score
