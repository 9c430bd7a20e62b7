#include "cuda/driver/nvtx.hpp"

#include "attend/error.hpp"
#include "cuda/driver/shared_library.hpp"

namespace attend::cuda {
namespace {

// The part of NVTX's binary interface that is used. libnvtx3interop has it since CUDA 12, libnvToolsExt had it before.
struct Nvtx {
  int (*push)(const char*) = nullptr;
  int (*pop)() = nullptr;
};

constexpr const char* kFileNames[] = {"libnvtx3interop.so.1", "libnvToolsExt.so.1"};
constexpr const char* kVariable = "ATTEND_NVTX_PATH";

Nvtx load() noexcept {
  Nvtx nvtx;
  if (set_variable("NVTX_INJECTION64_PATH") == nullptr && set_variable(kVariable) == nullptr) return nvtx;
  try {
    const SharedLibrary library("NVTX", toolkit_candidates({kFileNames, "nvtx", kVariable}), "");
    nvtx.push = reinterpret_cast<int (*)(const char*)>(library.require("nvtxRangePushA"));
    nvtx.pop = reinterpret_cast<int (*)()>(library.require("nvtxRangePop"));
    return nvtx;
  } catch (const std::exception&) {
    return {};  // a time line without names is no reason to fail
  }
}

const Nvtx& loaded() noexcept {
  static const Nvtx kNvtx = load();
  return kNvtx;
}

}  // namespace

bool NvtxRange::is_listened() noexcept {
  return loaded().push != nullptr;
}

void NvtxRange::push(const std::string& name) {
  loaded().push(name.c_str());
}

void NvtxRange::pop() {
  loaded().pop();
}

}  // namespace attend::cuda
