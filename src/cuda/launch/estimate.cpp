#include "cuda/launch/estimate.hpp"

#include <algorithm>
#include <cmath>

namespace attend::cuda {
namespace {

constexpr double kLaunchSeconds = 2.5e-6;
constexpr double kBytesPerSecond = 4.3e12;  // memory copy rate of an H200
constexpr double kBackwardProducts = 2.5;   // a backward pass has five matrix products, a forward pass has two

/// Returns the average number of keys that a query row sees.
double visible_keys(const core::Problem& p) {
  const auto rows = static_cast<double>(std::max<std::int64_t>(1, p.max_seqlen_q));
  const auto keys = static_cast<double>(p.max_seqlen_k);
  const double causal = keys >= rows ? keys - rows / 2 : keys * keys / (2 * rows);
  const auto [left, right] = p.own_window();
  const double all = right < 0 ? keys : causal;
  if (left < 0) return all;
  return std::min(all, static_cast<double>(left) + static_cast<double>(std::max<std::int64_t>(0, right)) + 1);
}

/// Returns the estimated run time divided by the time of `waves` full waves of blocks. The ratio exceeds 1 if some
/// multiprocessors are idle while the last blocks run.
double idle_factor(const core::Problem& p, const Rate& rate, double waves) {
  if (waves <= 0) return 1;
  const double visible = visible_keys(p);
  const bool knows_tiles = !p.is_backward && !p.varlen && p.block_mask == nullptr && !p.mask && visible > 0;
  if (!knows_tiles) return std::max(1.0, waves) / waves;  // waves < 1 means that some multiprocessors have no block
  // If tiles have different lengths, the kernel starts with the longest tile and cannot end before that tile is
  // finished.
  const double longest = p.own_window().left < 0 ? static_cast<double>(p.max_seqlen_k) : visible;
  if (longest <= visible && rate.has_whole_waves) return std::ceil(waves) / waves;
  return std::max(1.0, longest / visible / waves);
}

}  // namespace

double estimated_seconds(const core::Problem& p, const DeviceInfo& device, const Rate& rate) {
  const double share = static_cast<double>(device.num_multiprocessors) / kModelMultiprocessors;
  const auto heads = static_cast<double>(p.num_sequences * p.num_heads_q);
  const auto dims = static_cast<double>(p.head_dim + p.head_dim_v);
  // All rows of a tile take time, including padding rows.
  const double row_tiles = std::ceil(static_cast<double>(p.max_seqlen_q) / static_cast<double>(rate.block_m));
  const double rows =
      p.is_backward ? static_cast<double>(p.max_seqlen_q) : row_tiles * static_cast<double>(rate.block_m);
  const double operations = 2 * heads * rows * visible_keys(p) * dims * (p.is_backward ? kBackwardProducts : 1);
  const double slots = static_cast<double>(device.num_multiprocessors) * rate.blocks_per_multiprocessor;
  const double waves = static_cast<double>(rate.blocks) / slots;
  const double compute = operations / (rate.tflops * 1e12 * share) * idle_factor(p, rate, waves);
  const double key_bytes = static_cast<double>(p.num_sequences * p.num_heads_k * p.max_seqlen_k) * dims;
  const double bytes = (heads * static_cast<double>(p.max_seqlen_q) * dims + key_bytes) *
                       static_cast<double>(dtype_bytes(p.q.dtype)) * (p.is_backward ? 2 : 1);
  return static_cast<double>(rate.num_steps) * kLaunchSeconds + std::max(compute, bytes / (kBytesPerSecond * share));
}

}  // namespace attend::cuda
