// attend info: describes the capabilities of this machine and this build.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "commands/commands.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/driver/driver.hpp"
#include "cuda/driver/found_libraries.hpp"
#include "cuda/jit/sources.hpp"
#include "cuda/launch/family.hpp"
#include "process/system.hpp"

namespace attend::cli {
namespace {

const char* device_type_name(DeviceType type) {
  return type == DeviceType::kCPU ? "cpu" : "cuda";
}

/// Returns the GPUs of this machine. The list is empty if there is no driver.
std::vector<cuda::DeviceInfo> gpus() {
  std::vector<cuda::DeviceInfo> list;
  try {
    for (int index = 0; index < cuda::device_count(); ++index) list.push_back(cuda::device_info(index));
  } catch (const Error&) {
    // Without a driver, the command reports that there is no GPU.
  }
  return list;
}

nlohmann::ordered_json library_json(const cuda::FoundLibrary& library) {
  if (!library.lack.empty()) return {{"lack", library.lack}};
  return {{"path", library.path}, {"version", library.version}};
}

std::string library_text(const cuda::FoundLibrary& library) {
  return library.lack.empty() ? fmt::format("{}, {}", library.version, library.path) : "none: " + library.lack;
}

nlohmann::ordered_json gpu_json(const cuda::DeviceInfo& gpu) {
  nlohmann::ordered_json object = {{"type", "cuda"},
                                   {"index", gpu.index},
                                   {"name", gpu.name},
                                   {"memory_bytes", gpu.memory_bytes},
                                   {"compute_capability", fmt::format("{}.{}", gpu.major, gpu.minor)},
                                   {"multiprocessors", gpu.num_multiprocessors},
                                   {"driver", cuda::driver().version}};
  const auto lack = cuda::unusable_gpu(gpu.index);
  object["supported"] = !lack;
  if (lack) {
    object["lack"] = *lack;
  } else {
    object["backends"] = cuda::families_on(gpu.arch());
  }
  return object;
}

void print_gpu(const cuda::DeviceInfo& gpu) {
  constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
  fmt::print("  {}: {}, compute capability {}.{}, {} multiprocessors, {:.1f} GiB\n", gpu.index, gpu.name, gpu.major,
             gpu.minor, gpu.num_multiprocessors, static_cast<double>(gpu.memory_bytes) / kGiB);
  if (const auto lack = cuda::unusable_gpu(gpu.index)) {
    fmt::print("     unsupported: {}\n", *lack);
  } else {
    fmt::print("     can use: {}\n", fmt::join(cuda::families_on(gpu.arch()), ", "));
  }
}

nlohmann::ordered_json info_json() {
  nlohmann::ordered_json object = {
      {"version", version()},     {"cpu", cpu_model()},      {"simd", cpu_simd_target()},     {"bf16", cpu_bf16_unit()},
      {"threads", cpu_threads()}, {"cores", usable_cores()}, {"memory_bytes", memory_bytes()}};
  object["kernel_digest"] = cuda::kernel_digest();
  object["devices"] = {{{"type", "cpu"}, {"index", 0}, {"name", cpu_model()}, {"memory_bytes", memory_bytes()}}};
  for (const cuda::DeviceInfo& gpu : gpus()) object["devices"].push_back(gpu_json(gpu));
  object["libcuda"] = library_json(cuda::found_libcuda());
  object["nvrtc"] = library_json(cuda::found_nvrtc());
  for (const BackendInfo& backend : backends()) {
    object["backends"].push_back({{"name", backend.name},
                                  {"description", backend.description},
                                  {"device", device_type_name(backend.device)},
                                  {"has_backward", backend.has_backward}});
  }
  return object;
}

}  // namespace

int info(const InfoOptions& options) {
  if (options.json) {
    fmt::print("{}\n", info_json().dump(2));
    return kExitDone;
  }
  constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
  // These calls are made before anything is printed, because they may throw.
  const std::string simd = fmt::format("{}, bfloat16 by {}", cpu_simd_target(), cpu_bf16_unit());
  fmt::print("attend    {}\n", version());
  fmt::print("CPU       {}\n", cpu_model());
  fmt::print("SIMD      {}\n", simd);
  fmt::print("threads   {} (of {} cores)\n", cpu_threads(), usable_cores());
  fmt::print("memory    {:.1f} GiB\n", static_cast<double>(memory_bytes()) / kGiB);
  const std::vector<cuda::DeviceInfo> list = gpus();
  fmt::print("GPUs      {}\n", list.empty() ? "none" : std::to_string(list.size()));
  for (const cuda::DeviceInfo& gpu : list) print_gpu(gpu);
  fmt::print("libcuda   {}\n", library_text(cuda::found_libcuda()));
  fmt::print("NVRTC     {}\n", library_text(cuda::found_nvrtc()));
  fmt::print("kernels   {}\n", cuda::kernel_digest());
  fmt::print("backends  (--compute NAME; auto picks the one with the lowest estimated time)\n");
  for (const BackendInfo& backend : backends()) {
    fmt::print("  {:<18} {:<5} {}{}\n", backend.name, device_type_name(backend.device), backend.description,
               backend.has_backward ? "" : " (forward only)");
  }
  return kExitDone;
}

}  // namespace attend::cli
