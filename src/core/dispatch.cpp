// attend::forward and attend::backward: check, choose a backend, call it.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <vector>

#include "core/backend.hpp"
#include "core/problem.hpp"
#include "cpu/backends.hpp"

namespace attend {
namespace {

/// Best first.
std::array<const core::Backend*, 3> all_backends() {
  return {&cpu::fast_backend(), &cpu::reference_backend(), &cpu::naive_backend()};
}

const core::Backend& choose(std::string_view compute, Device device) {
  std::vector<std::string_view> names = {"auto"};
  for (const core::Backend* backend : all_backends()) {
    if (backend->device != device.type) continue;
    if (compute == "auto" || compute == backend->name) return *backend;
    names.push_back(backend->name);
  }
  if (names.size() == 1) {
    throw Error(ErrorCode::kMissingHardware, "q: on a CUDA device, but this build has CPU backends only");
  }
  throw Error(ErrorCode::kInvalidArgument, fmt::format("compute: '{}', allowed {}", compute, fmt::join(names, ", ")));
}

void require_support(const core::Backend& backend, const core::Problem& problem) {
  if (const auto lack = backend.unsupported(problem)) throw Error(ErrorCode::kUnsupported, *lack);
}

}  // namespace

void forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o, const Tensor* lse,
             const Params& params, Stream stream) {
  const core::Problem problem = core::make_forward_problem(q, k, v, o, lse, params);
  const core::Backend& backend = choose(params.compute, q.device);
  require_support(backend, problem);
  backend.forward(problem, stream);
}

void backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o, const Tensor& lse,
              const Tensor& dq, const Tensor& dk, const Tensor& dv, const Params& params, Stream stream,
              const BackwardExtras& extras) {
  const core::Problem problem = core::make_backward_problem(dout, q, k, v, o, lse, dq, dk, dv, params, extras);
  const core::Backend& backend = choose(params.compute, q.device);
  if (backend.backward == nullptr) {
    throw Error(ErrorCode::kUnsupported, fmt::format("compute: '{}' has no backward", backend.name));
  }
  require_support(backend, problem);
  backend.backward(problem, stream);
}

std::vector<BackendInfo> backends() {
  std::vector<BackendInfo> infos;
  for (const core::Backend* b : all_backends()) {
    infos.push_back({b->name, b->description, b->device, b->backward != nullptr});
  }
  return infos;
}

const char* version() noexcept {
  return ATTEND_VERSION_STRING;
}

}  // namespace attend
