// GPU functions for the Python package: they allocate memory, synchronise streams, and list the GPUs.
#pragma once

#include <nanobind/nanobind.h>

namespace attend::python {

namespace nb = nanobind;

/// Adds cuda_empty, synchronize, order_streams, memory, gpus, libraries, kernel_digest and scaled_softmax to the
/// extension module.
void add_gpu_services(nb::module_& m);

}  // namespace attend::python
