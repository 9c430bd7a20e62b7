#include "cuda/driver/nvtx.hpp"

#include "attend/error.hpp"
#include "core/environment.hpp"
#include "cuda/driver/shared_library.hpp"

namespace attend::cuda {
namespace {

// The functions of NVTX that this library uses. They are in libnvtx3interop since CUDA 12, and in libnvToolsExt before.
struct Nvtx {
  int (*push)(const char*) = nullptr;
  int (*pop)() = nullptr;
};

constexpr const char* kFileNames[] = {"libnvtx3interop.so.1", "libnvToolsExt.so.1"};
constexpr const char* kVariable = "ATTEND_NVTX_PATH";

Nvtx load() {
  Nvtx nvtx;
  const bool is_named = core::environment(kVariable) != nullptr;
  if (core::environment("NVTX_INJECTION64_PATH") == nullptr && !is_named) return nvtx;
  try {
    const SharedLibrary library(is_named ? "ATTEND_NVTX_PATH" : "NVTX",
                                toolkit_candidates({kFileNames, "nvtx", kVariable}),
                                "unset it, or name the library, its folder, or the root of a Python environment");
    nvtx.push = reinterpret_cast<int (*)(const char*)>(library.require("nvtxRangePushA"));
    nvtx.pop = reinterpret_cast<int (*)()>(library.require("nvtxRangePop"));
    return nvtx;
  } catch (const Error&) {
    if (is_named) throw;
    return {};  // without the library, the profiler shows no names, which is not an error
  }
}

const Nvtx& loaded() {
  static const Nvtx kNvtx = load();
  return kNvtx;
}

}  // namespace

bool NvtxRange::is_listened() {
  return loaded().push != nullptr;
}

void NvtxRange::push(const std::string& name) {
  loaded().push(name.c_str());
}

void NvtxRange::pop() {
  loaded().pop();
}

}  // namespace attend::cuda
