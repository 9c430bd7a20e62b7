// Chooses the device and the backends for a workload from the flags --compute and --device. Declares executors. An
// executor runs the workload on the host or on a GPU.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "workload/timing.hpp"
#include "workload/workload.hpp"

namespace attend::cli {

/// The backend of each pass and the device of the tensors. They follow from --compute and --device by the rules of the
/// library.
struct Choice {
  std::string forward, backward;  ///< empty if the pass is not computed
  Device device;
  /// Reason why `auto` did not choose a GPU. Empty if it chose a GPU, or if the user named a backend.
  std::string note;

  /// Returns the backend of one pass, which must be kForward or kBackward. Backward needs the results of forward. If
  /// `forward` is empty, because only backward was requested, the backend of backward therefore computes both passes.
  [[nodiscard]] const std::string& compute(Mode pass) const {
    return (pass == Mode::kForward && !forward.empty()) || backward.empty() ? forward : backward;
  }
};

/// @param compute  "auto", or the name of a backend
/// @param device value of --device. If unset, `auto` chooses a GPU that supports all passes of `mode`, or the CPU if
///   there is no such GPU.
/// @throws Error (kInvalidArgument) for an unknown name, (kMissingHardware) if there is no GPU that the library can
///   use, and (kUnsupported) if the backend does not support the workload.
[[nodiscard]] Choice choose_compute(std::string_view compute, std::optional<DeviceType> device, const Workload& w,
                                    Mode mode);

/// Returns the device type on which the backends compute. Needs no workload. The result is a GPU if all backends
/// compute on GPUs. "auto" counts as a GPU backend if there is a usable GPU.
[[nodiscard]] DeviceType device_of(const std::vector<std::string>& computes, std::optional<DeviceType> device);

/// Returns the name of the processor, or of the GPU with this number.
[[nodiscard]] std::string device_name(Device device);

/// Runs the passes of one workload on one device.
class Executor {
 public:
  virtual ~Executor() = default;

  /// Computes one pass, which must be kForward or kBackward. Backward reads the results of forward. On a GPU the call
  /// returns before the work is done.
  virtual void run(Mode pass) = 0;

  /// Waits for all submitted work and copies the results into the workload.
  virtual void fetch() = 0;

  /// Returns a Sampler that times one pass.
  [[nodiscard]] virtual Sampler sampler(Mode pass) = 0;

  /// Returns the current clock of the GPU in MHz, or 0 on a CPU.
  [[nodiscard]] virtual double clock_mhz() = 0;
};

/// @param rotate if true, on a GPU, consecutive calls use different copies of the tensors, so that they do not find
///   data in the L2 cache
[[nodiscard]] std::unique_ptr<Executor> make_executor(const Workload& w, const Choice& choice, bool rotate);

}  // namespace attend::cli
