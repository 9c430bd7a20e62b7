// attend.attention and attend.attention_qkvpacked on tensors of torch: the direct route, with autograd and without.
#pragma once

#include <nanobind/nanobind.h>

namespace attend::python {

namespace nb = nanobind;

/// Adds learn_torch (torch_api.hpp), route_of (torch_route.hpp), OPTIONS (read_settings.hpp), the calls, and the two
/// passes of the functions of autograd, as python/attend/_core.pyi has them.
void add_torch_attention(nb::module_& m);

}  // namespace attend::python
