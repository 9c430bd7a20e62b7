// The list of kernel families, and an adapter that makes a backend for the dispatcher from each family.
#include "cuda/launch/families.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "cuda/launch/backends.hpp"
#include "cuda/launch/launcher.hpp"

namespace attend::cuda {
namespace {

/// Returns the GPU of the problem. @throws Error if the GPU does not exist. The message names the argument.
const DeviceInfo& device_of(const core::Problem& p) {
  try {
    return device_info(p.q.device.index);
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("q: on CUDA device {}, but {}", p.q.device.index, error.what()));
  }
}

std::string device_text(const core::Problem& p) {
  const DeviceInfo& device = device_of(p);
  return fmt::format("{}, compute capability {}.{}", device.name, device.major, device.minor);
}

std::string variant_text(const Family& family, const core::Problem& p, const Choice& choice) {
  std::string text = fmt::format("{} head_dim={}:{}", dtype_name(p.q.dtype), p.head_dim, p.head_dim_v);
  for (const Tunable& tunable : family.tunables(choice.variant)) {
    text += fmt::format(" {}={}", tunable.name, choice.variant.ints()[tunable.at]);
  }
  return text;
}

Candidate explain(const Family& family, const core::Problem& p) {
  const DeviceInfo& device = device_of(p);
  const Choice choice = family.choose(p, device);
  Candidate candidate = {.compute = family.name,
                         .why = choice.why,
                         .variant = variant_text(family, p, choice),
                         .estimated_us = choice.seconds * 1e6,
                         .workspace_bytes = family.workspace(p, choice).bytes()};
  const std::vector<KernelSpec> specs = family.kernels(choice.variant, device.arch());
  for (std::size_t i = 0; i < choice.num_steps; ++i) {
    const StepShape& step = choice.steps.at(i);
    candidate.steps.push_back(fmt::format("{}: {} blocks{} of {} threads, {} bytes of shared memory", specs[i].name,
                                          step.blocks,
                                          step.cluster > 1 ? fmt::format(" in clusters of {}", step.cluster) : "",
                                          threads_of(specs[i]), specs[i].dynamic_smem_bytes));
  }
  return candidate;
}

core::Backend backend_of(const Family& family) {
  const auto chosen = [&family](const core::Problem& p) { return family.choose(p, device_of(p)); };
  const auto run = [&family, chosen](const core::Problem& p, Stream stream) { launch(family, p, chosen(p), stream); };
  core::Backend backend = {.name = family.name, .description = family.description, .device = DeviceType::kCUDA};
  if (family.has_forward) backend.forward = run;
  if (family.has_backward) backend.backward = run;
  backend.in_auto = family.in_auto;
  backend.is_fallback = family.is_fallback;
  backend.dtypes = family.dtypes;
  backend.unsupported = [&family](const core::Problem& p) -> std::optional<std::string> {
    const auto lack = family.lack(p, device_of(p));
    return lack ? std::optional(core::lack_text(*lack, family.name, p)) : std::nullopt;
  };
  backend.takes_options = [&family](const core::Problem& p) {
    const Arch* arch = device_of(p).known_arch();
    return arch != nullptr && family.supports(*arch) && !option_lack(p, family.takes);
  };
  backend.estimate = [&family, chosen](const core::Problem& p) {
    return family.lack(p, device_of(p)) ? std::numeric_limits<double>::infinity() : chosen(p).seconds;
  };
  backend.workspace_bytes = [&family, chosen](const core::Problem& p) {
    return family.workspace(p, chosen(p)).bytes();
  };
  backend.prepare = [&family, chosen](const core::Problem& p) {
    (void)loaded_kernels(family, chosen(p).variant, device_of(p), p.custom_score);
  };
  backend.explain = [&family](const core::Problem& p) { return explain(family, p); };
  return backend;
}

}  // namespace

std::optional<core::Lack> Family::lack(const core::Problem& p, const DeviceInfo& device) const {
  if (p.is_backward ? !has_backward : !has_forward) {
    return core::Lack{nullptr, "pass", p.is_backward ? "backward" : "forward", p.is_backward ? "forward" : "backward"};
  }
  const Arch* arch = device.known_arch();
  if (arch == nullptr || !supports(*arch)) {
    return core::Lack{nullptr, "device", device_text, "GPUs with the instructions that it needs"};
  }
  if (auto lack = option_lack(p, takes)) return lack;
  if (auto lack = dtype_lack(p, dtypes)) return lack;
  return lack_of_its_own(p, device);
}

std::span<const Family* const> families() {
  static const auto* list = [] {
    // Never destroyed, because launches may continue during process exit.
    auto* all = new std::vector<const Family*>();
    for (const Rung& rung : ladder()) all->push_back(rung_family(rung).release());
    for (const auto family :
         {sm80_forward_family, sm80_backward_family, sm90_backward_family, sm90_backward_panels_family,
          sm90_forward_family, sm90_f32_forward_family, sm90_fp8_forward_family, simt_family}) {
      all->push_back(family().release());
    }
    return all;
  }();
  return *list;
}

const Family* find_family(std::string_view name) {
  const auto list = families();
  const auto found = std::find_if(list.begin(), list.end(), [&](const Family* family) { return name == family->name; });
  return found == list.end() ? nullptr : *found;
}

std::vector<std::string> families_on(const Arch& arch) {
  std::vector<std::string> names;
  for (const Family* family : families()) {
    if (family->supports(arch)) names.emplace_back(family->name);
  }
  return names;
}

std::span<const core::Backend> backends() {
  static const auto* list = [] {
    auto* all = new std::vector<core::Backend>();
    const auto add = [all](bool fallbacks) {
      const std::vector<const Family*> last_first(families().rbegin(), families().rend());
      for (const Family* family : last_first) {
        if (family->is_fallback == fallbacks) all->push_back(backend_of(*family));
      }
    };
    add(false);
    add(true);
    return all;
  }();
  return *list;
}

}  // namespace attend::cuda
