// Who computes a workload, and where: the choice behind --compute and --device, and the two places, host and GPU.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "workload/timing.hpp"
#include "workload/workload.hpp"

namespace attend::cli {

/// What --compute came to: a backend's name for each pass, as the library chooses them, and the place of the tensors.
struct Choice {
  std::string forward, backward;  ///< empty for a pass that is not wanted
  Device device;
  std::string note;  ///< why auto did not take a GPU; empty where it did, or was not asked

  /// Of one pass, kForward or kBackward. Backward needs what forward gives: where only backward was asked for, its
  /// backend does both, or auto the forward where it has none.
  [[nodiscard]] const std::string& compute(Mode pass) const {
    return (pass == Mode::kForward && !forward.empty()) || backward.empty() ? forward : backward;
  }
};

/// @param compute  "auto" or a backend's name
/// @param device   what --device says, if anything. Auto without it takes the GPU where there is one that supports all
///                 passes of `mode`, and otherwise the CPU
/// @throws Error (kInvalidArgument) for a name that is none; (kMissingHardware) for a GPU that is not there or
///         that the library cannot use; (kUnsupported) with what the backend lacks for this problem.
[[nodiscard]] Choice choose_compute(std::string_view compute, std::optional<DeviceType> device, const Workload& w,
                                    Mode mode);

/// Where these backends compute, before there is a workload: a GPU if each of them does; auto takes one that is here.
[[nodiscard]] DeviceType device_of(const std::vector<std::string>& computes, std::optional<DeviceType> device);

/// The processor's or the GPU's name.
[[nodiscard]] std::string device_name(Device device);

/// Computes the passes of one workload in one place.
class Executor {
 public:
  virtual ~Executor() = default;

  /// One pass, kForward or kBackward. Backward reads what forward gave. On a GPU the call only submits the work.
  virtual void run(Mode pass) = 0;

  /// Waits for everything submitted, and brings the results into the workload.
  virtual void fetch() = 0;

  /// A timer for one pass: see Sampler.
  [[nodiscard]] virtual Sampler sampler(Mode pass) = 0;

  /// The GPU's clock at this moment, in MHz; 0 on a CPU.
  [[nodiscard]] virtual double clock_mhz() = 0;
};

/// @param rotate  on a GPU: keep enough copies of the tensors that calls in a row do not find them in the L2 cache
[[nodiscard]] std::unique_ptr<Executor> make_executor(const Workload& w, const Choice& choice, bool rotate);

}  // namespace attend::cli
