// A library that is looked for at run time, so that nothing of it is in the link line.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace attend::cuda {

/// Opens the first of `candidates` that the loader takes. A name without a slash goes through the loader's own search.
/// Never closed: its threads and its handlers at exit may outlive every object of ours.
class SharedLibrary {
 public:
  /// @param what        the library as a person calls it ("libnvrtc (NVIDIA's run-time compiler)")
  /// @param candidates  file names and paths, in the order in which they are tried
  /// @param advice      what to do where there is none
  /// @throws Error (kMissingHardware), one line: what was looked for, where, and the advice.
  SharedLibrary(const std::string& what, const std::vector<std::string>& candidates, const std::string& advice);

  /// The file that was opened, as the loader names it.
  [[nodiscard]] const std::string& path() const noexcept { return path_; }

  /// The address of `name`, or null.
  [[nodiscard]] void* find(const char* name) const noexcept;

  /// The address of `name`. @throws Error (kMissingHardware) saying that the library is too old.
  [[nodiscard]] void* require(const char* name) const;

 private:
  void* handle_ = nullptr;
  std::string path_;
};

/// A library of the CUDA toolkit, which also comes as a pip package.
struct ToolkitLibrary {
  std::span<const char* const> names;  ///< "libnvrtc.so.13", in the order in which they are tried
  const char* package;                 ///< its folder below site-packages/nvidia before CUDA 13
  const char* variable;                ///< names a file, a folder or the root of a Python environment instead
};

/// Where to look for it, in order, by the environment as it is now: the loader's own search, $CUDA_HOME/lib64,
/// /usr/local/cuda/lib64, the pip packages beside this library and in $VIRTUAL_ENV.
[[nodiscard]] std::vector<std::string> toolkit_candidates(const ToolkitLibrary& library);

/// The folder of the file that holds this code: the program, or libattend.so. Empty where the loader does not say.
[[nodiscard]] std::filesystem::path own_folder();

}  // namespace attend::cuda
