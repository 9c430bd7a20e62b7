// From a KernelSpec to machine code: memory first, then the disk, then the compiler.
//
//   const std::shared_ptr<const CompiledKernel> code = Jit::instance().compile(spec);
//   const std::shared_ptr<const Kernel> kernel = Jit::instance().load(spec, device);
//
// Environment, read once by instance(): ATTEND_CACHE_DIR (where entries are kept), ATTEND_CACHE_LIMIT (how many bytes
// of them), ATTEND_KERNEL_DIR (a folder to read kernels/ from instead of the library), ATTEND_LOG=compile (one line on
// stderr for each kernel made or found, and the generated program beside its machine code), ATTEND_LINE_INFO=1 (the
// lines of the sources in the machine code).
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
  std::string entry;  ///< the kernel's name in the cubin
  std::vector<std::byte> cubin;
  std::string log;  ///< the compiler's
  Resources resources;
  double seconds = 0;        ///< of a processor that the compile took, whoever did it
  double ready_seconds = 0;  ///< until this process had the code: looking it up on disk, or compiling it
  bool from_disk = false;
};

/// Where a Jit keeps and finds things.
struct JitOptions {
  std::filesystem::path cache_root;                ///< empty: memory only
  std::uint64_t cache_limit = kDefaultCacheLimit;  ///< bytes on disk; 0: memory only
  std::filesystem::path kernel_dir;                ///< empty: the embedded sources
  bool log_compiles = false;
  bool line_info = false;  ///< for profilers and sanitizers; entries on disk are four times as large, the code the same
  std::function<void(const std::string&)> print;  ///< warnings and the log, a line without its end each; unset: stderr
};

/// The options that the environment asks for. @throws Error for a value that is not allowed.
[[nodiscard]] JitOptions jit_options_from_environment();

/// A run-time compiler with its caches. Thread-safe: a thread waits only for a compile of the very variant it wants.
class Jit {
 public:
  /// The one that the library uses. Never destroyed.
  static Jit& instance();

  explicit Jit(JitOptions options);
  Jit(const Jit&) = delete;
  Jit& operator=(const Jit&) = delete;

  /// The machine code of `spec`. Needs no GPU.
  /// @throws Error with the variant, the call and the whole log. A failure is not kept: the next call compiles again.
  [[nodiscard]] std::shared_ptr<const CompiledKernel> compile(const KernelSpec& spec);

  /// The same, loaded on a device.
  [[nodiscard]] std::shared_ptr<const Kernel> load(const KernelSpec& spec, int device);

 private:
  std::shared_ptr<const CompiledKernel> make(const KernelSpec& spec);
  void warn(const std::string& kind, const std::string& message);

  JitOptions options_;
  std::mutex warned_mutex_;
  std::set<std::string> warned_;  // kinds
  DiskCache disk_;
  OnceMap<CompiledKernel> compiled_;
  OnceMap<Kernel> loaded_;
};

}  // namespace attend::cuda
