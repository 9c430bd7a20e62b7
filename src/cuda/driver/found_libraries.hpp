// Finds the NVIDIA libraries on this machine. `attend info` and the Python package report them.
#pragma once

#include <string>

namespace attend::cuda {

/// A library that is loaded on first use. Contains either its path and version, or the reason why it is missing.
struct FoundLibrary {
  std::string path;
  std::string version;  ///< e.g. "13.2"
  std::string lack;     ///< the reason why the library is missing, in one line; empty if it was found
};

/// Loads NVIDIA's driver library and returns its path and version.
[[nodiscard]] FoundLibrary found_libcuda();

/// Loads NVIDIA's run-time compiler and returns its path and version.
[[nodiscard]] FoundLibrary found_nvrtc();

}  // namespace attend::cuda
