#include "core/score_options.hpp"

#include "core/problem_checks.hpp"

namespace attend::core {
namespace {

/// Checks the shape of an option tensor. Dimension d must have the size full[d]. If d < exact_from, the size may also
/// be 1. Returns the tensor expanded to the full shape.
Tensor broadcast(const char* name, const Tensor& t, const Shape& full, std::size_t exact_from) {
  Tensor expanded = t;
  for (std::size_t d = 0; d < 4; ++d) {
    const bool fits = t.shape[d] == full[d] || (d < exact_from && t.shape[d] == 1);
    if (!fits) {
      refuse("{}: shape {}, dimension {} must be {}{}", name, shape_text(t.shape), d, full[d],
             d < exact_from ? " or 1" : "");
    }
    if (t.shape[d] != full[d]) {
      expanded.shape[d] = full[d];
      expanded.stride[d] = 0;
    }
  }
  return expanded;
}

}  // namespace

Tensor resolved(const ScoreTensor& row, const Tensor& passed, const OptionShapes& shapes) {
  if (row.dtype) {
    check_tensor(row.name, passed, shapes.device);
    if (passed.dtype != *row.dtype) {
      refuse("{}: dtype {}, allowed {}", row.name, dtype_name(passed.dtype), dtype_name(*row.dtype));
    }
  } else {
    check_float_tensor(row.name, passed, shapes.device);
  }
  if (row.is_of_scores()) return broadcast(row.name, passed, shapes.scores, 3);
  return broadcast(row.name, passed, shapes.heads, 1);
}

}  // namespace attend::core
