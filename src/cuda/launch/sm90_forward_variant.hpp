// What sm90_forward's kernel is compiled for, and which tile it takes for which facts.
#pragma once

#include <cstdint>
#include <optional>

#include "cuda/launch/fields.hpp"
#include "kernels/sm90/sm90_forward_shape.cuh"

namespace attend::cuda {

struct Sm90ForwardVariant : Facts {
  Sm90ForwardTile tile = {};
  std::int32_t puts_aside = 0;   ///< sums over very many keys are cut into pieces: kernels/sm90/sm90_long_sum.cuh
  std::int32_t bias_tiles = 0;   ///< the copy engine brings the bias
  std::int32_t splits_keys = 0;  ///< several blocks share a row's keys, and a merge follows: sm90_forward_split.hpp
  std::int32_t is_cached = 0;    ///< keys lie in a cache: kernels/sm90/sm90_cached_args.cuh
  std::int32_t has_boxes = 0;    ///< is_cached: the copy engine brings keys
  std::int32_t key_loaders = 0;  ///< is_cached: warps that load keys

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

/// Beyond this head_dim registers spill with a bias.
constexpr int kSm90MostHeadDimWithBias = 192;

/// Does the copy engine bring the bias, if its tensor map can be made (bias_map_lack())?
[[nodiscard]] bool sm90_takes_bias_tiles(const Facts& facts);

/// Row tiles as tall as registers allow; docs/hopper_forward.md has the measurements behind it.
/// @param bias_tiles  the copy engine brings the bias
[[nodiscard]] Sm90ForwardVariant sm90_forward_tall(const Facts& facts, std::int64_t seqlen_k, bool bias_tiles);

/// For rows over a cache, of sequences of any number and length: the order of sums depends on the facts only.
/// @param page_size  keys that lie together; 0: all
[[nodiscard]] Sm90ForwardVariant sm90_forward_cached(const Facts& facts, std::int64_t capacity, std::int64_t page_size);

/// Rows of a box of keys there; 0: keys do not come in boxes.
[[nodiscard]] int sm90_forward_box_rows(const Sm90ForwardVariant& variant, std::int64_t page_size);

/// The kernel, for the family or for a cache.
[[nodiscard]] KernelSpec sm90_forward_spec(const Sm90ForwardVariant& variant, std::int32_t taken, const char* arch);

/// Two consumers where the tallest tile has three: for grids that 192 rows divide badly.
[[nodiscard]] std::optional<Sm90ForwardVariant> sm90_forward_middle(const Facts& facts, const Sm90ForwardVariant& tall);

/// One consumer: for heads with few rows.
[[nodiscard]] Sm90ForwardVariant sm90_forward_low(const Facts& facts, bool bias_tiles);

/// How blocks come to their tiles.
[[nodiscard]] Schedule sm90_forward_schedule(const Facts& facts, std::int64_t seqlen_k);

}  // namespace attend::cuda
