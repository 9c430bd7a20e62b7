// Where and with what a workload is computed: the choice from --compute and --device, and executors for host and GPU.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "workload/timing.hpp"
#include "workload/workload.hpp"

namespace attend::cli {

/// The result of --compute: the name of a backend for each pass, as the library chooses them, and the device of the
/// tensors.
struct Choice {
  std::string forward, backward;  ///< empty for a pass that is not computed
  Device device;
  std::string note;  ///< why auto did not choose a GPU; empty if it did, or if another backend was given

  /// Returns the backend of one pass, kForward or kBackward. Backward needs the results of forward: if only backward is
  /// computed, its backend does both, or auto chooses one for forward if that backend has none.
  [[nodiscard]] const std::string& compute(Mode pass) const {
    return (pass == Mode::kForward && !forward.empty()) || backward.empty() ? forward : backward;
  }
};

/// @param compute  "auto" or the name of a backend
/// @param device   what --device says, if given. Otherwise auto takes the GPU if there is one that supports all passes
///     of `mode`, and the CPU if not
/// @throws Error (kInvalidArgument) for an unknown name; (kMissingHardware) if there is no GPU or the library cannot
///     use it; (kUnsupported) that says what the backend does not support.
[[nodiscard]] Choice choose_compute(std::string_view compute, std::optional<DeviceType> device, const Workload& w,
                                    Mode mode);

/// Returns where the backends compute, before there is a workload: on a GPU if all of them do. auto does if a usable
/// GPU is here.
[[nodiscard]] DeviceType device_of(const std::vector<std::string>& computes, std::optional<DeviceType> device);

/// Returns the name of the processor or of the GPU.
[[nodiscard]] std::string device_name(Device device);

/// Computes the passes of one workload on one device.
class Executor {
 public:
  virtual ~Executor() = default;

  /// Computes one pass, kForward or kBackward. Backward reads the results of forward. On a GPU the call only submits
  /// the work.
  virtual void run(Mode pass) = 0;

  /// Waits for all submitted work and copies the results into the workload.
  virtual void fetch() = 0;

  /// Returns a timer for one pass, see Sampler.
  [[nodiscard]] virtual Sampler sampler(Mode pass) = 0;

  /// Returns the current clock of the GPU in MHz; 0 on a CPU.
  [[nodiscard]] virtual double clock_mhz() = 0;
};

/// @param rotate  on a GPU: keep enough copies of the tensors that consecutive calls do not find them in the L2 cache
[[nodiscard]] std::unique_ptr<Executor> make_executor(const Workload& w, const Choice& choice, bool rotate);

}  // namespace attend::cli
