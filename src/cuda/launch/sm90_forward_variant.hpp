// Compile-time facts of sm90_forward's kernel, and the choice of its tile.
#pragma once

#include <cstdint>
#include <optional>

#include "cuda/launch/fields.hpp"
#include "kernels/sm90/sm90_forward_shape.cuh"

namespace attend::cuda {

struct Sm90ForwardVariant : Facts {
  Sm90ForwardTile tile = {};
  /// Sums over very many keys are accumulated in pieces: kernels/sm90/sm90_long_sum.cuh.
  std::int32_t puts_aside = 0;
  std::int32_t bias_tiles = 0;  ///< the copy engine loads the bias
  /// Several blocks share the keys of a row, and a merge follows: sm90_forward_split.hpp.
  std::int32_t splits_keys = 0;
  std::int32_t is_cached = 0;    ///< keys are in a cache: kernels/sm90/sm90_cached_args.cuh
  std::int32_t has_boxes = 0;    ///< is_cached: the copy engine loads keys
  std::int32_t key_loaders = 0;  ///< is_cached: number of warps that load keys

  [[nodiscard]] int smem_bytes() const {
    return sm90_forward_smem_bytes(tile.consumers, tile.block_n, tile.stages, tile.q_buffers, head_dim, head_dim_v,
                                   bias_tiles != 0, has(option::kDropout), is_cached != 0, key_loaders);
  }
};

inline constexpr Field<Sm90ForwardVariant> kSm90ForwardFields[] = {
    {nullptr, "kThreads", number<&Sm90ForwardVariant::tile, &Sm90ForwardTile::threads>},
    {"consumers", "kConsumers", number<&Sm90ForwardVariant::tile, &Sm90ForwardTile::consumers>},
    {nullptr, "kBlockM", number<&Sm90ForwardVariant::tile, &Sm90ForwardTile::block_m>},
    {"block_n", "kBlockN", number<&Sm90ForwardVariant::tile, &Sm90ForwardTile::block_n>},
    {"stages", "kStages", number<&Sm90ForwardVariant::tile, &Sm90ForwardTile::stages>},
    {"q_buffers", "kQBuffers", number<&Sm90ForwardVariant::tile, &Sm90ForwardTile::q_buffers>},
    {"producer_registers", "kProducerRegisters",
     number<&Sm90ForwardVariant::tile, &Sm90ForwardTile::producer_registers>},
    {"consumer_registers", "kConsumerRegisters",
     number<&Sm90ForwardVariant::tile, &Sm90ForwardTile::consumer_registers>},
    {"overlap", "kOverlap", flag<&Sm90ForwardVariant::tile, &Sm90ForwardTile::overlaps>},
    {"ping_pong", "kPingPong", flag<&Sm90ForwardVariant::tile, &Sm90ForwardTile::takes_turns>},
    {"speculate", "kSpeculate", flag<&Sm90ForwardVariant::tile, &Sm90ForwardTile::speculates>},
    {"puts_aside", "kPutsAside", flag<&Sm90ForwardVariant::puts_aside>},
    {nullptr, "kTermsTiles", flag<&Sm90ForwardVariant::bias_tiles>},
    {nullptr, "kSplitsKeys", flag<&Sm90ForwardVariant::splits_keys>},
    {nullptr, "kIsCached", flag<&Sm90ForwardVariant::is_cached>},
    {nullptr, "kHasBoxes", flag<&Sm90ForwardVariant::has_boxes>},
    {nullptr, "kKeyLoaders", number<&Sm90ForwardVariant::key_loaders>},
    {"dynamic", "kSchedule", number<&Sm90ForwardVariant::tile, &Sm90ForwardTile::schedule>},
    {nullptr, "kSmemBytes", number<&Sm90ForwardVariant::smem_bytes>},
};
static_assert(covers<Sm90ForwardVariant>(kSm90ForwardFields));

/// Largest head_dim that supports a bias without register spills.
constexpr int kSm90MostHeadDimWithBias = 192;

/// Returns whether the copy engine can load the bias, provided that its tensor map is possible (bias_map_lack()).
[[nodiscard]] bool sm90_takes_bias_tiles(const Facts& facts);

/// Returns the tallest row tile for which registers suffice. Measurements: docs/hopper_forward.md.
/// @param bias_tiles  the copy engine loads the bias
[[nodiscard]] Sm90ForwardVariant sm90_forward_tall(const Facts& facts, std::int64_t seqlen_k, bool bias_tiles);

/// Returns the variant for a cache, independent of the number and the lengths of sequences. The order of sums depends
/// only on the facts.
/// @param page_size  keys per page; 0 if all keys are contiguous
[[nodiscard]] Sm90ForwardVariant sm90_forward_cached(const Facts& facts, std::int64_t capacity, std::int64_t page_size);

/// Returns the rows of a key box for a cached variant, or 0 if keys are not loaded in boxes.
[[nodiscard]] int sm90_forward_box_rows(const Sm90ForwardVariant& variant, std::int64_t page_size);

/// Returns the spec of the kernel, for the family or for a cache.
[[nodiscard]] KernelSpec sm90_forward_spec(const Sm90ForwardVariant& variant, std::int32_t taken, const char* arch);

/// Returns a tile with two consumers if the tall tile has three, for row counts that 192 divides badly.
[[nodiscard]] std::optional<Sm90ForwardVariant> sm90_forward_middle(const Facts& facts, const Sm90ForwardVariant& tall);

/// Returns a tile with one consumer, for heads with few rows.
[[nodiscard]] Sm90ForwardVariant sm90_forward_low(const Facts& facts, bool bias_tiles);

/// Returns how blocks are assigned to tiles.
[[nodiscard]] Schedule sm90_forward_schedule(const Facts& facts, std::int64_t seqlen_k);

}  // namespace attend::cuda
