// Ring attention for the Python package: contexts, forward and backward calls, and the positions of the rows on each
// rank.
#pragma once

#include <nanobind/nanobind.h>

namespace attend::python {

namespace nb = nanobind;

/// Adds RingContext, make_nccl_id, make_nccl_ring, make_callback_ring, ring_refuse, ring_agree, ring_fail,
/// ring_forward, ring_backward, explain_ring and shard_positions to the extension module.
void add_ring(nb::module_& m);

}  // namespace attend::python
