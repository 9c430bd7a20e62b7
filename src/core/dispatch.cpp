// attend::forward and attend::backward: check, choose a backend, call it.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "core/backend.hpp"
#include "core/problem.hpp"
#include "cpu/backends.hpp"
#include "cuda/launch/backends.hpp"

namespace attend {
namespace {

/// Every backend; of those for one device, the best first.
const std::vector<const core::Backend*>& all_backends() {
  static const auto* list = [] {
    auto* backends =
        new std::vector<const core::Backend*>{&cpu::fast_backend(), &cpu::reference_backend(), &cpu::naive_backend()};
    for (const core::Backend& backend : cuda::backends()) backends->push_back(&backend);
    return backends;
  }();
  return *list;
}

/// The backend called `compute`, for tensors on a device of `type`.
const core::Backend& find_backend(std::string_view compute, DeviceType type) {
  std::vector<std::string_view> names = {"auto"};
  for (const core::Backend* backend : all_backends()) {
    if (backend->device != type) continue;
    if (compute == backend->name) return *backend;
    names.emplace_back(backend->name);
  }
  throw Error(ErrorCode::kInvalidArgument, fmt::format("compute: '{}', allowed {}", compute, fmt::join(names, ", ")));
}

/// What the backend lacks for the problem, in one line.
std::optional<std::string> lack_of(const core::Backend& backend, const core::Problem& problem) {
  if (problem.is_backward && !backend.backward) return fmt::format("compute: '{}' has no backward", backend.name);
  return backend.unsupported(problem);
}

/// The best backend for the problem's device that supports it; where none does, the first one's complaint.
const core::Backend& best_backend(const core::Problem& problem) {
  std::optional<std::string> first_lack;
  for (const core::Backend* backend : all_backends()) {
    if (backend->device != problem.q.device.type) continue;
    const std::optional<std::string> lack = lack_of(*backend, problem);
    if (!lack) return *backend;
    if (!first_lack) first_lack = lack;
  }
  throw Error(ErrorCode::kUnsupported, first_lack.value_or("compute: no backend"));
}

const core::Backend& choose(std::string_view compute, const core::Problem& problem) {
  if (compute == "auto") return best_backend(problem);
  const core::Backend& backend = find_backend(compute, problem.q.device.type);
  if (const auto lack = lack_of(backend, problem)) throw Error(ErrorCode::kUnsupported, *lack);
  return backend;
}

}  // namespace

void forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o, const Tensor* lse,
             const Params& params, Stream stream) {
  const core::Problem problem = core::make_forward_problem(q, k, v, o, lse, params);
  choose(params.compute, problem).forward(problem, stream);
}

void backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o, const Tensor& lse,
              const Tensor& dq, const Tensor& dk, const Tensor& dv, const Params& params, Stream stream,
              const BackwardExtras& extras) {
  const core::Problem problem = core::make_backward_problem(dout, q, k, v, o, lse, dq, dk, dv, params, extras);
  choose(params.compute, problem).backward(problem, stream);
}

std::vector<BackendInfo> backends() {
  std::vector<BackendInfo> infos;
  for (const core::Backend* b : all_backends()) {
    infos.push_back({b->name, b->description, b->device, static_cast<bool>(b->backward)});
  }
  return infos;
}

const char* version() noexcept {
  return ATTEND_VERSION_STRING;
}

}  // namespace attend
