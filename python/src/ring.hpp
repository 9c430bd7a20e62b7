// Ring attention for the Python package: ring contexts, forward and backward, and the positions of each rank's rows.
#pragma once

#include <nanobind/nanobind.h>

namespace attend::python {

namespace nb = nanobind;

/// Adds RingContext, make_nccl_id, make_nccl_ring, make_callback_ring, ring_refuse, ring_agree, ring_fail,
/// ring_forward, ring_backward, explain_ring and shard_positions to the extension module.
void add_ring(nb::module_& m);

}  // namespace attend::python
