// State of a MaskFunction: the graph and the program that were made from its text, and the tensors that it reads.
#pragma once

#include <string>
#include <vector>

#include "attend/block_mask.hpp"
#include "expr/graph.hpp"
#include "expr/row_program.hpp"

namespace attend {

struct MaskFunction::State {
  std::string text;
  std::vector<ScoreCapture> captures;
  std::vector<Tensor> captured;  ///< the captures as tensors of four dimensions
  expr::Graph graph;
  expr::Id result = expr::kNone;  ///< the node with the function's value, a bool
  expr::RowProgram program;       ///< program that computes `result`
};

}  // namespace attend
