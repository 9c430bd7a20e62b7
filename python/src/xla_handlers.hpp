// The custom calls that attend.jax registers with XLA: forward and backward, on CPUs and on CUDA.
#pragma once

#include <nanobind/nanobind.h>

namespace attend::python {

/// Is this a thread on which a custom call of XLA runs? It must not ask for the GIL: the thread that waits for the
/// call may hold it, and the interpreter may be gone.
[[nodiscard]] bool is_thread_of_xla();

/// Adds `xla_handlers` and `workspace_bytes` to the module.
void add_xla_handlers(nanobind::module_& m);

}  // namespace attend::python
