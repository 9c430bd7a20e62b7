// What a backend is to the dispatcher. The list itself is in dispatch.cpp.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>

#include "core/problem.hpp"

namespace attend::core {

struct Backend {
  const char* name;         ///< what Params::compute takes
  const char* description;  ///< one line
  DeviceType device;
  std::function<void(const Problem&, Stream)> forward;
  std::function<void(const Problem&, Stream)> backward;  ///< empty: forward only
  bool in_auto = true;    ///< "auto" tries it; lessons, and what another backend beats at everything, are left out
  unsigned dtypes = ~0U;  ///< bit dtype_bit(q.dtype) is set where `unsupported` is worth asking: a quick look for auto
  /// One line saying what the backend lacks for this problem ("dropout_p: 0.1, compute 'cpu_naive' allows 0"), or
  /// nothing.
  std::function<std::optional<std::string>(const Problem&)> unsupported;
};

/// The bit of Backend::dtypes.
[[nodiscard]] constexpr unsigned dtype_bit(DType dtype) {
  return 1U << static_cast<unsigned>(dtype);
}

/// For backends that compute in one dtype: the line saying that q is in none of `allowed`, or that another tensor of
/// the problem differs from q. Nothing where all is well.
std::optional<std::string> dtype_lack(const Problem& p, const char* compute, std::span<const DType> allowed);

}  // namespace attend::core
