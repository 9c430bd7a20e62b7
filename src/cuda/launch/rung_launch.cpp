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
#include "cuda/launch/kernel_args.hpp"
#include "cuda/launch/rung.hpp"
#include "kernels/common/work.cuh"

namespace attend::cuda {
namespace {

enum class Pass : std::uint8_t { kForward, kBackward };

struct LoadedStep {
  Step step;
  std::shared_ptr<const Kernel> kernel;
};

using Plan = std::vector<LoadedStep>;

MaskKind mask_kind(const core::Problem& p) {
  if (p.window_left < 0 && p.window_right < 0) return MaskKind::kFull;
  return p.window_left < 0 && p.window_right == 0 ? MaskKind::kCausal : MaskKind::kWindow;
}

OptionSet option_set(const core::Problem& p) {
  OptionSet options = {.softcap = p.softcap > 0,
                       .alibi = p.alibi_slopes.has_value(),
                       .bool_mask = p.mask.has_value(),
                       .dropout = p.dropout_p > 0,
                       .varlen = p.varlen.has_value()};
  if (p.bias) options.bias = p.bias->dtype;
  if (p.dbias) {
    options.dbias = p.dbias->dtype;
    options.dbias_over_rows = p.dbias->shape[2] != p.max_seqlen_q;
  }
  return options;
}

/// All of it in a few bits, for the look-up.
std::uint64_t packed(const OptionSet& options) {
  const auto dtype = [](const std::optional<DType>& type) {
    return type ? 1 + static_cast<std::uint64_t>(*type) : std::uint64_t{0};
  };
  std::uint64_t bits = dtype(options.bias) << 8 | dtype(options.dbias);
  for (const bool on :
       {options.softcap, options.alibi, options.bool_mask, options.dropout, options.varlen, options.dbias_over_rows}) {
    bits = bits << 1 | static_cast<std::uint64_t>(on);
  }
  return bits;
}

RungConfig config_of(const Rung& rung, const core::Problem& p) {
  constexpr int kWideLoad = 16;
  constexpr int kTallTile = 128, kLowTile = 64, kFewRows = 32;
  constexpr int kTilesOfMany = 4;  // for each multiprocessor
  const DeviceInfo& device = device_info(p.q.device.index);
  const std::int64_t heads = p.num_sequences * p.num_heads_q;
  const std::int64_t tall_tiles = num_tiles(p.max_seqlen_q, kTallTile) * heads;
  const std::int64_t low_tiles = num_tiles(p.max_seqlen_q, kLowTile) * heads;
  return {.dtype = p.q.dtype,
          .head_dim = static_cast<int>(p.head_dim),
          .head_dim_v = static_cast<int>(p.head_dim_v),
          .mask = mask_kind(p),
          .negate_scores = rung.folds_scale && p.scale < 0,
          .max_smem_per_block = device.max_smem_per_block,
          .aligned = rung.alignment >= kWideLoad || is_aligned(p, kWideLoad),
          .many_rows = tall_tiles >= std::int64_t{kTilesOfMany} * device.num_multiprocessors,
          .few_rows = p.max_seqlen_q <= kFewRows || low_tiles < device.num_multiprocessors,
          .options = option_set(p)};
}

/// The plans that were made so far. A look-up allocates nothing: it is on the path of every launch.
class PlanCache {
 public:
  const Plan& get(const Rung& rung, Pass pass, const RungConfig& config, int device) {
    const Key key = {
        &rung,
        static_cast<std::uint64_t>(device) << 32 | static_cast<std::uint64_t>(config.head_dim) << 16 |
            static_cast<std::uint64_t>(config.head_dim_v),
        packed(config.options) << 16 | static_cast<std::uint64_t>(config.dtype) << 8 |
            static_cast<std::uint64_t>(config.mask) << 4 | static_cast<std::uint64_t>(config.few_rows) << 6 |
            static_cast<std::uint64_t>(config.many_rows) << 3 | static_cast<std::uint64_t>(pass) << 2 |
            static_cast<std::uint64_t>(config.negate_scores) << 1 | static_cast<std::uint64_t>(config.aligned)};
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

std::int64_t blocks_of(const Step& step, const core::Problem& p) {
  if (step.blocks != nullptr) return step.blocks(step, p) * step.column_parts;
  const std::int64_t row_tiles = num_tiles(p.max_seqlen_q, step.block_m);
  const std::int64_t key_tiles = num_tiles(p.max_seqlen_k, step.block_n);
  const std::int64_t query_heads = p.num_sequences * p.num_heads_q;
  switch (step.grid) {
    case Grid::kRowTiles:
      return row_tiles * query_heads * step.column_parts;
    case Grid::kKeyTiles:
      return key_tiles * p.num_sequences * p.num_heads_k * step.column_parts;
    case Grid::kScoreTiles:
      return row_tiles * key_tiles * query_heads;
    case Grid::kQueryHeads:
      return query_heads;
  }
  return 0;
}

/// Refuses grids that no GPU takes; of all steps before the first is launched, so that nothing is half-written.
void check_grids(const Rung& rung, const Plan& plan, const core::Problem& p) {
  for (const LoadedStep& loaded : plan) {
    if (const std::int64_t blocks = blocks_of(loaded.step, p); blocks > std::numeric_limits<std::int32_t>::max()) {
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("q: {} blocks of {} rows, compute '{}' allows 2^31 - 1: call it for parts of the batch",
                              blocks, loaded.step.block_m, rung.name));
    }
  }
}

void launch_step(const LoadedStep& loaded, const core::Problem& p, void* args, StreamHandle stream) {
  const std::int64_t blocks = blocks_of(loaded.step, p);
  if (blocks == 0) return;
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
  check_grids(rung, plan, p);
  auto* const handle = static_cast<StreamHandle>(stream);
  const Scratch workspace(rung.forward_workspace == nullptr ? 0 : rung.forward_workspace(p), handle);
  ForwardArgs args = forward_args(rung, p, workspace.data());
  for (const LoadedStep& loaded : plan) {
    if (blocks_of(loaded.step, p) == 0) continue;  // no address for a map either
    if (loaded.step.args == StepArgs::kForwardTma) {
      ForwardTmaArgs tma_args = forward_tma_args(loaded.step, p, args);
      launch_step(loaded, p, &tma_args, handle);
    } else if (loaded.step.args == StepArgs::kForwardOptions) {
      ForwardOptionArgs option_args = {args, option_args_of(p)};
      launch_step(loaded, p, &option_args, handle);
    } else {
      launch_step(loaded, p, &args, handle);
    }
  }
}

void rung_backward(const Rung& rung, const core::Problem& p, Stream stream) {
  const ContextGuard guard(p.q.device.index);
  const Plan& plan = plan_of(rung, Pass::kBackward, p);
  check_grids(rung, plan, p);
  auto* const handle = static_cast<StreamHandle>(stream);
  const Scratch workspace(rung.backward_workspace == nullptr ? 0 : rung.backward_workspace(p), handle);
  BackwardOptionArgs args = backward_option_args(backward_args(rung, p, workspace.data()), p);
  for (const LoadedStep& loaded : plan) {
    const bool with_options = loaded.step.args == StepArgs::kBackwardOptions;
    launch_step(loaded, p, with_options ? static_cast<void*>(&args) : &args.base, handle);
  }
}

}  // namespace attend::cuda
