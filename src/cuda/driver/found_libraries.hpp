// The NVIDIA libraries found on this machine, for `attend info` and its Python counterpart.
#pragma once

#include <string>

namespace attend::cuda {

/// A library that is loaded on first use. Contains its path and version, or the reason why it is missing.
struct FoundLibrary {
  std::string path;
  std::string version;  ///< e.g. "13.2"
  std::string lack;     ///< reason in one line; empty if the library was found
};

/// Returns the driver. Loads it.
[[nodiscard]] FoundLibrary found_libcuda();

/// Returns the run-time compiler. Loads it.
[[nodiscard]] FoundLibrary found_nvrtc();

}  // namespace attend::cuda
