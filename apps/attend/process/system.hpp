// Properties of the machine.
#pragma once

#include <cstdint>
#include <string>

namespace attend::cli {

/// Returns the name of the processor, or "unknown CPU" if the system does not report one.
[[nodiscard]] std::string cpu_model();

/// Returns the size of the physical memory in bytes.
[[nodiscard]] std::int64_t memory_bytes();

/// Returns the number of cores that this process may use.
[[nodiscard]] int usable_cores();

}  // namespace attend::cli
