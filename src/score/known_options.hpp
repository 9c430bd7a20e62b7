// Functions that are options by another name: kernels have code of their own for those.
#pragma once

#include "core/custom_score.hpp"
#include "expr/graph.hpp"

namespace attend::score {

/// c of c tanh(score / c) or c tanh(score (1 / c)), from the caps that all kernels take; 0: it is something else.
[[nodiscard]] double softcap_of(const expr::Graph& graph, expr::Id id);

/// Is it score - slope[h] |q - k| of the one capture of the graph, or without the bars, in whatever order?
[[nodiscard]] core::AlibiForm alibi_of(const expr::Graph& graph, expr::Id id);

}  // namespace attend::score
