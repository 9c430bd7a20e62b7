// A backend, as src/dispatch sees it: what it is called, what it can do, and how to run it.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>

#include "core/lack.hpp"
#include "core/problem.hpp"

namespace attend::core {

struct Backend {
  const char* name;         ///< what Params::compute takes
  const char* description;  ///< one line
  DeviceType device;
  std::function<void(const Problem&, Stream)> forward = {};   ///< empty: backward only
  std::function<void(const Problem&, Stream)> backward = {};  ///< empty: forward only
  bool in_auto = true;  ///< "auto" tries it; lessons, and what another backend beats at everything, are left out
  /// The backend of its device that supports most, one of each device: if no backend supports a problem, "auto" says
  /// what this one lacks, or what the first one lacks that takes the problem's options.
  bool is_fallback = false;
  DTypes dtypes = {~0U};  ///< of q, that it may take
  /// One line saying what the backend lacks for this problem ("dropout_p: 0.1, compute 'cpu_naive' allows 0"), or
  /// nothing.
  std::function<std::optional<std::string>(const Problem&)> unsupported = {};
  /// Does it take each of the problem's options in some problem? Empty: asked of no backend of its device.
  std::function<bool(const Problem&)> takes_options = {};
  /// Seconds that it expects to take for the problem; infinity where it lacks something. Asked at every call of "auto",
  /// so it makes no text. Empty: "auto" takes the first backend that lacks nothing.
  std::function<double(const Problem&)> estimate = {};
  /// Bytes of scratch memory on the device that a call takes. Empty: none that a caller could pass.
  std::function<std::size_t(const Problem&)> workspace_bytes = {};
  /// Compiles and loads whatever a call will need. Empty: nothing to do.
  std::function<void(const Problem&)> prepare = {};
  /// What a call would do; `lack` is filled in by the caller. Empty: nothing to tell.
  std::function<Candidate(const Problem&)> explain = {};
};

/// For backends that compute in one dtype: the line saying that q is in none of `allowed`, or that another tensor of
/// the problem differs from q. Nothing where all is well.
std::optional<std::string> dtype_lack(const Problem& p, const char* compute, std::span<const DType> allowed);

/// Of a backend that takes no score of the caller's (Problem::custom_score): the refusal, if there is one. Of one that
/// runs programs: if the problem's score has none.
[[nodiscard]] std::optional<std::string> custom_score_lack(const Problem& p, const char* compute,
                                                           bool runs_programs = false);

}  // namespace attend::core
