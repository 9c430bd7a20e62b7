// Score functions and block masks, and calls with them, for attend/_score.py.
#pragma once

#include <nanobind/nanobind.h>

namespace attend::python {

/// Exports ScoreFunction, BlockMask, make_block_mask, forward_with_own, backward_with_own and
/// prepare_backward_with_own.
void add_score(nanobind::module_& m);

}  // namespace attend::python
