// The custom calls that attend.jax registers with XLA: forward and backward, on CPUs and on CUDA.
#pragma once

#include <nanobind/nanobind.h>

namespace attend::python {

/// Returns whether an XLA custom call runs on this thread. Such a thread must not acquire the GIL. The thread that
/// waits for the call may hold the GIL, and the interpreter may no longer exist.
[[nodiscard]] bool is_thread_of_xla();

/// Adds `xla_handlers` and `workspace_bytes` to the module.
void add_xla_handlers(nanobind::module_& m);

}  // namespace attend::python
