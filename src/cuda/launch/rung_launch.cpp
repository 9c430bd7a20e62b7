// From a problem to launches: which variant, which grid, which arguments.
#include <fmt/format.h>

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "cuda/driver/device.hpp"
#include "cuda/driver/kernel.hpp"
#include "cuda/driver/stream.hpp"
#include "cuda/jit/jit.hpp"
#include "cuda/launch/rung.hpp"
#include "kernels/common/args.cuh"
#include "kernels/common/work.cuh"

namespace attend::cuda {
namespace {

enum class Pass : std::uint8_t { kForward, kBackward };

struct LoadedStep {
  Step step;
  std::shared_ptr<const Kernel> kernel;
};

using Plan = std::vector<LoadedStep>;

RungConfig config_of(const Rung& rung, const core::Problem& p) {
  constexpr int kWideLoad = 16;
  constexpr int kTallTile = 128;
  constexpr int kTilesOfMany = 4;  // for each multiprocessor
  const DeviceInfo& device = device_info(p.q.device.index);
  const std::int64_t tall_tiles = num_tiles(p.max_seqlen_q, kTallTile) * p.num_sequences * p.num_heads_q;
  return {.dtype = p.q.dtype,
          .head_dim = static_cast<int>(p.head_dim),
          .head_dim_v = static_cast<int>(p.head_dim_v),
          .mask = p.window_right == 0 ? MaskKind::kCausal : MaskKind::kFull,
          .negate_scores = rung.folds_scale && p.scale < 0,
          .max_smem_per_block = device.max_smem_per_block,
          .aligned = rung.alignment >= kWideLoad || is_aligned(p, kWideLoad),
          .many_rows = tall_tiles >= std::int64_t{kTilesOfMany} * device.num_multiprocessors};
}

/// The plans that were made so far. A look-up allocates nothing: it is on the path of every launch.
class PlanCache {
 public:
  const Plan& get(const Rung& rung, Pass pass, const RungConfig& config, int device) {
    const Key key = {&rung,
                     static_cast<std::uint64_t>(device) << 32 | static_cast<std::uint64_t>(config.head_dim) << 16 |
                         static_cast<std::uint64_t>(config.head_dim_v),
                     static_cast<std::uint64_t>(config.dtype) << 8 | static_cast<std::uint64_t>(config.mask) << 4 |
                         static_cast<std::uint64_t>(config.many_rows) << 3 | static_cast<std::uint64_t>(pass) << 2 |
                         static_cast<std::uint64_t>(config.negate_scores) << 1 |
                         static_cast<std::uint64_t>(config.aligned)};
    {
      const std::shared_lock lock(mutex_);
      if (const auto found = plans_.find(key); found != plans_.end()) return *found->second;
    }
    auto plan = std::make_unique<const Plan>(make(rung, pass, config, device));
    const std::unique_lock lock(mutex_);
    return *plans_.try_emplace(key, std::move(plan)).first->second;
  }

 private:
  struct Key {
    const Rung* rung;
    std::uint64_t sizes, kinds;
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    std::size_t operator()(const Key& key) const noexcept {
      constexpr std::uint64_t kMix = 0x9E3779B97F4A7C15U;  // 2^64 / golden ratio
      return ((std::bit_cast<std::uint64_t>(key.rung) * kMix ^ key.sizes) * kMix ^ key.kinds) * kMix;
    }
  };

  static Plan make(const Rung& rung, Pass pass, const RungConfig& config, int device) {
    Plan plan;
    for (Step& step : pass == Pass::kForward ? rung.forward(config) : rung.backward(config)) {
      const KernelSpec spec = step_spec(rung, step, config, device_info(device).arch());
      plan.push_back({std::move(step), Jit::instance().load(spec, device)});
    }
    return plan;
  }

  std::shared_mutex mutex_;
  std::unordered_map<Key, std::unique_ptr<const Plan>, Hash> plans_;  // never erased: references stay good
};

const Plan& plan_of(const Rung& rung, Pass pass, const core::Problem& p) {
  static auto* cache = new PlanCache();  // launches may go on while the process ends
  return cache->get(rung, pass, config_of(rung, p), p.q.device.index);
}

TensorStrides strides(const Tensor& t) {
  return {t.stride[0], t.stride[1], t.stride[2]};
}

/// Kernels that fold the scale into the exponent multiply masked scores, which are -inf, by it: it must not be 0.
float kernel_scale(const Rung& rung, double scale) {
  const auto value = static_cast<float>(scale);
  return rung.folds_scale ? std::max(std::abs(value), std::numeric_limits<float>::min()) : value;
}

ForwardArgs forward_args(const Rung& rung, const core::Problem& p, DevicePointer workspace) {
  return {.q = p.q.data,
          .k = p.k.data,
          .v = p.v.data,
          .o = p.o.data,
          .lse = p.lse ? static_cast<float*>(p.lse->data) : nullptr,
          .workspace = reinterpret_cast<void*>(workspace),  // NOLINT(performance-no-int-to-ptr)
          .q_stride = strides(p.q),
          .k_stride = strides(p.k),
          .v_stride = strides(p.v),
          .o_stride = strides(p.o),
          .lse_stride = p.lse ? strides(*p.lse) : TensorStrides{},
          .seqlen_q = p.max_seqlen_q,
          .seqlen_k = p.max_seqlen_k,
          .batch = static_cast<uint32>(p.num_sequences),
          .num_heads_q = static_cast<uint32>(p.num_heads_q),
          .num_heads_k = static_cast<uint32>(p.num_heads_k),
          .scale = kernel_scale(rung, p.scale)};
}

BackwardArgs backward_args(const Rung& rung, const core::Problem& p, DevicePointer workspace) {
  return {.dout = p.dout.data,
          .q = p.q.data,
          .k = p.k.data,
          .v = p.v.data,
          .o = p.o.data,
          .lse = static_cast<const float*>(p.lse->data),
          .dlse = p.dlse ? static_cast<const float*>(p.dlse->data) : nullptr,
          .dq = p.dq.data,
          .dk = p.dk.data,
          .dv = p.dv.data,
          .workspace = reinterpret_cast<void*>(workspace),  // NOLINT(performance-no-int-to-ptr)
          .dout_stride = strides(p.dout),
          .q_stride = strides(p.q),
          .k_stride = strides(p.k),
          .v_stride = strides(p.v),
          .o_stride = strides(p.o),
          .lse_stride = strides(*p.lse),
          .dlse_stride = p.dlse ? strides(*p.dlse) : TensorStrides{},
          .dq_stride = strides(p.dq),
          .dk_stride = strides(p.dk),
          .dv_stride = strides(p.dv),
          .seqlen_q = p.max_seqlen_q,
          .seqlen_k = p.max_seqlen_k,
          .batch = static_cast<uint32>(p.num_sequences),
          .num_heads_q = static_cast<uint32>(p.num_heads_q),
          .num_heads_k = static_cast<uint32>(p.num_heads_k),
          .scale = kernel_scale(rung, p.scale),
          .gradient_scale = static_cast<float>(p.scale),
          .unused = 0};
}

/// The map of a tensor whose tiles are `rows` x head_dim: see ForwardTmaArgs. `somewhere`: any address of the device's,
/// for a tensor without elements, which may have none.
TensorMapArg tile_map(const Tensor& t, int rows, const void* somewhere) {
  constexpr std::uint64_t kPanel = 64;  // elements: 128 bytes, what the swizzle works on
  const auto bytes = static_cast<std::uint64_t>(dtype_bytes(t.dtype));
  const auto size = [&](int dim) { return static_cast<std::uint64_t>(std::max<std::int64_t>(1, t.shape[dim])); };
  // A dimension of one element is never stepped along: any legal stride will do where the tensor's own is not one.
  const auto stride = [&](int dim) {
    return t.shape[dim] > 1 ? static_cast<std::uint64_t>(t.stride[dim]) * bytes : kPanel * bytes;
  };
  const std::uint64_t panels = size(3) / kPanel;
  const TensorMapSpec spec = {.type = t.dtype == DType::kF16 ? TensorMapType::kFloat16 : TensorMapType::kBfloat16,
                              .rank = 5,
                              .address = reinterpret_cast<DevicePointer>(t.numel() == 0 ? somewhere : t.data),
                              .dims = {kPanel, size(2), panels, size(1), size(0)},
                              .strides = {stride(2), kPanel * bytes, stride(1), stride(0)},
                              .box = {static_cast<std::uint32_t>(kPanel), static_cast<std::uint32_t>(rows),
                                      static_cast<std::uint32_t>(panels), 1, 1}};
  return std::bit_cast<TensorMapArg>(encode_tensor_map(spec));
}

ForwardTmaArgs forward_tma_args(const Step& step, const core::Problem& p, const ForwardArgs& base) {
  return {tile_map(p.q, step.block_m, p.q.data), tile_map(p.k, step.block_n, p.q.data),
          tile_map(p.v, step.block_n, p.q.data), base};
}

std::int64_t blocks_of(const Step& step, const core::Problem& p) {
  const std::int64_t row_tiles = num_tiles(p.max_seqlen_q, step.block_m);
  const std::int64_t key_tiles = num_tiles(p.max_seqlen_k, step.block_n);
  const std::int64_t query_heads = p.num_sequences * p.num_heads_q;
  switch (step.grid) {
    case Grid::kRowTiles:
      return row_tiles * query_heads;
    case Grid::kKeyTiles:
      return key_tiles * p.num_sequences * p.num_heads_k;
    case Grid::kScoreTiles:
      return row_tiles * key_tiles * query_heads;
    case Grid::kQueryHeads:
      return query_heads;
  }
  return 0;
}

void launch_step(const Rung& rung, const LoadedStep& loaded, const core::Problem& p, void* args, StreamHandle stream) {
  const std::int64_t blocks = blocks_of(loaded.step, p);
  if (blocks == 0) return;
  if (blocks > std::numeric_limits<std::int32_t>::max()) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("q: {} blocks of {} rows, compute '{}' allows 2^31 - 1: call it for parts of the batch",
                            blocks, loaded.step.block_m, rung.name));
  }
  void* parameters[] = {args};
  loaded.kernel->launch({.grid = {static_cast<unsigned>(blocks)},
                         .block = {static_cast<unsigned>(loaded.step.threads)},
                         .dynamic_smem_bytes = loaded.step.smem_bytes},
                        parameters, stream);
}

}  // namespace

void rung_forward(const Rung& rung, const core::Problem& p, Stream stream) {
  const ContextGuard guard(p.q.device.index);
  const Plan& plan = plan_of(rung, Pass::kForward, p);
  auto* const handle = static_cast<StreamHandle>(stream);
  const Scratch workspace(rung.forward_workspace == nullptr ? 0 : rung.forward_workspace(p), handle);
  ForwardArgs args = forward_args(rung, p, workspace.data());
  for (const LoadedStep& loaded : plan) {
    if (blocks_of(loaded.step, p) == 0) continue;  // no address for a map either
    if (loaded.step.args == StepArgs::kForwardTma) {
      ForwardTmaArgs tma_args = forward_tma_args(loaded.step, p, args);
      launch_step(rung, loaded, p, &tma_args, handle);
    } else {
      launch_step(rung, loaded, p, &args, handle);
    }
  }
}

void rung_backward(const Rung& rung, const core::Problem& p, Stream stream) {
  const ContextGuard guard(p.q.device.index);
  const Plan& plan = plan_of(rung, Pass::kBackward, p);
  auto* const handle = static_cast<StreamHandle>(stream);
  const Scratch workspace(rung.backward_workspace == nullptr ? 0 : rung.backward_workspace(p), handle);
  BackwardArgs args = backward_args(rung, p, workspace.data());
  for (const LoadedStep& loaded : plan) launch_step(rung, loaded, p, &args, handle);
}

}  // namespace attend::cuda
