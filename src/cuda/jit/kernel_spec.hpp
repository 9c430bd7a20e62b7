// What to compile: one variant of one kernel, for one architecture.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <variant>
#include <vector>

#include "cuda/driver/nvrtc.hpp"

namespace attend::cuda {

/// The value of an enumeration by name: MaskKind, kCausal.
struct EnumConstant {
  std::string type;
  std::string value;
};

/// One constant of a Config: `static constexpr int kHeadDim = 128;`
struct Constant {
  std::string name;
  std::variant<std::int64_t, bool, EnumConstant> value;
};

/// One variant. The program is generated from it: a struct Config with the constants, and one entry
///   extern "C" __global__ void attend_NAME(ARGS args) { FUNCTION<Config>(args); }
struct KernelSpec {
  std::string name;                       ///< of the kernel, as --compute takes it: "naive"
  std::string source;                     ///< below kernels/: "ladder/02_naive.cuh"
  std::string function;                   ///< template <class Config> __device__ void in namespace attend
  std::string args;                       ///< its parameter, a plain struct of namespace attend (attention/args.cuh)
  std::vector<Constant> config;           ///< in order; has kThreads, the threads of a block, an integer
  std::string arch;                       ///< "sm_90a"
  std::vector<std::string> options = {};  ///< to NVRTC, beyond those that every kernel gets
  unsigned dynamic_smem_bytes = 0;        ///< what a launch asks for; no part of the code
  int min_blocks = 1;                     ///< that a multiprocessor has to hold at once: bounds the registers
  bool toolkit_headers = false;           ///< includes <mma.h> or other headers of the CUDA toolkit
  std::string custom_score = {};          ///< text in the place of attention/custom_score.cuh; empty: that file
};

/// A program ready for the compiler.
struct Program {
  std::string name;                  ///< what messages call it: "naive.cu"
  std::string text;                  ///< the generated part
  std::vector<NamedSource> headers;  ///< everything that it includes
  std::string entry;                 ///< the kernel's name in the machine code
  std::vector<std::string> options;  ///< all but the include folders, whose places differ from machine to machine
  bool toolkit_headers = false;
};

/// Threads of a block: the spec's kThreads. @throws Error (kInvalidArgument) where it has none.
[[nodiscard]] std::int64_t threads_of(const KernelSpec& spec);

/// "static constexpr int kHeadDim = 128;", a line for each constant.
[[nodiscard]] std::string config_text(const KernelSpec& spec);

/// "128", "true", "kCausal": a constant's value, without the scope that names the type of an enumerator.
[[nodiscard]] std::string value_text(const Constant& constant);

/// "naive<kHeadDim=128, kMask=kCausal> sm_90a": what errors and logs call a variant.
[[nodiscard]] std::string describe(const KernelSpec& spec);

/// All that decides the machine code except files and compiler, as one string: two specs are the same exactly where
/// their identities are.
[[nodiscard]] std::string identity(const KernelSpec& spec);

/// The program of `spec`.
/// @throws Error (kInvalidArgument) for an unknown architecture or a name that is not an identifier; and as
///         collect_sources() does.
[[nodiscard]] Program make_program(const KernelSpec& spec, const std::filesystem::path& kernel_dir);

/// What decides the machine code, in 32 hexadecimal digits: XXH3-128 over the generated text, the headers, the options
/// (with the architecture), NVRTC's version and the library's. No paths of this machine, no times.
[[nodiscard]] std::string program_key(const Program& program, int nvrtc_major, int nvrtc_minor,
                                      const std::string& library_version);

}  // namespace attend::cuda
