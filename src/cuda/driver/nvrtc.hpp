// NVRTC, NVIDIA's run-time compiler, loaded on first use. It compiles CUDA C++ to machine code and returns the log of
// ptxas.
//
// libnvrtc is searched in this order: by the loader (libnvrtc.so.13, .12, .so), in $CUDA_HOME/lib64, in
// /usr/local/cuda/lib64, and in the folders of the pip packages next to this library and in $VIRTUAL_ENV. If
// ATTEND_NVRTC_PATH is set (a file, a folder, or the root of a Python environment), only that place is searched.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace attend::cuda {

/// A header that a program can include by `name`.
struct NamedSource {
  std::string name;
  std::string text;
};

/// Result of a compilation.
struct CompileOutput {
  std::vector<std::byte> cubin;
  std::string log;  ///< messages of the compiler and of ptxas
};

/// The loaded compiler. Thread-safe.
class Nvrtc {
 public:
  /// Returns the compiler of this process. @throws Error (kMissingHardware) if it is not found. A later call searches
  /// again.
  static const Nvrtc& instance();

  [[nodiscard]] int version_major() const noexcept { return major_; }
  [[nodiscard]] int version_minor() const noexcept { return minor_; }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }

  /// Compiles `source` to a cubin. Messages call the source `name`.
  /// @param headers  all headers that are included with quotes, directly or indirectly
  /// @throws Error (kInternal) with NVRTC's error name and the full log; (kMissingHardware) if this NVRTC does not
  ///         support the architecture or its builtins library is missing.
  [[nodiscard]] CompileOutput compile(const std::string& name, const std::string& source,
                                      std::span<const NamedSource> headers,
                                      const std::vector<std::string>& options) const;

  /// Returns the folders that hold mma.h, cuda_fp16.h and the headers that these include. Searches next to this
  /// library, in $CUDA_HOME and in /usr/local/cuda. @throws Error (kMissingHardware) if the headers are not found.
  [[nodiscard]] std::vector<std::string> toolkit_include_folders() const;

  /// Returns the supported compute capabilities as 10 * major + minor ("sm_90a" is 90), in ascending order.
  [[nodiscard]] std::vector<int> supported_archs() const;

 private:
  Nvrtc();
  void load_builtins() const;
  [[nodiscard]] bool knows_arch_of(const std::vector<std::string>& options) const;

  struct Functions;  // function pointers
  const Functions* functions_ = nullptr;
  std::string path_;
  int major_ = 0;
  int minor_ = 0;
};

/// Returns the files and names that Nvrtc::instance() tries, in order, for the current environment.
[[nodiscard]] std::vector<std::string> nvrtc_candidates();

}  // namespace attend::cuda
