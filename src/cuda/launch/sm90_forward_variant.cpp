// Chooses the tile of sm90_forward.
#include "cuda/launch/sm90_forward_variant.hpp"

#include <algorithm>

#include "kernels/common/element_info.cuh"
#include "kernels/sm90/sm90_cached_args.cuh"

namespace attend::cuda {
namespace {

/// The members in which tiles differ. All other members depend only on the number of consumer warpgroups.
struct Shape {
  int consumers = 2;
  int block_n = 64;
  int stages = 2;
  int q_buffers = 1;
  bool overlaps = false;
  bool speculates = false;
};

Sm90ForwardVariant with(const Facts& facts, const Shape& shape) {
  Sm90ForwardVariant v = {facts};
  // A multiprocessor has 65536 registers. They are divided among the warpgroups; the numbers are registers per thread.
  v.tile = {.consumers = shape.consumers,
            .block_n = shape.block_n,
            .stages = shape.stages,
            .q_buffers = shape.q_buffers,
            .producer_registers = shape.consumers == 3 ? 32 : 40,
            .consumer_registers = shape.consumers == 3   ? 160
                                  : shape.consumers == 2 ? 232
                                                         : 248,
            .overlaps = shape.overlaps,
            .takes_turns = shape.consumers > 1,
            .speculates = shape.speculates,
            .schedule = Schedule::kDynamic};
  return v;
}

/// Returns whether both dropout and a block mask are active. Each option needs registers for words of bits, in addition
/// to the registers for scores. The tiles with the fewest free registers would then spill.
bool drops_beside_a_mask(const Facts& facts) {
  return facts.has(option::kBlockMask) && facts.score().drops;
}

}  // namespace

bool sm90_takes_bias_tiles(const Facts& facts) {
  const ScoreModTraits score = facts.score();
  return score.adds_from_memory && !score.drops && !score.transforms && !score.adds_by_position &&
         // The bias tiles in shared memory have 16-bit elements.
         element_info(facts.bias).bytes == element_info(ElementType::kF16).bytes;
}

Sm90ForwardVariant sm90_forward_tall(const Facts& facts, std::int64_t seqlen_k, bool bias_tiles) {
  const int widest = std::max(facts.head_dim, facts.head_dim_v);
  const bool plain = (facts.loop_options() & ~option::kRing) == 0;
  if (bias_tiles) {
    Sm90ForwardVariant v = widest <= 128 ? with(facts, {.block_n = 128, .overlaps = true}) : with(facts, {});
    v.bias_tiles = 1;
    return v;
  }
  if (facts.score().adds_from_memory) return with(facts, {});  // reading a bias value for each score needs registers
  const bool several = facts.score().drops && facts.score().adds_by_position;
  const bool is_crowded = drops_beside_a_mask(facts);
  if (widest <= 64 && !several && !is_crowded && !facts.has(option::kVarlen)) {
    const bool is_short = plain && facts.mask == MaskKind::kCausal && seqlen_k <= 1024;
    return is_short ? with(facts, {.consumers = 3, .stages = 4, .q_buffers = 2, .speculates = true})
                    : with(facts, {.consumers = 3, .block_n = 128, .q_buffers = 2, .speculates = true});
  }
  if (widest <= 96 && plain) return with(facts, {.consumers = 3, .block_n = 96, .q_buffers = 2, .speculates = true});
  if (widest <= 64 && several) return with(facts, {.block_n = 128, .q_buffers = 2, .speculates = true});
  if (widest <= 128) {
    return with(facts, {.block_n = 128, .q_buffers = 2, .overlaps = true, .speculates = !several && !is_crowded});
  }
  if (widest <= 192 && facts.head_dim_v <= 128 && facts.loop_options() == 0) {
    return with(facts, {.block_n = 128, .overlaps = true, .speculates = true});
  }
  if (widest <= 192 && facts.has(option::kBlockMask)) return with(facts, {});  // a tile of a block mask has 64 keys
  if (widest <= 192) return with(facts, {.block_n = 112, .overlaps = plain});
  return with(facts, {.block_n = plain ? 80 : 64, .overlaps = plain});
}

std::optional<Sm90ForwardVariant> sm90_forward_middle(const Facts& facts, const Sm90ForwardVariant& tall) {
  if (tall.tile.consumers < 3) return std::nullopt;
  return with(facts, {.block_n = 128, .q_buffers = 2, .overlaps = true, .speculates = true});
}

int sm90_forward_box_rows(const Sm90ForwardVariant& v, std::int64_t page_size) {
  const std::int64_t block_n = v.tile.block_n;
  if (page_size % block_n == 0) return v.tile.block_n;
  const std::int64_t rows = std::min({std::int64_t{32}, block_n & -block_n, page_size & -page_size});
  return rows < kSm90LeastBoxRows ? 0 : static_cast<int>(rows);
}

Sm90ForwardVariant sm90_forward_cached(const Facts& facts, std::int64_t capacity, std::int64_t page_size) {
  Sm90ForwardVariant v = sm90_forward_tall(facts, capacity, false);
  v.tile.schedule = Schedule::kDynamic;
  v.puts_aside = puts_sums_aside(facts.element, capacity) ? 1 : 0;
  v.is_cached = 1;
  const int box_rows = sm90_forward_box_rows(v, page_size);
  v.has_boxes = box_rows > 0 ? 1 : 0;
  v.key_loaders = box_rows == v.tile.block_n ? 1 : sm90_cached_loaders(v.tile.block_n);
  // The warps that load keys also look up pages in the page table. If TMA does not load the keys, these warps also
  // compute addresses.
  const int taken = v.has_boxes != 0 ? 8 : 16;
  v.tile.producer_registers += taken * v.tile.consumers;
  v.tile.consumer_registers -= taken;
  return v;
}

KernelSpec sm90_forward_spec(const Sm90ForwardVariant& v, std::int32_t taken, const char* arch) {
  return {.name = v.is_cached != 0 ? "sm90_forward_cached" : "sm90_forward",
          .source = "sm90/sm90_forward.cuh",
          .function = "sm90_forward",
          .args = v.is_cached != 0 ? Sm90CachedArgs::kTypeName : Sm90ForwardArgs::kTypeName,
          .config = config_of<Sm90ForwardVariant>(v, taken, kSm90ForwardFields, v),
          .arch = arch,
          .dynamic_smem_bytes = static_cast<unsigned>(v.smem_bytes())};
}

Schedule sm90_forward_schedule(const Facts& facts, std::int64_t seqlen_k) {
  // Without a mask, all tiles take the same time. With few keys, a counter of tiles then costs more time than it saves.
  // With many keys, some blocks fall behind, so the first free block should process the next tile.
  constexpr std::int64_t kFewKeys = 4096;
  const bool is_even =
      facts.mask == MaskKind::kFull && !facts.has(option::kVarlen | option::kBlockMask) && seqlen_k <= kFewKeys;
  return is_even ? Schedule::kStatic : Schedule::kDynamic;
}

Sm90ForwardVariant sm90_forward_low(const Facts& facts, bool bias_tiles) {
  const int widest = std::max(facts.head_dim, facts.head_dim_v);
  if (bias_tiles) {
    Sm90ForwardVariant v = with(facts, {.consumers = 1});
    v.bias_tiles = 1;
    return v;
  }
  if (facts.score().adds_from_memory || drops_beside_a_mask(facts)) return with(facts, {.consumers = 1});
  const bool is_narrow = widest <= 128;
  return with(facts, {.consumers = 1,
                      .block_n = is_narrow ? 128 : 64,
                      .stages = is_narrow ? 3 : 2,
                      .overlaps = true,
                      .speculates = is_narrow && (facts.loop_options() & ~option::kRing) == 0});
}

}  // namespace attend::cuda
