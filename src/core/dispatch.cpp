// attend::forward and attend::backward: check, choose a backend, call it.
#include "core/dispatch.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/problem.hpp"
#include "cpu/backends.hpp"
#include "cuda/launch/backends.hpp"

namespace attend {
namespace core {
namespace {

/// The best backend for the problem's device that supports it; where none does, the complaint of the last one, which is
/// the one that supports most.
const Backend& best_backend(const Problem& problem) {
  const Backend* last = nullptr;
  for (const Backend* backend : all_backends()) {
    if (backend->device != problem.q.device.type || !backend->in_auto) continue;
    last = backend;
    const bool hopeless =
        (backend->dtypes & dtype_bit(problem.q.dtype)) == 0 || (problem.is_backward && !backend->backward);
    if (!hopeless && !lack_of(*backend, problem)) return *backend;
  }
  if (last == nullptr) throw Error(ErrorCode::kUnsupported, "compute: no backend for the tensors' device");
  throw Error(ErrorCode::kUnsupported, lack_of(*last, problem).value_or("compute: no backend supports the problem"));
}

}  // namespace

const std::vector<const Backend*>& all_backends() {
  static const auto* list = [] {
    auto* backends =
        new std::vector<const Backend*>{&cpu::fast_backend(), &cpu::reference_backend(), &cpu::naive_backend()};
    for (const Backend& backend : cuda::backends()) backends->push_back(&backend);
    return backends;
  }();
  return *list;
}

const Backend* find_backend(std::string_view name) {
  for (const Backend* backend : all_backends()) {
    if (name == backend->name) return backend;
  }
  return nullptr;
}

std::optional<std::string> lack_of(const Backend& backend, const Problem& problem) {
  if (problem.is_backward && !backend.backward) return fmt::format("compute: '{}' has no backward", backend.name);
  return backend.unsupported(problem);
}

const Backend& choose(std::string_view compute, const Problem& problem) {
  if (compute == "auto") return best_backend(problem);
  const Backend* backend = find_backend(compute);
  if (backend == nullptr || backend->device != problem.q.device.type) {
    std::vector<std::string_view> names = {"auto"};
    for (const Backend* b : all_backends()) {
      if (b->device == problem.q.device.type) names.emplace_back(b->name);
    }
    throw Error(ErrorCode::kInvalidArgument, fmt::format("compute: '{}', allowed {}", compute, fmt::join(names, ", ")));
  }
  if (const auto lack = lack_of(*backend, problem)) throw Error(ErrorCode::kUnsupported, *lack);
  return *backend;
}

}  // namespace core

void forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o, const Tensor* lse,
             const Params& params, Stream stream) {
  const core::Problem problem = core::make_forward_problem(q, k, v, o, lse, params);
  core::choose(params.compute, problem).forward(problem, stream);
}

void backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o, const Tensor& lse,
              const Tensor& dq, const Tensor& dk, const Tensor& dv, const Params& params, Stream stream,
              const BackwardExtras& extras) {
  const core::Problem problem = core::make_backward_problem(dout, q, k, v, o, lse, dq, dk, dv, params, extras);
  core::choose(params.compute, problem).backward(problem, stream);
}

std::vector<BackendInfo> backends() {
  std::vector<BackendInfo> infos;
  for (const core::Backend* b : core::all_backends()) {
    infos.push_back({b->name, b->description, b->device, static_cast<bool>(b->backward)});
  }
  return infos;
}

const char* version() noexcept {
  return ATTEND_VERSION_STRING;
}

}  // namespace attend
