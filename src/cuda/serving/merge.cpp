#include "cuda/serving/merge.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "core/problem_checks.hpp"
#include "cuda/driver/stream.hpp"
#include "cuda/launch/merge_step.hpp"
#include "cuda/launch/rows_args.hpp"
#include "cuda/serving/device_of.hpp"
#include "cuda/serving/kernel_cache.hpp"
#include "kernels/serving/merge_args.cuh"

namespace attend::cuda {
namespace {

static_assert(kMostMergeColumns >= core::kMaxHeadDim);

enum class Step : std::int32_t { kMerge, kStoreStates };

struct Variant {
  Step step;
};

KernelSpec spec_of(Step step, const char* arch) {
  KernelSpec spec = merge_step_spec(arch);
  if (step == Step::kMerge) return spec;
  spec.name = spec.function = "store_states";
  spec.args = StoreStatesArgs::kTypeName;
  return spec;
}

const LoadedVariant& loaded(Step step, const DeviceInfo& device) {
  // Never destroyed, because launches may continue during process exit.
  static auto* kernels = new KernelCache<Variant>();
  return kernels->get(device, {step}, [step](const Arch& arch) { return spec_of(step, arch.target); });
}

MergeState state_args(const PartialState& state) {
  const Tensor lse = core::input_view(state.lse);
  return {.o = rows_args(core::input_view(state.o)),
          .lse = static_cast<const float*>(lse.data),
          .lse_stride = core::strides_of(lse)};
}

/// Writes the states to device memory in stream order. The states are passed as kernel parameters, because a captured
/// graph stores the parameters. A memory copy from the host would read host memory each time the graph runs.
void store_states(const core::MergeProblem& p, const DeviceInfo& device, MergeState* to, StreamHandle stream) {
  const LoadedVariant& kernel = loaded(Step::kStoreStates, device);
  for (std::size_t first = 0; first < p.states.size(); first += kMergeStatesOfLaunch) {
    const auto states = p.states.subspan(first, std::min<std::size_t>(kMergeStatesOfLaunch, p.states.size() - first));
    StoreStatesArgs args = {};
    args.to = to + first;
    args.num_states = static_cast<uint32>(states.size());
    std::transform(states.begin(), states.end(), args.states, state_args);
    kernel.launch({}, &args, stream);
  }
}

MergeArgs args_of(const core::MergeProblem& p) {
  MergeArgs args = {};
  args.o = rows_args(p.o);
  if (p.lse) {
    args.lse = static_cast<float*>(p.lse->data);
    args.lse_stride = core::strides_of(*p.lse);
  }
  if (p.sinks) {
    args.sinks = p.sinks->data;
    args.sink_batch_stride = p.sinks->stride[0];
    args.sink_head_stride = p.sinks->stride[1];
    args.sink_element = static_cast<uint32>(stored_element(p.sinks->dtype));
  }
  args.num_rows = p.o.shape[0] * p.o.shape[1] * p.o.shape[2];
  args.seqlen = p.o.shape[2];
  args.num_heads = static_cast<uint32>(p.o.shape[1]);
  args.num_states = static_cast<uint32>(p.states.size());
  args.head_dim_v = static_cast<uint32>(p.o.shape[3]);
  args.lse_base2 = p.lse_base2 ? 1U : 0U;
  return args;
}

}  // namespace

void merge(const core::MergeProblem& p, Stream stream) {
  const DeviceInfo& device = device_of("o", p.o);
  if (p.states.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
    core::refuse("states: {}, allowed at most 2^31 - 1", p.states.size());
  }
  MergeArgs args = args_of(p);
  if (args.num_rows == 0) return;
  const ContextGuard guard(device.index);
  auto* const handle = static_cast<StreamHandle>(stream);
  const bool is_many = p.states.size() > kMergeStatesOfLaunch;
  const LoadedVariant& kernel = loaded(Step::kMerge, device);
  const Scratch scratch(is_many ? p.states.size() * sizeof(MergeState) : 0, handle);
  if (is_many) {
    auto* in_memory = reinterpret_cast<MergeState*>(scratch.data());
    store_states(p, device, in_memory, handle);
    args.in_memory = in_memory;
  } else {
    std::transform(p.states.begin(), p.states.end(), args.states, state_args);
  }
  kernel.launch({.x = static_cast<unsigned>(merge_step_blocks(args.num_rows))}, &args, handle);
}

std::vector<KernelSpec> merge_specs(const char* arch) {
  return {spec_of(Step::kMerge, arch), spec_of(Step::kStoreStates, arch)};
}

}  // namespace attend::cuda
