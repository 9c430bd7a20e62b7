#include "workload/executor.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "cuda/driver/device.hpp"
#include "dispatch/dispatch.hpp"
#include "process/system.hpp"
#include "workload/device_workload.hpp"

namespace attend::cli {
namespace {

bool wants(Mode mode, Mode pass) {
  return mode == Mode::kBoth || mode == pass;
}

/// Returns the problems of the passes, which the backend must support. The tensors have addresses in host memory, but
/// their device field is `device`.
std::vector<core::Problem> problems_on(const Workload& w, Mode mode, Device device) {
  std::vector<core::Problem> problems;
  if (wants(mode, Mode::kForward)) problems.push_back(w.forward_problem());
  if (wants(mode, Mode::kBackward)) problems.push_back(w.backward_problem());
  for (core::Problem& p : problems) p.q.device = device;
  return problems;
}

/// Chooses a backend for each problem with the library's function.
Choice choose_each(std::string_view compute, const std::vector<core::Problem>& problems, Device device) {
  Choice choice = {"", "", device, ""};
  for (const core::Problem& p : problems) {
    (p.is_backward ? choice.backward : choice.forward) = dispatch::choose(compute, p).name;
  }
  const core::Backend* backward = dispatch::find_backend(choice.backward);
  if (choice.forward.empty() && backward != nullptr && !backward->forward) choice.forward = "auto";
  return choice;
}

Choice choose_automatically(std::optional<DeviceType> device, const Workload& w, Mode mode) {
  constexpr Device kGpu = {DeviceType::kCUDA, 0};
  std::string why;
  if (device != DeviceType::kCPU) {
    if (const auto missing = cuda::missing_gpu()) {
      if (device) throw Error(ErrorCode::kMissingHardware, "--device: 'cuda', but " + *missing);
      why = "none is visible";
    } else if (const auto unusable = cuda::unusable_gpu(kGpu.index)) {
      if (device) throw Error(ErrorCode::kMissingHardware, "--device: 'cuda', but " + *unusable);
      why = *unusable;
    } else {
      try {
        return choose_each("auto", problems_on(w, mode, kGpu), kGpu);
      } catch (const Error& error) {
        if (device || error.code() != ErrorCode::kUnsupported) throw;
        why = error.what();
      }
    }
  }
  Choice choice = choose_each("auto", problems_on(w, mode, Device{}), Device{});
  choice.note = why;
  return choice;
}

class CpuExecutor : public Executor {
 public:
  CpuExecutor(const Workload& w, Choice choice) : work_(w), choice_(std::move(choice)) {}

  void run(Mode pass) override {
    if (pass == Mode::kForward) {
      work_.forward(choice_.compute(pass));
    } else {
      work_.backward(choice_.compute(pass));
    }
  }
  void fetch() override {}
  Sampler sampler(Mode pass) override {
    return wall_clock([this, pass] { run(pass); });
  }
  double clock_mhz() override { return 0; }

 private:
  const Workload& work_;
  Choice choice_;
};

}  // namespace

Choice choose_compute(std::string_view compute, std::optional<DeviceType> device, const Workload& w, Mode mode) {
  if (compute == "auto") return choose_automatically(device, w, mode);
  const core::Backend* backend = dispatch::find_backend(compute);
  if (backend == nullptr || (device && backend->device != *device)) {
    std::vector<std::string_view> names = {"auto"};
    for (const core::Backend* b : dispatch::all_backends()) {
      if (!device || b->device == *device) names.emplace_back(b->name);
    }
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--compute: '{}', allowed {}", compute, fmt::join(names, ", ")));
  }
  const Device place = {backend->device, 0};
  if (backend->device == DeviceType::kCUDA) {
    if (const auto lack = cuda::unusable_gpu(place.index)) {
      throw Error(ErrorCode::kMissingHardware, fmt::format("--compute: '{}' runs on a GPU, but {}", compute, *lack));
    }
  }
  return choose_each(backend->name, problems_on(w, mode, place), place);
}

DeviceType device_of(const std::vector<std::string>& computes, std::optional<DeviceType> device) {
  if (device) return *device;
  const auto is_on_gpu = [](const std::string& compute) {
    const core::Backend* backend = dispatch::find_backend(compute);
    return backend == nullptr ? !cuda::missing_gpu() && !cuda::unusable_gpu(0) : backend->device == DeviceType::kCUDA;
  };
  return std::all_of(computes.begin(), computes.end(), is_on_gpu) ? DeviceType::kCUDA : DeviceType::kCPU;
}

std::string device_name(Device device) {
  return device.type == DeviceType::kCPU ? cpu_model() : cuda::device_info(device.index).name;
}

std::unique_ptr<Executor> make_executor(const Workload& w, const Choice& choice, bool rotate) {
  if (choice.device.type == DeviceType::kCPU) return std::make_unique<CpuExecutor>(w, choice);
  return std::make_unique<DeviceWorkload>(w, choice, rotate);
}

}  // namespace attend::cli
