// Provides the machine code of a KernelSpec: from memory, from disk, or by compilation.
//
//   const std::shared_ptr<const CompiledKernel> code = Jit::instance().compile(spec);
//   const std::shared_ptr<const Kernel> kernel = Jit::instance().load(spec, device);
//
// instance() reads these environment variables once:
//   ATTEND_CACHE_DIR     folder for compiled kernels
//   ATTEND_CACHE_LIMIT   largest size of that folder in bytes
//   ATTEND_KERNEL_DIR    folder with the sources of kernels/, used instead of the embedded sources
//   ATTEND_LOG=compile   prints one line on stderr per compiled or loaded kernel, and stores the generated program
//   ATTEND_LINE_INFO=1   adds source line information to the machine code
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

/// Machine code of one variant.
struct CompiledKernel {
  std::string key;    ///< 32 hexadecimal digits
  std::string entry;  ///< name of the kernel in the cubin
  std::vector<std::byte> cubin;
  std::string log;  ///< the compiler's log
  Resources resources;
  double seconds = 0;        ///< processor time of the compilation, even if another process did it
  double ready_seconds = 0;  ///< time until this process had the code, from disk or by compilation
  bool from_disk = false;
};

/// Options of a Jit.
struct JitOptions {
  std::filesystem::path cache_root;                ///< empty: memory only
  std::uint64_t cache_limit = kDefaultCacheLimit;  ///< size limit on disk in bytes; 0: memory only
  std::filesystem::path kernel_dir;                ///< empty: use the embedded sources
  bool log_compiles = false;
  /// Adds line information for profilers and sanitizers. Entries on disk become four times as large. The code does not
  /// change.
  bool line_info = false;
  /// Receives warnings and log lines, without the line end. If unset, they are written to stderr.
  std::function<void(const std::string&)> print;
};

/// Returns the options that the environment selects. @throws Error for an invalid value.
[[nodiscard]] JitOptions jit_options_from_environment();

/// A run-time compiler with caches. Thread-safe. A thread waits only for a compilation of the variant that it needs.
class Jit {
 public:
  /// Returns the instance that the library uses. It is never destroyed.
  static Jit& instance();

  explicit Jit(JitOptions options);
  Jit(const Jit&) = delete;
  Jit& operator=(const Jit&) = delete;

  /// Returns the machine code of `spec`. Needs no GPU.
  /// @throws Error with the variant, the call and the full log. Failures are not cached, so the next call compiles
  ///         again.
  [[nodiscard]] std::shared_ptr<const CompiledKernel> compile(const KernelSpec& spec);

  /// Returns the kernel of `spec`, loaded on a device. @throws Error like compile().
  [[nodiscard]] std::shared_ptr<const Kernel> load(const KernelSpec& spec, int device);

 private:
  std::shared_ptr<const CompiledKernel> make(const KernelSpec& spec);
  void warn(const std::string& kind, const std::string& message);

  JitOptions options_;
  std::mutex warned_mutex_;
  std::set<std::string> warned_;  // kinds of warnings already printed
  DiskCache disk_;
  OnceMap<CompiledKernel> compiled_;
  OnceMap<Kernel> loaded_;
};

}  // namespace attend::cuda
