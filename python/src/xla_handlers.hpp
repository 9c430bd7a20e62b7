// The custom calls that attend.jax registers with XLA. The calls run forward and backward on CPUs and on CUDA GPUs.
#pragma once

#include <nanobind/nanobind.h>

namespace attend::python {

/// Returns whether this thread currently runs an XLA custom call. If so, it must not acquire the GIL, because the
/// thread that waits for the call may hold it, or because the Python interpreter may no longer exist.
[[nodiscard]] bool is_thread_of_xla();

/// Adds `xla_handlers` and `workspace_bytes` to the extension module.
void add_xla_handlers(nanobind::module_& m);

}  // namespace attend::python
