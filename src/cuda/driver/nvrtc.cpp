#include "cuda/driver/nvrtc.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string_view>

#include "attend/error.hpp"
#include "core/environment.hpp"
#include "cuda/driver/shared_library.hpp"

namespace attend::cuda {
namespace {

namespace fs = std::filesystem;

// Declarations of the parts of NVRTC's binary interface that this library uses. They have not changed since CUDA 11.2.
using Program = void*;
constexpr int kSuccess = 0;
constexpr int kBuiltinOperationFailure = 7;

constexpr const char* kFileNames[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};
constexpr const char* kAdvice =
    "install the CUDA toolkit or `pip install nvidia-cuda-nvrtc`, or set ATTEND_NVRTC_PATH to the folder that has it";

using Folders = std::vector<std::string>;

/// Returns the include folders below `root`, which is either a CUDA toolkit or the shared folder of CUDA 13's pip
/// packages.
Folders toolkit_headers(const fs::path& root) {
  return {(root / "include").string(), (root / "include" / "cccl").string()};
}

/// Returns the include folders of CUDA 12's pip packages. Each package has a separate folder in site-packages/nvidia.
/// mma.h, crt/mma.h and nv/target are in three different packages.
Folders cuda12_package_headers(const fs::path& nvidia) {
  Folders folders;
  for (const char* package : {"cuda_runtime", "cuda_nvcc", "cuda_cccl"}) {
    folders.push_back((nvidia / package / "include").string());
  }
  return folders;
}

bool one_has(const Folders& folders, const char* header) {
  return std::any_of(folders.begin(), folders.end(), [&](const std::string& folder) {
    std::error_code error;
    return fs::exists(fs::path(folder) / header, error);
  });
}

}  // namespace

struct Nvrtc::Functions {
  const char* (*get_error_string)(int);
  int (*version)(int*, int*);
  int (*get_num_supported_archs)(int*);
  int (*get_supported_archs)(int*);
  int (*create_program)(Program*, const char*, const char*, int, const char* const*, const char* const*);
  int (*destroy_program)(Program*);
  int (*compile_program)(Program, int, const char* const*);
  int (*get_cubin_size)(Program, std::size_t*);
  int (*get_cubin)(Program, char*);
  int (*get_program_log_size)(Program, std::size_t*);
  int (*get_program_log)(Program, char*);

  void check(int result, const char* call, const std::string& doing) const {
    if (result == kSuccess) return;
    throw Error(ErrorCode::kInternal, fmt::format("{}: {} while {}", call, get_error_string(result), doing));
  }
};

std::vector<std::string> nvrtc_candidates() {
  return toolkit_candidates({kFileNames, "cuda_nvrtc", "ATTEND_NVRTC_PATH"});
}

// Loads libnvrtc-builtins from the folder of libnvrtc. When libnvrtc first compiles, it opens libnvrtc-builtins by
// name, but the loader does not search the folder of a pip package. After it has been loaded here, the loader finds it
// by name. If the file is missing, the compilation reports the error.
void Nvrtc::load_builtins() const {
  const std::string name = fmt::format("libnvrtc-builtins.so.{}.{}", major_, minor_);
  try {
    const SharedLibrary builtins("libnvrtc-builtins", {(fs::path(path_).parent_path() / name).string()}, kAdvice);
  } catch (const Error&) {
    return;  // the loader may still find the library elsewhere
  }
}

Nvrtc::Nvrtc() {
  const SharedLibrary library("libnvrtc (NVIDIA's run-time compiler)", nvrtc_candidates(), kAdvice);
  path_ = library.path();
  auto functions = std::make_unique<Functions>();
  const auto load = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(library.require(name));
  };
  load(functions->get_error_string, "nvrtcGetErrorString");
  load(functions->version, "nvrtcVersion");
  load(functions->get_num_supported_archs, "nvrtcGetNumSupportedArchs");
  load(functions->get_supported_archs, "nvrtcGetSupportedArchs");
  load(functions->create_program, "nvrtcCreateProgram");
  load(functions->destroy_program, "nvrtcDestroyProgram");
  load(functions->compile_program, "nvrtcCompileProgram");
  load(functions->get_cubin_size, "nvrtcGetCUBINSize");
  load(functions->get_cubin, "nvrtcGetCUBIN");
  load(functions->get_program_log_size, "nvrtcGetProgramLogSize");
  load(functions->get_program_log, "nvrtcGetProgramLog");
  functions->check(functions->version(&major_, &minor_), "nvrtcVersion", "loading " + path_);
  load_builtins();
  functions_ = functions.release();  // never freed, because the library is never closed
}

const Nvrtc& Nvrtc::instance() {
  static const Nvrtc kInstance;  // if the constructor throws, the next call tries again
  return kInstance;
}

std::vector<std::string> Nvrtc::toolkit_include_folders() const {
  std::vector<Folders> places;
  std::error_code error;
  // The folder of libnvrtc: lib64 or targets/x86_64-linux/lib of a toolkit, or lib of a pip package.
  const fs::path library = fs::canonical(path_, error).parent_path();
  if (!library.empty()) {
    places.push_back(toolkit_headers(library.parent_path()));
    places.push_back(cuda12_package_headers(library.parent_path().parent_path()));
  }
  if (const char* home = core::environment("CUDA_HOME")) places.push_back(toolkit_headers(home));
  places.push_back(toolkit_headers("/usr/local/cuda"));
  std::vector<std::string> names;
  for (const Folders& folders : places) {
    // mma.h includes crt/mma.h, so both are needed.
    if (one_has(folders, "mma.h") && one_has(folders, "crt/mma.h")) return folders;
    names.push_back(folders.front());
  }
  const char* packages = major_ < 13 ? "nvidia-cuda-runtime-cu12 nvidia-cuda-nvcc-cu12 nvidia-cuda-cccl-cu12"
                                     : "nvidia-cuda-runtime nvidia-cuda-crt nvidia-cuda-cccl";
  throw Error(ErrorCode::kMissingHardware, fmt::format("mma.h and crt/mma.h: not in {}: install the CUDA toolkit, or "
                                                       "`pip install {}` next to NVRTC",
                                                       fmt::join(names, ", "), packages));
}

std::vector<int> Nvrtc::supported_archs() const {
  int count = 0;
  functions_->check(functions_->get_num_supported_archs(&count), "nvrtcGetNumSupportedArchs", "querying architectures");
  std::vector<int> archs(static_cast<std::size_t>(count));
  functions_->check(functions_->get_supported_archs(archs.data()), "nvrtcGetSupportedArchs", "querying architectures");
  return archs;
}

bool Nvrtc::knows_arch_of(const std::vector<std::string>& options) const {
  constexpr std::string_view kFlag = "--gpu-architecture=sm_";
  const std::vector<int> known = supported_archs();
  return std::none_of(options.begin(), options.end(), [&](const std::string& option) {
    if (!option.starts_with(kFlag)) return false;
    const int number = std::atoi(option.c_str() + kFlag.size());  // stops at the letter of a name such as sm_90a
    return std::find(known.begin(), known.end(), number) == known.end();
  });
}

CompileOutput Nvrtc::compile(const std::string& name, const std::string& source, std::span<const NamedSource> headers,
                             const std::vector<std::string>& options) const {
  const Functions& nvrtc = *functions_;
  const std::string doing = fmt::format("compiling {} with {}", name, fmt::join(options, " "));
  std::vector<const char*> names, texts, flags;
  for (const NamedSource& header : headers) {
    names.push_back(header.name.c_str());
    texts.push_back(header.text.c_str());
  }
  for (const std::string& option : options) flags.push_back(option.c_str());

  Program program = nullptr;
  nvrtc.check(nvrtc.create_program(&program, source.c_str(), name.c_str(), static_cast<int>(headers.size()),
                                   texts.data(), names.data()),
              "nvrtcCreateProgram", doing);
  const auto destroy = [&nvrtc](void* handle) { nvrtc.destroy_program(&handle); };
  const std::unique_ptr<void, decltype(destroy)> owner(program, destroy);

  const int result = nvrtc.compile_program(program, static_cast<int>(flags.size()), flags.data());
  CompileOutput output;
  std::size_t log_bytes = 0;  // includes the terminating zero
  nvrtc.check(nvrtc.get_program_log_size(program, &log_bytes), "nvrtcGetProgramLogSize", doing);
  output.log.resize(log_bytes);
  nvrtc.check(nvrtc.get_program_log(program, output.log.data()), "nvrtcGetProgramLog", doing);
  while (!output.log.empty() && output.log.back() == '\0') output.log.pop_back();
  if (result == kBuiltinOperationFailure) {
    throw Error(
        ErrorCode::kMissingHardware,
        fmt::format(
            "nvrtcCompileProgram: {} while {}: libnvrtc-builtins.so.{}.{} has to be in the folder of {}. Log: {}",
            nvrtc.get_error_string(result), doing, major_, minor_, path_, output.log));
  }
  if (result != kSuccess && !knows_arch_of(options)) {
    throw Error(ErrorCode::kMissingHardware,
                fmt::format("NVRTC {}.{} ({}) does not compile for {}: install another one. Log: {}", major_, minor_,
                            path_, options.front(), output.log));
  }
  if (result != kSuccess) {
    throw Error(ErrorCode::kInternal, fmt::format("nvrtcCompileProgram: {} while {}. Log:\n{}",
                                                  nvrtc.get_error_string(result), doing, output.log));
  }
  std::size_t cubin_bytes = 0;
  nvrtc.check(nvrtc.get_cubin_size(program, &cubin_bytes), "nvrtcGetCUBINSize", doing);
  output.cubin.resize(cubin_bytes);
  nvrtc.check(nvrtc.get_cubin(program, reinterpret_cast<char*>(output.cubin.data())), "nvrtcGetCUBIN", doing);
  return output;
}

}  // namespace attend::cuda
