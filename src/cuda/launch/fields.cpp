#include "cuda/launch/fields.hpp"

#include <fmt/format.h>

namespace attend::cuda {

std::string Tunable::allowed_instead_of(std::int32_t value, std::int32_t present) const {
  if (enumerators.empty()) {
    const std::int32_t least = present > 1 ? 1 : 0;  // 0 is allowed only if the member is a switch (0 or 1)
    return value >= least ? "" : "at least 1";
  }
  if (value >= 0 && static_cast<std::size_t>(value) < enumerators.size()) return "";
  std::string allowed;
  for (std::size_t i = 0; i < enumerators.size(); ++i) {
    allowed += fmt::format("{}{} ({})", i > 0 ? ", " : "", i, enumerators[i]);
  }
  return allowed;
}

}  // namespace attend::cuda
