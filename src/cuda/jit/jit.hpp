// The run-time compiler of kernels. It returns the machine code for a KernelSpec from memory, from disk, or by
// compiling it.
//
//   const std::shared_ptr<const CompiledKernel> code = Jit::instance().compile(spec);
//   const std::shared_ptr<const Kernel> kernel = Jit::instance().load(spec, device);
//
// The constructor of instance() reads these environment variables:
//   ATTEND_CACHE_DIR     folder for compiled kernels
//   ATTEND_CACHE_LIMIT   size limit of that folder in bytes
//   ATTEND_KERNEL_DIR    folder with the kernel sources; by default, the library uses its embedded sources
//   ATTEND_LOG=compile   prints one line to stderr for each compiled or loaded kernel and stores its program
//   ATTEND_LINE_INFO=1   adds line numbers of the source to the machine code
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "cuda/driver/kernel.hpp"
#include "cuda/jit/cache_folder.hpp"
#include "cuda/jit/disk_cache.hpp"
#include "cuda/jit/kernel_spec.hpp"
#include "cuda/jit/once_map.hpp"
#include "cuda/jit/ptxas_log.hpp"

namespace attend::cuda {

/// The machine code of one kernel variant.
struct CompiledKernel {
  std::string key;    ///< 32 hexadecimal digits
  std::string entry;  ///< name of the kernel function in the cubin
  std::vector<std::byte> cubin;
  std::string log;  ///< the compiler's log
  Resources resources;
  double seconds = 0;  ///< processor time in seconds of the compilation, even if another process compiled the kernel
  /// Time in seconds until this process had the machine code, either from disk or by compilation.
  double ready_seconds = 0;
  bool from_disk = false;
};

/// Options of a Jit.
struct JitOptions {
  std::filesystem::path cache_root;  ///< folder for compiled kernels. If empty, they are stored only in memory
  /// Size limit of the folder in bytes. If 0, kernels are stored only in memory.
  std::uint64_t cache_limit = kDefaultCacheLimit;
  std::filesystem::path kernel_dir;  ///< folder with the kernel sources. If empty, the embedded sources are used
  bool log_compiles = false;
  /// Whether to add line numbers of the source to the machine code, for profilers and sanitizers. Files on disk become
  /// four times as large. The instructions are the same.
  bool line_info = false;
  /// Receives warnings and log lines, without a line break at the end. If it is not set, they are written to stderr.
  std::function<void(const std::string&)> print;
};

/// Returns the options that the environment variables select. @throws Error if a variable has an invalid value.
[[nodiscard]] JitOptions jit_options_from_environment();

/// A run-time compiler that caches its results. Thread-safe. A thread waits for another thread only if both need the
/// same kernel variant.
class Jit {
 public:
  /// Returns the compiler that the library uses. It is never destroyed.
  static Jit& instance();

  explicit Jit(JitOptions options);
  Jit(const Jit&) = delete;
  Jit& operator=(const Jit&) = delete;

  /// Returns the machine code for `spec`. Needs no GPU.
  /// @throws Error if the compilation fails. The message contains the variant, the failed call and the full log.
  ///         Failures are not cached, so the next call compiles again.
  [[nodiscard]] std::shared_ptr<const CompiledKernel> compile(const KernelSpec& spec);

  /// Returns the kernel for `spec`, loaded on GPU `device`. @throws Error like compile().
  [[nodiscard]] std::shared_ptr<const Kernel> load(const KernelSpec& spec, int device);

 private:
  std::shared_ptr<const CompiledKernel> make(const KernelSpec& spec);
  void warn(const std::string& kind, const std::string& message);

  JitOptions options_;
  std::mutex warned_mutex_;
  std::set<std::string> warned_;  // kinds of warnings that have already been printed
  DiskCache disk_;
  OnceMap<CompiledKernel> compiled_;
  OnceMap<Kernel> loaded_;
};

}  // namespace attend::cuda
