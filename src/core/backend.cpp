#include "core/backend.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

namespace attend::core {

std::optional<std::string> dtype_lack(const Problem& p, const char* compute, std::span<const DType> allowed) {
  if (std::find(allowed.begin(), allowed.end(), p.q.dtype) == allowed.end()) {
    std::vector<const char*> names;
    for (const DType dtype : allowed) names.push_back(dtype_name(dtype));
    return fmt::format("q: dtype {}, allowed with compute '{}': {}", dtype_name(p.q.dtype), compute,
                       fmt::join(names, ", "));
  }
  for (const auto& [name, tensor] : NamedTensors(p)) {
    if (tensor->dtype == p.q.dtype) continue;
    return fmt::format("{}: dtype {}, allowed with compute '{}': {}, the dtype of q", name, dtype_name(tensor->dtype),
                       compute, dtype_name(p.q.dtype));
  }
  return std::nullopt;
}

std::optional<std::string> custom_score_lack(const Problem& p, const char* compute, bool runs_programs) {
  if (p.custom_score == nullptr) return std::nullopt;
  if (runs_programs && p.custom_score->program != nullptr) return std::nullopt;
  return fmt::format("score function: given, compute '{}' allows none", compute);
}

}  // namespace attend::core
