// NVRTC, NVIDIA's run-time compiler, loaded at first use: CUDA C++ in, machine code and ptxas' log out.
//
// libnvrtc is looked for by the loader (libnvrtc.so.13, .12, .so), in $CUDA_HOME/lib64, in /usr/local/cuda/lib64, and
// in the folders of the pip packages beside this library and in $VIRTUAL_ENV. With ATTEND_NVRTC_PATH (a file, a folder,
// or the root of a Python environment) it is looked for there and nowhere else.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace attend::cuda {

/// A header that a program may include by `name`.
struct NamedSource {
  std::string name;
  std::string text;
};

/// What NVRTC made of a program.
struct CompileOutput {
  std::vector<std::byte> cubin;
  std::string log;  ///< the compiler's messages and those of ptxas
};

/// The loaded compiler. Thread-safe.
class Nvrtc {
 public:
  /// The one of this process. @throws Error (kMissingHardware) where there is none; a later call looks again.
  static const Nvrtc& instance();

  [[nodiscard]] int version_major() const noexcept { return major_; }
  [[nodiscard]] int version_minor() const noexcept { return minor_; }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }

  /// Compiles `source` (called `name` in messages) to a cubin.
  /// @param headers  all that it and they include with quotes
  /// @throws Error (kInternal) with NVRTC's name of the error and the whole log; (kMissingHardware) where this NVRTC
  ///         does not know the architecture or lacks its builtins library.
  [[nodiscard]] CompileOutput compile(const std::string& name, const std::string& source,
                                      std::span<const NamedSource> headers,
                                      const std::vector<std::string>& options) const;

  /// The folders that hold mma.h, cuda_fp16.h and what they include: beside this library, in $CUDA_HOME, in
  /// /usr/local/cuda. @throws Error (kMissingHardware) where there are none.
  [[nodiscard]] std::vector<std::string> toolkit_include_folders() const;

  /// The compute capabilities it compiles for, 10 * major + minor ("sm_90a" is 90), in ascending order.
  [[nodiscard]] std::vector<int> supported_archs() const;

 private:
  Nvrtc();
  void load_builtins() const;
  [[nodiscard]] bool knows_arch_of(const std::vector<std::string>& options) const;

  struct Functions;  // its entry points
  const Functions* functions_ = nullptr;
  std::string path_;
  int major_ = 0;
  int minor_ = 0;
};

/// The files and names that Nvrtc::instance() tries, in order, from the environment as it is now.
[[nodiscard]] std::vector<std::string> nvrtc_candidates();

}  // namespace attend::cuda
