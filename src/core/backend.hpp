// A backend: its name, its capabilities, and the functions with which src/dispatch runs it.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>

#include "core/lack.hpp"
#include "core/problem.hpp"

namespace attend::core {

struct Backend {
  const char* name;         ///< the value of Params::compute that selects the backend
  const char* description;  ///< one line of text
  DeviceType device;
  std::function<void(const Problem&, Stream)> forward = {};   ///< empty if the backend supports only backward
  std::function<void(const Problem&, Stream)> backward = {};  ///< empty if the backend supports only forward
  /// True if "auto" may choose the backend. False for backends that are meant for learning, and for backends that are
  /// never the fastest.
  bool in_auto = true;
  /// True for one backend of each device, the one that supports the most options. If no backend can run a problem,
  /// "auto" reports the reason why this backend cannot. There is one exception: this backend does not support the
  /// problem's options or the dtype of q, but another backend does. "auto" then reports the reason of the first backend
  /// that supports them.
  bool is_fallback = false;
  DTypes dtypes = {~0U};  ///< dtypes that q may have; the backend may have further conditions
  /// Returns one line with the reason why the backend cannot run this problem, or nothing if it can. Example:
  /// "dropout_p: 0.1, compute 'cpu_naive' allows 0".
  std::function<std::optional<std::string>(const Problem&)> unsupported = {};
  /// Returns whether the backend supports each option of the problem, at least for some shapes and dtypes. The function
  /// is empty if no backend of the device needs it.
  std::function<bool(const Problem&)> takes_options = {};
  /// Returns the estimated time in seconds, or infinity if the backend cannot run the problem. "auto" calls this
  /// function in every call, so it produces no text. If it is empty, "auto" chooses the first backend that can run the
  /// problem.
  std::function<double(const Problem&)> estimate = {};
  /// Returns the size in bytes of the device scratch memory that a call needs. If the function is empty, the caller
  /// cannot pass scratch memory.
  std::function<std::size_t(const Problem&)> workspace_bytes = {};
  /// Compiles and loads all kernels that a call will need. If the function is empty, the backend has nothing to
  /// prepare.
  std::function<void(const Problem&)> prepare = {};
  /// Describes how a call would run. The dispatcher sets the field `lack` of the result. If the function is empty, the
  /// backend has no description.
  std::function<Candidate(const Problem&)> explain = {};
};

/// For backends that compute in one dtype. Returns a reason if the dtype of q is not in `allowed`, or if another tensor
/// of the problem has a different dtype. Otherwise returns nothing.
std::optional<std::string> dtype_lack(const Problem& p, const char* compute, std::span<const DType> allowed);

/// Returns the reason why the backend does not support the problem's custom score, if there is one. A backend that runs
/// programs (runs_programs) refuses only a score without a program.
[[nodiscard]] std::optional<std::string> custom_score_lack(const Problem& p, const char* compute,
                                                           bool runs_programs = false);

}  // namespace attend::core
