// A backend as src/dispatch uses it: its name, its capabilities, and the functions that run it.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>

#include "core/lack.hpp"
#include "core/problem.hpp"

namespace attend::core {

struct Backend {
  const char* name;         ///< value for Params::compute
  const char* description;  ///< one line
  DeviceType device;
  std::function<void(const Problem&, Stream)> forward = {};   ///< empty: backward only
  std::function<void(const Problem&, Stream)> backward = {};  ///< empty: forward only
  /// true if "auto" may choose it; false for lesson kernels and for backends that another one always beats
  bool in_auto = true;
  /// true for the backend that supports the most options, one per device. If no backend supports a problem, "auto"
  /// reports the reason of this one, or of the first backend that supports the problem's options.
  bool is_fallback = false;
  DTypes dtypes = {~0U};  ///< dtypes of q that it may support
  /// Returns one line with the reason why the backend cannot run this problem ("dropout_p: 0.1, compute 'cpu_naive'
  /// allows 0"), or nothing.
  std::function<std::optional<std::string>(const Problem&)> unsupported = {};
  /// Returns whether the backend supports each of the problem's options in some problem. Empty if no backend of the
  /// device uses it.
  std::function<bool(const Problem&)> takes_options = {};
  /// Returns the estimated seconds for the problem, or infinity if the backend cannot run it. "auto" calls this in
  /// every call, so it produces no text. Empty: "auto" chooses the first backend that can run the problem.
  std::function<double(const Problem&)> estimate = {};
  /// Returns the bytes of scratch memory on the device that a call needs. Empty: the caller cannot pass any.
  std::function<std::size_t(const Problem&)> workspace_bytes = {};
  /// Compiles and loads everything that a call will need. Empty: nothing to do.
  std::function<void(const Problem&)> prepare = {};
  /// Describes how a call would run; the caller sets `lack`. Empty: no description.
  std::function<Candidate(const Problem&)> explain = {};
};

/// For backends that compute in one dtype: returns the reason if the dtype of q is not in `allowed`, or if another
/// tensor of the problem differs from q. Otherwise nothing.
std::optional<std::string> dtype_lack(const Problem& p, const char* compute, std::span<const DType> allowed);

/// Returns the reason why a custom score (Problem::custom_score) is unsupported, if there is one. A backend that runs
/// programs refuses only a score without a program.
[[nodiscard]] std::optional<std::string> custom_score_lack(const Problem& p, const char* compute,
                                                           bool runs_programs = false);

}  // namespace attend::core
