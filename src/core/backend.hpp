// What a backend is to the dispatcher. The list itself is in dispatch.cpp.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>

#include "core/problem.hpp"

namespace attend::core {

struct Backend {
  const char* name;         ///< what Params::compute takes
  const char* description;  ///< one line
  DeviceType device;
  void (*forward)(const Problem&, Stream);
  void (*backward)(const Problem&, Stream);  ///< null: forward only
  /// One line saying what the backend lacks for this problem ("dropout_p 0.1: cpu_naive allows 0"), or nothing.
  std::optional<std::string> (*unsupported)(const Problem&);
};

/// For backends that compute in one dtype: the line saying that q is in none of `allowed`, or that another tensor of
/// the problem differs from q. Nothing where all is well.
std::optional<std::string> dtype_lack(const Problem& p, const char* compute, std::initializer_list<DType> allowed);

}  // namespace attend::core
