// The compile-time parameters of the kernel of sm90_forward, and the choice of its tile.
#pragma once

#include <cstdint>
#include <optional>

#include "cuda/launch/fields.hpp"
#include "kernels/sm90/sm90_forward_shape.cuh"

namespace attend::cuda {

struct Sm90ForwardVariant : Facts {
  Sm90ForwardTile tile = {};
  /// Whether o is accumulated in several partial sums, because there are very many keys:
  /// kernels/sm90/sm90_long_sum.cuh.
  std::int32_t puts_aside = 0;
  std::int32_t bias_tiles = 0;  ///< whether TMA loads tiles of the bias
  /// Whether several blocks share the keys of a row. A merge kernel then follows: sm90_forward_split.hpp.
  std::int32_t splits_keys = 0;
  std::int32_t is_cached = 0;  ///< whether the keys are in a key-value cache: kernels/sm90/sm90_cached_args.cuh
  /// Whether TMA loads the keys in boxes. A box is a group of adjacent keys that one copy loads. Used if is_cached is
  /// set.
  std::int32_t has_boxes = 0;
  std::int32_t key_loaders = 0;  ///< number of warps that load keys, used if is_cached is set

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

/// Largest head_dim at which a bias causes no register spills.
constexpr int kSm90MostHeadDimWithBias = 192;

/// Returns whether TMA can load tiles of the bias. The caller must also check that the bias can have a tensor map
/// (bias_map_lack()).
[[nodiscard]] bool sm90_takes_bias_tiles(const Facts& facts);

/// Returns the variant with the most query rows per tile for which registers suffice. Measurements:
/// docs/hopper_forward.md.
/// @param bias_tiles  whether TMA loads tiles of the bias
[[nodiscard]] Sm90ForwardVariant sm90_forward_tall(const Facts& facts, std::int64_t seqlen_k, bool bias_tiles);

/// Returns the variant for a key-value cache. It does not depend on the number or the lengths of the sequences, so a
/// sequence has bit-identical results in any batch.
/// @param page_size  number of keys per page; 0 if all keys of a sequence are contiguous
[[nodiscard]] Sm90ForwardVariant sm90_forward_cached(const Facts& facts, std::int64_t capacity, std::int64_t page_size);

/// Returns the number of keys that one TMA copy loads for a variant with a cache. Returns 0 if TMA does not load the
/// keys.
[[nodiscard]] int sm90_forward_box_rows(const Sm90ForwardVariant& variant, std::int64_t page_size);

/// Returns the spec of the kernel.
/// @param taken  options that the kernel supports
[[nodiscard]] KernelSpec sm90_forward_spec(const Sm90ForwardVariant& variant, std::int32_t taken, const char* arch);

/// Returns a variant with two consumer warpgroups if `tall` has three; otherwise nothing. It leaves fewer padding rows
/// if the number of query rows is not close to a multiple of 192.
[[nodiscard]] std::optional<Sm90ForwardVariant> sm90_forward_middle(const Facts& facts, const Sm90ForwardVariant& tall);

/// Returns a variant with one consumer warpgroup, for heads with few query rows.
[[nodiscard]] Sm90ForwardVariant sm90_forward_low(const Facts& facts, bool bias_tiles);

/// Returns how tiles are assigned to blocks.
[[nodiscard]] Schedule sm90_forward_schedule(const Facts& facts, std::int64_t seqlen_k);

}  // namespace attend::cuda
