// What the package asks of GPUs beside the two calls: memory, streams, and their list.
#pragma once

#include <nanobind/nanobind.h>

namespace attend::python {

namespace nb = nanobind;

/// Adds cuda_empty, synchronize, order_streams, memory and gpus to the extension module.
void add_gpu_services(nb::module_& m);

}  // namespace attend::python
