// attend info: what this machine and this build can do.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "commands.hpp"
#include "system.hpp"

namespace attend::cli {
namespace {

const char* device_name(DeviceType type) {
  return type == DeviceType::kCPU ? "cpu" : "cuda";
}

nlohmann::ordered_json info_json() {
  nlohmann::ordered_json object = {{"version", version()},      {"cpu", cpu_model()},
                                   {"simd", cpu_simd_target()}, {"threads", cpu_threads()},
                                   {"cores", usable_cores()},   {"memory_bytes", memory_bytes()}};
  object["devices"] = {{{"type", "cpu"}, {"index", 0}, {"name", cpu_model()}, {"memory_bytes", memory_bytes()}}};
  for (const BackendInfo& backend : backends()) {
    object["backends"].push_back({{"name", backend.name},
                                  {"description", backend.description},
                                  {"device", device_name(backend.device)},
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
  fmt::print("attend    {}\n", version());
  fmt::print("CPU       {}\n", cpu_model());
  fmt::print("SIMD      {}\n", cpu_simd_target());
  fmt::print("threads   {} (of {} cores)\n", cpu_threads(), usable_cores());
  fmt::print("memory    {:.1f} GiB\n", static_cast<double>(memory_bytes()) / kGiB);
  fmt::print("devices   cpu\n");
  fmt::print("backends  (--compute NAME; auto takes the first)\n");
  for (const BackendInfo& backend : backends()) {
    fmt::print("  {:<10} {:<5} {}{}\n", backend.name, device_name(backend.device), backend.description,
               backend.has_backward ? "" : " (forward only)");
  }
  return kExitDone;
}

}  // namespace attend::cli
