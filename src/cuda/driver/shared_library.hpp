// A shared library that is opened at run time, so this library does not link to it.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace attend::cuda {

/// Opens the first of `candidates` that the loader accepts. The loader searches its own paths for a name without a
/// slash. The library is never closed, because its threads and exit handlers may still run when all objects of this
/// library are destroyed.
class SharedLibrary {
 public:
  /// @param what        name of the library in error messages, e.g. "libnvrtc (NVIDIA's run-time compiler)"
  /// @param candidates  file names and paths, in search order
  /// @param advice      advice to the user if no candidate is found
  /// @throws Error (kMissingHardware) if no candidate is found. The message has one line with `what`, the searched
  ///         places and `advice`.
  SharedLibrary(const std::string& what, const std::vector<std::string>& candidates, const std::string& advice);

  /// Returns the path of the opened file, as the loader reports it.
  [[nodiscard]] const std::string& path() const noexcept { return path_; }

  /// Returns the address of the symbol `name`, or null if there is none.
  [[nodiscard]] void* find(const char* name) const noexcept;

  /// Returns the address of the symbol `name`. @throws Error (kMissingHardware) if there is none. The message states
  /// that the library is too old.
  [[nodiscard]] void* require(const char* name) const;

 private:
  void* handle_ = nullptr;
  std::string path_;
};

/// A library that is part of the CUDA toolkit and of a pip package.
struct ToolkitLibrary {
  std::span<const char* const> names;  ///< file names in search order, e.g. "libnvrtc.so.13"
  const char* package;  ///< folder of the pip package in site-packages/nvidia, for CUDA versions before 13
  /// Name of an environment variable. If it is set, only the place that it names is searched: a file, a folder, or the
  /// root of a Python environment.
  const char* variable;
};

/// Returns the names and paths to try, in order. They depend on environment variables. The file names without a path
/// come first. For them, the loader searches its own paths. Then come $CUDA_HOME/lib64 and /usr/local/cuda/lib64. The
/// pip packages next to this library and in $VIRTUAL_ENV are last.
[[nodiscard]] std::vector<std::string> toolkit_candidates(const ToolkitLibrary& library);

/// Returns the folder of the file that contains this code, which is either the program or libattend.so. Returns an
/// empty path if the loader does not report it.
[[nodiscard]] std::filesystem::path own_folder();

}  // namespace attend::cuda
