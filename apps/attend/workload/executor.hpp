// Chooses the device and the backends for a workload from --compute and --device. Declares executors, which run it on a
// host or a GPU.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "workload/timing.hpp"
#include "workload/workload.hpp"

namespace attend::cli {

/// The result of --compute and --device: the name of a backend for each pass, chosen as the library chooses it, and the
/// device of the tensors.
struct Choice {
  std::string forward, backward;  ///< empty if the pass is not computed
  Device device;
  /// Reason why auto did not choose a GPU. Empty if it did, or if the user named a backend.
  std::string note;

  /// Returns the backend of one pass, which must be kForward or kBackward. Backward needs the results of forward. If
  /// only backward was requested and `forward` is empty, the backend of backward therefore computes both passes.
  [[nodiscard]] const std::string& compute(Mode pass) const {
    return (pass == Mode::kForward && !forward.empty()) || backward.empty() ? forward : backward;
  }
};

/// @param compute  "auto", or the name of a backend
/// @param device   value of --device, if given. Otherwise auto chooses a GPU if there is one that supports all passes
///   of `mode`, and otherwise the CPU
/// @throws Error. kInvalidArgument means an unknown name. kMissingHardware means that there is no GPU or that the
///   library cannot use it. kUnsupported states what the backend does not support.
[[nodiscard]] Choice choose_compute(std::string_view compute, std::optional<DeviceType> device, const Workload& w,
                                    Mode mode);

/// Returns the device type on which the backends compute, before there is a workload. It is a GPU if all backends
/// compute on GPUs. "auto" computes on a GPU if a usable one exists.
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

/// @param rotate  on a GPU: if true, keeps enough copies of the tensors that consecutive calls do not find them in the
///   L2 cache
[[nodiscard]] std::unique_ptr<Executor> make_executor(const Workload& w, const Choice& choice, bool rotate);

}  // namespace attend::cli
