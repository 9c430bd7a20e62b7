#include "cuda/launch/launcher.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "core/environment.hpp"
#include "core/problem_checks.hpp"
#include "cuda/driver/driver.hpp"
#include "cuda/driver/stream.hpp"
#include "cuda/jit/jit.hpp"
#include "cuda/launch/custom_score_text.hpp"
#include "cuda/launch/variant_cache.hpp"

namespace attend::cuda {
namespace {

void check_grids(const Family& family, const core::Problem& p, const Choice& choice) {
  for (const StepShape& step : std::span(choice.steps).first(choice.num_steps)) {
    if (step.blocks <= std::numeric_limits<std::int32_t>::max()) continue;
    throw Error(ErrorCode::kUnsupported,
                fmt::format("q: {} sequences, {} heads, seqlen_q {}: {} blocks, compute '{}' allows 2^31 - 1: call it "
                            "for parts of the batch",
                            p.num_sequences, p.num_heads_q, p.max_seqlen_q, step.blocks, family.name));
  }
}

/// If ATTEND_CHECK=1 is set, copies cu_seqlens to the host, waits for the stream and checks the values.
void check_varlen(const core::Problem& p, StreamHandle stream) {
  constexpr std::string_view kAllowed[] = {"0", "1"};
  static const bool wanted = core::environment_choice("ATTEND_CHECK", kAllowed) == std::size_t{1};
  if (!wanted || !p.varlen) return;
  const auto fetch = [&](const std::int32_t* offsets) {
    std::vector<std::int32_t> host(static_cast<std::size_t>(p.num_sequences) + 1);
    check_call(driver().copy_to_host(host.data(), reinterpret_cast<DevicePointer>(offsets),
                                     host.size() * sizeof(std::int32_t), stream),
               "cuMemcpyDtoHAsync", "reading cu_seqlens for ATTEND_CHECK=1");
    synchronize(stream);
    return host;
  };
  core::check_varlen_offsets(p, fetch(p.varlen->cu_seqlens_q).data(), fetch(p.varlen->cu_seqlens_k).data(),
                             {p.q.shape[2], p.k.shape[2]});
}

/// Returns the address of the caller's workspace, or 0 if the caller gave none or no workspace is needed.
DevicePointer callers_workspace(const core::Problem& p, std::size_t wanted) {
  if (p.workspace.data == nullptr || wanted == 0) return 0;
  const auto address = reinterpret_cast<DevicePointer>(p.workspace.data);
  if (p.workspace.bytes < wanted) core::refuse("workspace: {} bytes, allowed at least {}", p.workspace.bytes, wanted);
  if (address % Workspace::kAlignment != 0) {
    core::refuse("workspace: address {}, allowed multiples of {} bytes", p.workspace.data, Workspace::kAlignment);
  }
  return address;
}

}  // namespace

std::span<const LoadedKernel> loaded_kernels(const Family& family, const Variant& variant, const DeviceInfo& device,
                                             const core::CustomScore* custom_score) {
  // Never destroyed, because launches may continue during process exit.
  static auto* cache = new VariantCache<std::vector<LoadedKernel>>();
  return cache->get(&family, device.index, variant, [&] {
    const ContextGuard guard(device.index);
    const RelaxedCapture relaxed;  // keeps loading out of a CUDA graph that this thread may be capturing
    std::vector<LoadedKernel> kernels;
    for (KernelSpec& spec : family.kernels(variant, device.arch())) {
      if (custom_score != nullptr) set_custom_score(spec, *custom_score);
      kernels.push_back({Jit::instance().load(spec, device.index), spec.args, static_cast<unsigned>(threads_of(spec)),
                         spec.dynamic_smem_bytes});
    }
    return kernels;
  });
}

void launch(const Family& family, const core::Problem& p, const Choice& choice, Stream stream) {
  const DeviceInfo& device = device_info(p.q.device.index);
  check_grids(family, p, choice);
  const ContextGuard guard(device.index);
  auto* const handle = static_cast<StreamHandle>(stream);
  check_varlen(p, handle);
  // Zeroes all gradients of captures first. If no score reads a capture, no kernel writes its gradient.
  for (const core::CapturedGradient& g : p.captured_gradients) {
    std::size_t bytes = sizeof(float);
    for (const std::int64_t extent : g.gradient.shape) bytes *= static_cast<std::size_t>(extent);
    clear(reinterpret_cast<DevicePointer>(g.gradient.data), bytes, handle, "a gradient of captures");
  }
  const auto has_work = [](const StepShape& step) { return step.blocks > 0; };
  if (std::none_of(choice.steps.begin(), choice.steps.end(), has_work)) return;
  const std::span<const LoadedKernel> kernels = loaded_kernels(family, choice.variant, device, p.custom_score);
  const Workspace workspace = family.workspace(p, choice);
  const DevicePointer given = callers_workspace(p, workspace.bytes());
  const Scratch scratch(given != 0 ? 0 : workspace.bytes(), handle);
  const DevicePointer memory = given != 0 ? given : scratch.data();
  for (std::size_t i = 0; i < workspace.regions().size(); ++i) {
    const Workspace::Region& region = workspace.regions()[i];
    if (!region.zeroed || region.bytes == 0) continue;
    clear(memory + workspace.offset(i), static_cast<std::size_t>(region.bytes), handle, region.name);
  }
  family.launch({p, choice, kernels, workspace, memory, handle});
}

void Launch::run(std::size_t step, const char* type, void* args) const {
  const StepShape& shape = choice.steps.at(step);
  if (shape.blocks == 0) return;
  const LoadedKernel& loaded = kernels[step];
  if (loaded.args != type) {
    throw Error(ErrorCode::kInternal, fmt::format("{}: takes {}, got {}", loaded.kernel->name(), loaded.args, type));
  }
  void* parameters[] = {args};
  loaded.kernel->launch({.grid = {static_cast<unsigned>(shape.blocks)},
                         .block = {loaded.threads},
                         .cluster = {shape.cluster},
                         .dynamic_smem_bytes = loaded.smem_bytes,
                         .overlaps_previous = shape.overlaps_previous},
                        parameters, stream);
}

}  // namespace attend::cuda
