// What is known about the machine.
#pragma once

#include <cstdint>
#include <string>

namespace attend::cli {

/// The processor's name as it gives it, "unknown CPU" where the system does not say.
[[nodiscard]] std::string cpu_model();

/// Bytes of physical memory.
[[nodiscard]] std::int64_t memory_bytes();

/// Cores that this process may run on.
[[nodiscard]] int usable_cores();

}  // namespace attend::cli
