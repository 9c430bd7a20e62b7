// Describes what to compile: one variant of one kernel for one architecture.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <variant>
#include <vector>

#include "cuda/driver/nvrtc.hpp"

namespace attend::cuda {

/// An enumerator by name, e.g. {MaskKind, kCausal}.
struct EnumConstant {
  std::string type;
  std::string value;
};

/// One constant of a Config, e.g. `static constexpr int kHeadDim = 128;`.
struct Constant {
  std::string name;
  std::variant<std::int64_t, bool, EnumConstant> value;
};

/// One variant. The generated program consists of a struct Config with the constants, and one entry function:
///   extern "C" __global__ void attend_NAME(ARGS args) { FUNCTION<Config>(args); }
struct KernelSpec {
  std::string name;      ///< name of the kernel, as in --compute: "naive"
  std::string source;    ///< file relative to kernels/: "ladder/02_naive.cuh"
  std::string function;  ///< a template <class Config> __device__ void in namespace attend
  /// Type of its parameter, a struct in namespace attend (attention/args.cuh).
  std::string args;
  /// Constants in order. They include the integer kThreads, the threads per block.
  std::vector<Constant> config;
  std::string arch;                       ///< e.g. "sm_90a"
  std::vector<std::string> options = {};  ///< additional NVRTC options
  unsigned dynamic_smem_bytes = 0;        ///< dynamic shared memory of a launch; does not affect the code
  /// Number of blocks that must fit on a multiprocessor at the same time. Limits the registers.
  int min_blocks = 1;
  bool toolkit_headers = false;  ///< includes <mma.h> or other headers of the CUDA toolkit
  /// Text that replaces attention/custom_score.cuh. If empty, that file is used.
  std::string custom_score = {};
};

/// A program ready for the compiler.
struct Program {
  std::string name;                  ///< name in messages: "naive.cu"
  std::string text;                  ///< generated source text
  std::vector<NamedSource> headers;  ///< all included headers
  std::string entry;                 ///< name of the kernel in the machine code
  std::vector<std::string> options;  ///< all options except include folders, which differ between machines
  bool toolkit_headers = false;
};

/// Returns the threads per block: kThreads of the spec. @throws Error (kInvalidArgument) if the spec has no kThreads.
[[nodiscard]] std::int64_t threads_of(const KernelSpec& spec);

/// Returns one line per constant, e.g. "static constexpr int kHeadDim = 128;".
[[nodiscard]] std::string config_text(const KernelSpec& spec);

/// Returns a constant's value, e.g. "128", "true" or "kCausal". Omits the type of an enumerator.
[[nodiscard]] std::string value_text(const Constant& constant);

/// Returns the name of a variant for errors and logs, e.g. "naive<kHeadDim=128, kMask=kCausal> sm_90a".
[[nodiscard]] std::string describe(const KernelSpec& spec);

/// Returns a string of everything that determines the machine code, except files and compiler. Two specs are the same
/// if and only if their identities are equal.
[[nodiscard]] std::string identity(const KernelSpec& spec);

/// Returns the program of `spec`.
/// @throws Error (kInvalidArgument) for an unknown architecture or an invalid identifier, and the errors of
///         collect_sources().
[[nodiscard]] Program make_program(const KernelSpec& spec, const std::filesystem::path& kernel_dir);

/// Returns the key of the machine code, 32 hexadecimal digits. It is the XXH3-128 hash of the generated text, the
/// headers, the options (with the architecture), and the versions of NVRTC and the library. It does not depend on paths
/// or times.
[[nodiscard]] std::string program_key(const Program& program, int nvrtc_major, int nvrtc_minor,
                                      const std::string& library_version);

}  // namespace attend::cuda
