// Which tile sm90_forward takes for which facts.
#include "cuda/launch/sm90_forward_variant.hpp"

#include <algorithm>

namespace attend::cuda {
namespace {

Sm90ForwardVariant with(const Facts& facts, int consumers, int block_n, int stages, int q_buffers, bool overlap,
                        bool speculate) {
  Sm90ForwardVariant v = {facts};
  // Registers of a thread: what 64 K divided among the warpgroups allow.
  v.tile = {.consumers = consumers,
            .block_n = block_n,
            .stages = stages,
            .q_buffers = q_buffers,
            .producer_registers = consumers == 3 ? 32 : 40,
            .consumer_registers = consumers == 3   ? 160
                                  : consumers == 2 ? 232
                                                   : 248,
            .overlaps = overlap,
            .takes_turns = consumers > 1,
            .speculates = speculate,
            .schedule = Sm90Schedule::kDynamic};
  return v;
}

}  // namespace

bool sm90_is_crowded(const Facts& facts) {
  const ScoreModTraits score = facts.score();
  return score.reads_memory() && (score.drops || score.transforms || score.adds_by_position);
}

bool sm90_takes_bias_tiles(const Facts& facts) {
  const ScoreModTraits score = facts.score();
  return score.adds_from_memory && !score.masks_from_memory && !sm90_is_crowded(facts) &&
         facts.bias != ElementType::kF32;
}

Sm90ForwardVariant sm90_forward_tall(const Facts& facts, std::int64_t seqlen_k, bool bias_tiles) {
  const int widest = std::max(facts.head_dim, facts.head_dim_v);
  const bool plain = (facts.options & ~option::kRing) == 0;
  // Rules that read memory for each score, or several rules at once, want registers.
  const bool reads = facts.score().reads_memory();
  if (bias_tiles) {
    Sm90ForwardVariant v =
        widest <= 128 ? with(facts, 2, 128, 2, 1, true, false) : with(facts, 2, 64, 2, 1, false, false);
    v.bias_tiles = 1;
    return v;
  }
  if (sm90_is_crowded(facts) || facts.score().adds_from_memory) return with(facts, 2, 64, 2, 1, false, false);
  const bool several = facts.score().drops && facts.score().adds_by_position;
  if (widest <= 64 && !reads && !several && !facts.has(option::kVarlen)) {
    const bool is_short = plain && facts.mask == MaskKind::kCausal && seqlen_k <= 1024;
    return is_short ? with(facts, 3, 64, 4, 2, false, true) : with(facts, 3, 128, 2, 2, false, true);
  }
  if (widest <= 96 && plain) return with(facts, 3, 96, 2, 2, false, true);
  if (widest <= 64 && several) return with(facts, 2, 128, 2, 2, false, true);
  if (widest <= 128) return with(facts, 2, 128, 2, 2, true, !several);
  if (widest <= 192 && facts.head_dim_v <= 128 && facts.options == 0) return with(facts, 2, 128, 2, 1, true, true);
  if (widest <= 192) return with(facts, 2, 112, 2, 1, plain, false);
  return with(facts, 2, plain ? 80 : 64, 2, 1, plain, false);
}

Sm90Schedule sm90_forward_schedule(const Facts& facts, std::int64_t seqlen_k) {
  // Without a mask all tiles are alike. Over few keys a counter costs more than the balance that it brings; over many,
  // blocks drift apart, and the block that is free first should take the next tile.
  constexpr std::int64_t kFewKeys = 4096;
  const bool is_even = facts.mask == MaskKind::kFull && !facts.has(option::kVarlen) && seqlen_k <= kFewKeys;
  return is_even ? Sm90Schedule::kStatic : Sm90Schedule::kDynamic;
}

Sm90ForwardVariant sm90_forward_low(const Facts& facts, bool bias_tiles) {
  const int widest = std::max(facts.head_dim, facts.head_dim_v);
  if (bias_tiles) {
    Sm90ForwardVariant v = with(facts, 1, 64, 2, 1, false, false);
    v.bias_tiles = 1;
    return v;
  }
  if (sm90_is_crowded(facts) || facts.score().adds_from_memory) return with(facts, 1, 64, 2, 1, false, false);
  return with(facts, 1, widest <= 128 ? 128 : 64, widest <= 128 ? 3 : 2, 1, true, false);
}

}  // namespace attend::cuda
