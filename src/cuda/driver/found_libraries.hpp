// What there is of NVIDIA's libraries on this machine, for `attend info` and its Python twin.
#pragma once

#include <string>

namespace attend::cuda {

/// A library that is loaded at first use: where it lies and its version, or why there is none.
struct FoundLibrary {
  std::string path;
  std::string version;  ///< "13.2"
  std::string lack;     ///< one line; empty where the library is there
};

/// The driver. Loads it.
[[nodiscard]] FoundLibrary found_libcuda();

/// The run-time compiler. Loads it.
[[nodiscard]] FoundLibrary found_nvrtc();

}  // namespace attend::cuda
