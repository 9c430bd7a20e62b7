// A library that is opened at run time and does not appear in the link line.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace attend::cuda {

/// Opens the first of `candidates` that the loader accepts. The loader searches for names without a slash. The library
/// is never closed, because its threads and exit handlers may outlive all objects of this library.
class SharedLibrary {
 public:
  /// @param what        name for users ("libnvrtc (NVIDIA's run-time compiler)")
  /// @param candidates  file names and paths, in search order
  /// @param advice      what to do if no candidate is found
  /// @throws Error (kMissingHardware) with the name, the searched places and the advice, in one line.
  SharedLibrary(const std::string& what, const std::vector<std::string>& candidates, const std::string& advice);

  /// Returns the path of the opened file, as reported by the loader.
  [[nodiscard]] const std::string& path() const noexcept { return path_; }

  /// Returns the address of `name`, or null.
  [[nodiscard]] void* find(const char* name) const noexcept;

  /// Returns the address of `name`. @throws Error (kMissingHardware) stating that the library is too old.
  [[nodiscard]] void* require(const char* name) const;

 private:
  void* handle_ = nullptr;
  std::string path_;
};

/// A library of the CUDA toolkit, also available as a pip package.
struct ToolkitLibrary {
  std::span<const char* const> names;  ///< file names in search order, e.g. "libnvrtc.so.13"
  const char* package;                 ///< folder in site-packages/nvidia before CUDA 13
  /// Environment variable that names a file, a folder or the root of a Python environment to search instead.
  const char* variable;
};

/// Returns the search candidates in order, for the current environment: the loader's own search, $CUDA_HOME/lib64,
/// /usr/local/cuda/lib64, and the pip packages next to this library and in $VIRTUAL_ENV.
[[nodiscard]] std::vector<std::string> toolkit_candidates(const ToolkitLibrary& library);

/// Returns the folder of the file that contains this code: the program or libattend.so. Empty if the loader does not
/// report it.
[[nodiscard]] std::filesystem::path own_folder();

}  // namespace attend::cuda
