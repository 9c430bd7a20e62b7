#include "dispatch/dispatch.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "attend/version.hpp"
#include "core/aliases.hpp"
#include "cpu/backends.hpp"
#include "cuda/launch/backends.hpp"
#include "dispatch/choice_memory.hpp"

namespace attend {
namespace dispatch {
namespace {

using core::Backend;
using core::Problem;

bool is_candidate(const Backend& backend, const Problem& problem) {
  return backend.device == problem.q.device.type && backend.in_auto;
}

/// Returns the reason that "auto" reports if no backend can run the problem.
std::string lack_of_all(const Backend& fallback, const Problem& problem) {
  const Backend* asked = &fallback;
  const bool has_dtype = fallback.dtypes.has(problem.q.dtype);
  if (!has_dtype || (fallback.takes_options && !fallback.takes_options(problem))) {
    for (const Backend* backend : all_backends()) {
      const bool has_pass =
          problem.is_backward ? static_cast<bool>(backend->backward) : static_cast<bool>(backend->forward);
      if (!is_candidate(*backend, problem) || !has_pass) continue;
      // Few backends support the dtype of 8-bit inputs. Their reasons are of more use than that the fallback does not.
      if (has_dtype ? !backend->takes_options(problem) : !backend->dtypes.has(problem.q.dtype)) continue;
      asked = backend;
      break;
    }
  }
  return lack_of(*asked, problem).value_or("compute: no backend supports the problem");
}

/// Returns the backend of the problem's device with the lowest estimated time. If several have the same time, returns
/// the first in the list. If backends have no estimates, returns the first one that can run the problem. Throws
/// lack_of_all() if no backend can run it.
const Backend& find_best_backend(const Problem& problem) {
  const Backend* fallback = nullptr;
  const Backend* best = nullptr;
  double least = std::numeric_limits<double>::infinity();
  for (const Backend* backend : all_backends()) {
    if (!is_candidate(*backend, problem)) continue;
    if (backend->is_fallback) fallback = backend;
    if (!backend->estimate) {
      if (!lack_of(*backend, problem)) return *backend;
    } else if (const double seconds = backend->estimate(problem); seconds < least) {
      best = backend;
      least = seconds;
    }
  }
  if (best != nullptr) return *best;
  if (fallback == nullptr) throw Error(ErrorCode::kUnsupported, "compute: no backend for the tensors' device");
  throw Error(ErrorCode::kUnsupported, lack_of_all(*fallback, problem));
}

const char* place_of(DeviceType type) {
  return type == DeviceType::kCPU ? "the CPU" : "a GPU";
}

const Backend& best_backend(const Problem& problem) {
  if (problem.q.device.type != DeviceType::kCUDA || problem.part) return find_best_backend(problem);
  const ProblemKey key(problem);
  if (const Backend* known = remembered_choice(key)) return *known;
  const Backend& best = find_best_backend(problem);
  remember_choice(key, best);
  return best;
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
  const auto called = [](std::string_view own_name) -> const Backend* {
    for (const Backend* backend : all_backends()) {
      if (own_name == backend->name) return backend;
    }
    return nullptr;
  };
  if (const Backend* backend = called(name)) return backend;
  return called(core::without_alias(name));
}

std::optional<std::string> lack_of(const Backend& backend, const Problem& problem) {
  if (problem.is_backward && !backend.backward) return fmt::format("compute: '{}' has no backward", backend.name);
  if (!problem.is_backward && !backend.forward) return fmt::format("compute: '{}' has no forward", backend.name);
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
    const std::string found =
        backend == nullptr ? fmt::format("compute: '{}', allowed", compute)
                           : fmt::format("compute: '{}' is for tensors on {}, allowed for tensors on {}:", compute,
                                         place_of(backend->device), place_of(problem.q.device.type));
    throw Error(ErrorCode::kInvalidArgument, fmt::format("{} {}", found, fmt::join(names, ", ")));
  }
  if (const auto lack = lack_of(*backend, problem)) throw Error(ErrorCode::kUnsupported, *lack);
  return *backend;
}

std::vector<Candidate> explain(const Backend* chosen, const Problem& problem) {
  std::vector<Candidate> candidates;
  for (const Backend* backend : all_backends()) {
    if (backend->device != problem.q.device.type) continue;
    const auto lack = lack_of(*backend, problem);
    Candidate candidate;
    if (!lack && backend->explain) candidate = backend->explain(problem);
    candidate.compute = backend->name;
    candidate.lack = lack.value_or("");
    candidate.chosen = backend == chosen;
    candidates.push_back(std::move(candidate));
  }
  const auto rank = [](const Candidate& c) {
    return std::pair(!c.lack.empty(), c.lack.empty() ? c.estimated_us : 0.0);
  };
  std::stable_sort(candidates.begin(), candidates.end(),
                   [&](const Candidate& a, const Candidate& b) { return rank(a) < rank(b); });
  return candidates;
}

}  // namespace dispatch

std::vector<BackendInfo> backends() {
  std::vector<BackendInfo> infos;
  for (const core::Backend* b : dispatch::all_backends()) {
    infos.push_back({b->name, b->description, b->device, static_cast<bool>(b->backward)});
  }
  return infos;
}

const char* version() noexcept {
  return ATTEND_VERSION_STRING;
}

}  // namespace attend
