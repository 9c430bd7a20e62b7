// The description of a kernel variant: everything that the compiler needs to know about one kernel for one
// architecture.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <variant>
#include <vector>

#include "cuda/driver/nvrtc.hpp"

namespace attend::cuda {

/// The names of an enumeration and of one of its enumerators, e.g. {MaskKind, kCausal}.
struct EnumConstant {
  std::string type;
  std::string value;
};

/// One constant of a Config, e.g. `static constexpr int kHeadDim = 128;`. A Config is the struct of compile-time
/// constants with which a kernel template is instantiated.
struct Constant {
  std::string name;
  std::variant<std::int64_t, bool, EnumConstant> value;
};

/// One kernel variant. A program is generated from it. The program consists of a struct Config with the constants and
/// of one entry function:
///   extern "C" __global__ void attend_NAME(ARGS args) { FUNCTION<Config>(args); }
struct KernelSpec {
  std::string name;      ///< name of the kernel, e.g. "naive"
  std::string source;    ///< source file relative to kernels/, e.g. "ladder/02_naive.cuh"
  std::string function;  ///< name of a `template <class Config> __device__ void` function in namespace attend
  /// Type of the function's parameter, a struct in namespace attend (common/args.cuh).
  std::string args;
  /// Constants of the Config, in order. One of them must be the integer kThreads, the number of threads per block.
  std::vector<Constant> config;
  std::string arch;                       ///< name of the architecture, e.g. "sm_90a"
  std::vector<std::string> options = {};  ///< additional NVRTC options
  unsigned dynamic_smem_bytes = 0;  ///< bytes of dynamic shared memory of a launch; does not affect the machine code
  /// Number of blocks that must fit on a multiprocessor at the same time. The compiler limits the number of registers
  /// accordingly.
  int min_blocks = 1;
  bool toolkit_headers = false;  ///< whether the source includes <mma.h> or other headers of the CUDA toolkit
  /// Text that replaces the file attention/custom_score.cuh. If it is empty, the file is used.
  std::string custom_score = {};
};

/// A generated program with everything that the compiler needs.
struct Program {
  std::string name;                  ///< file name in compiler messages, e.g. "naive.cu"
  std::string text;                  ///< generated source text
  std::vector<NamedSource> headers;  ///< all headers that the program includes, directly or indirectly
  std::string entry;                 ///< name of the kernel function in the machine code
  /// All compiler options except include folders, which differ from machine to machine.
  std::vector<std::string> options;
  bool toolkit_headers = false;
};

/// Returns the number of threads per block, which is the constant kThreads. @throws Error (kInvalidArgument) if the
/// spec has no such constant.
[[nodiscard]] std::int64_t threads_of(const KernelSpec& spec);

/// Returns the text of the Config, with one line for each constant, e.g. "static constexpr int kHeadDim = 128;".
[[nodiscard]] std::string config_text(const KernelSpec& spec);

/// Returns the text of a constant's value, e.g. "128", "true" or "kCausal". For an enumerator, the text does not
/// contain the type.
[[nodiscard]] std::string value_text(const Constant& constant);

/// Returns the name of a variant for error messages and logs, e.g. "naive<kHeadDim=128, kMask=kCausal> sm_90a".
[[nodiscard]] std::string describe(const KernelSpec& spec);

/// Returns a string with everything in the spec that affects the machine code or the launch. Two specs describe the
/// same kernel if and only if their strings are equal.
[[nodiscard]] std::string identity(const KernelSpec& spec);

/// Generates the program for `spec`.
/// @param kernel_dir folder with the kernel sources. If empty, the embedded sources are used
/// @throws Error (kInvalidArgument) if the architecture is unknown or a name is not a valid identifier; also the errors
///         of collect_sources().
[[nodiscard]] Program make_program(const KernelSpec& spec, const std::filesystem::path& kernel_dir);

/// Returns the cache key of the machine code, which has 32 hexadecimal digits. The key is the XXH3-128 hash of the
/// generated text, the headers, the compiler options (which include the architecture), and the versions of NVRTC and of
/// this library. It does not depend on paths or times.
[[nodiscard]] std::string program_key(const Program& program, int nvrtc_major, int nvrtc_minor,
                                      const std::string& library_version);

}  // namespace attend::cuda
