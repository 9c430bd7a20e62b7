#include "executor.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "core/dispatch.hpp"
#include "cuda/driver/device.hpp"
#include "device_workload.hpp"
#include "system.hpp"

namespace attend::cli {
namespace {

bool wants(Mode mode, Mode pass) {
  return mode == Mode::kBoth || mode == pass;
}

/// The problems that the backend has to support, as if the tensors were on `device`.
std::vector<core::Problem> problems_on(const Workload& w, Mode mode, Device device) {
  std::vector<core::Problem> problems;
  if (wants(mode, Mode::kForward)) problems.push_back(w.forward_problem());
  if (wants(mode, Mode::kBackward)) problems.push_back(w.backward_problem());
  for (core::Problem& p : problems) p.q.device = device;
  return problems;
}

std::optional<std::string> lack_of_any(const core::Backend& backend, const std::vector<core::Problem>& problems) {
  for (const core::Problem& p : problems) {
    if (auto lack = core::lack_of(backend, p)) return lack;
  }
  return std::nullopt;
}

/// The first backend of the device's type that supports everything, of those that auto tries; `why` gets the complaint of
/// the last, which supports most.
const core::Backend* best_for(const std::vector<core::Problem>& problems, DeviceType type, std::string& why) {
  for (const core::Backend* backend : core::all_backends()) {
    if (backend->device != type || !backend->in_auto) continue;
    const auto lack = lack_of_any(*backend, problems);
    if (!lack) return backend;
    why = *lack;
  }
  return nullptr;
}

Choice choose_automatically(std::optional<DeviceType> device, const Workload& w, Mode mode) {
  constexpr Device kGpu = {DeviceType::kCUDA, 0};
  std::string why;
  if (device != DeviceType::kCPU) {
    if (const auto missing = cuda::missing_gpu()) {
      if (device) throw Error(ErrorCode::kMissingHardware, "--device: 'cuda', but " + *missing);
      why = "there is none here";
    } else if (const core::Backend* backend = best_for(problems_on(w, mode, kGpu), kGpu.type, why)) {
      return {backend->name, kGpu, ""};
    } else if (device) {
      throw Error(ErrorCode::kUnsupported, why);
    }
  }
  std::string cpu_why;
  const core::Backend* backend = best_for(problems_on(w, mode, Device{}), DeviceType::kCPU, cpu_why);
  if (backend == nullptr) throw Error(ErrorCode::kUnsupported, cpu_why);
  return {backend->name, Device{}, why};
}

class CpuExecutor : public Executor {
 public:
  CpuExecutor(const Workload& w, std::string compute) : work_(w), compute_(std::move(compute)) {}

  void run(Mode pass) override {
    if (pass == Mode::kForward) {
      work_.forward(compute_);
    } else {
      work_.backward(compute_);
    }
  }
  void fetch() override {}
  Sampler sampler(Mode pass) override {
    return wall_clock([this, pass] { run(pass); });
  }
  double clock_mhz() override { return 0; }

 private:
  const Workload& work_;
  std::string compute_;
};

}  // namespace

Choice choose_compute(std::string_view compute, std::optional<DeviceType> device, const Workload& w, Mode mode) {
  if (compute == "auto") return choose_automatically(device, w, mode);
  const core::Backend* backend = core::find_backend(compute);
  if (backend == nullptr || (device && backend->device != *device)) {
    std::vector<std::string_view> names = {"auto"};
    for (const core::Backend* b : core::all_backends()) {
      if (!device || b->device == *device) names.emplace_back(b->name);
    }
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--compute: '{}', allowed {}", compute, fmt::join(names, ", ")));
  }
  const Device place = {backend->device, 0};
  if (backend->device == DeviceType::kCUDA) {
    if (const auto missing = cuda::missing_gpu()) {
      throw Error(ErrorCode::kMissingHardware, fmt::format("--compute: '{}' runs on a GPU, but {}", compute, *missing));
    }
  }
  if (const auto lack = lack_of_any(*backend, problems_on(w, mode, place))) {
    throw Error(ErrorCode::kUnsupported, *lack);
  }
  return {backend->name, place, ""};
}

std::string device_name(Device device) {
  return device.type == DeviceType::kCPU ? cpu_model() : cuda::device_info(device.index).name;
}

std::unique_ptr<Executor> make_executor(const Workload& w, const Choice& choice, bool rotate) {
  if (choice.device.type == DeviceType::kCPU) return std::make_unique<CpuExecutor>(w, choice.compute);
  return std::make_unique<DeviceWorkload>(w, choice, rotate);
}

}  // namespace attend::cli
