// Score functions: the library's calls with one, for attend/_score.py.
#pragma once

#include <nanobind/nanobind.h>

namespace attend::python {

/// Exports ScoreFunction, forward_with_score and backward_with_score.
void add_score(nanobind::module_& m);

}  // namespace attend::python
