// Score functions and block masks for attend/_score.py, and calls of the library with them.
#pragma once

#include <nanobind/nanobind.h>

namespace attend::python {

/// Adds ScoreFunction, BlockMask, make_block_mask, forward_with_own, backward_with_own and prepare_backward_with_own to
/// the extension module.
void add_score(nanobind::module_& m);

}  // namespace attend::python
