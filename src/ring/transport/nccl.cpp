#include "ring/transport/nccl.hpp"

#include <fmt/format.h>

#include "cuda/driver/shared_library.hpp"

namespace attend::ring {
namespace {

constexpr const char* kFileNames[] = {"libnccl.so.2", "libnccl.so"};

Nccl load_nccl() {
  const cuda::SharedLibrary library(
      "libnccl (NVIDIA's collective communication)", cuda::toolkit_candidates({kFileNames, "nccl", "ATTEND_NCCL_PATH"}),
      "install NCCL or `pip install nvidia-nccl-cu13`, or set ATTEND_NCCL_PATH to the folder that has it");
  Nccl n;
  n.path = library.path();
// NOLINTBEGIN(bugprone-macro-parentheses): the arguments are a member and a parameter list.
#define ATTEND_LOAD(member, symbol, parameters) \
  n.member = reinterpret_cast<NcclResult(*) parameters>(library.require(#symbol));
  ATTEND_NCCL_FUNCTIONS(ATTEND_LOAD)
#undef ATTEND_LOAD
  // NOLINTEND(bugprone-macro-parentheses)
  n.get_error_string = reinterpret_cast<decltype(n.get_error_string)>(library.require("ncclGetErrorString"));
  return n;
}

}  // namespace

const Nccl& nccl() {
  static const Nccl kNccl = load_nccl();  // if loading throws, the next call tries again
  return kNccl;
}

void check_nccl(NcclResult result, const char* call) {
  if (result == 0 || result == kNcclInProgress) return;
  throw Error(ErrorCode::kInternal,
              fmt::format("{}: {}; set NCCL_DEBUG=WARN for details", call, nccl().get_error_string(result)));
}

}  // namespace attend::ring
