// NVRTC, NVIDIA's run-time compiler. It compiles CUDA C++ to machine code. The library is loaded on first use.
//
// libnvrtc is searched for in several places. First the loader searches for libnvrtc.so.13, .12 and .so. The next
// places are $CUDA_HOME/lib64 and /usr/local/cuda/lib64. The last places are the pip packages next to this library, and
// the pip packages in $VIRTUAL_ENV. If ATTEND_NVRTC_PATH is set, only that place is searched. It may be a file, a
// folder, or the root of a Python environment.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace attend::cuda {

/// The text of a header file. Programs include it as `name`.
struct NamedSource {
  std::string name;
  std::string text;
};

/// Result of a compilation.
struct CompileOutput {
  std::vector<std::byte> cubin;
  std::string log;  ///< messages of the compiler, including those of ptxas
};

/// The loaded compiler. Thread-safe.
class Nvrtc {
 public:
  /// Returns the compiler of this process. @throws Error (kMissingHardware) if libnvrtc is not found. The next call
  /// searches again.
  static const Nvrtc& instance();

  [[nodiscard]] int version_major() const noexcept { return major_; }
  [[nodiscard]] int version_minor() const noexcept { return minor_; }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }

  /// Compiles `source` to a cubin. Compiler messages use `name` as the file name.
  /// @param headers  all headers that `source` includes with quotes, directly or indirectly
  /// @throws Error (kInternal) if the compilation fails; the message contains NVRTC's error name and the full log.
  ///         Error (kMissingHardware) if this NVRTC does not support the architecture, or if its builtins library is
  ///         missing.
  [[nodiscard]] CompileOutput compile(const std::string& name, const std::string& source,
                                      std::span<const NamedSource> headers,
                                      const std::vector<std::string>& options) const;

  /// Returns the folders with mma.h, cuda_fp16.h and the headers that these files include. Searches the toolkit or pip
  /// packages of NVRTC, then $CUDA_HOME, then /usr/local/cuda.
  /// @throws Error (kMissingHardware) if the headers are not found.
  [[nodiscard]] std::vector<std::string> toolkit_include_folders() const;

  /// Returns the compute capabilities for which this NVRTC can compile, as 10 * major + minor, in ascending order. For
  /// example, "sm_90a" is 90.
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

/// Returns the file names and paths that Nvrtc::instance() would try now, in order. They depend on environment
/// variables.
[[nodiscard]] std::vector<std::string> nvrtc_candidates();

}  // namespace attend::cuda
