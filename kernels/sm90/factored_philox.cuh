// Random words of philox.cuh, bit for bit, for many rows and many quads (groups of four keys) of one head. In the first
// rounds some parts depend only on the quad or only on the row. These parts are computed once:
//
//   round    product 0 is of   product 1 is of
//   1        quad              head
//   2        row               quad
//   3        quad              both
//   4 to 10  both              both
//
// So 15 of a block's 20 wide products remain. A round turns the words 0 to 3, with its keys, into
//   high(product 1) ^ word 1 ^ key 0,   low(product 1),   high(product 0) ^ word 3 ^ key 1,   low(product 0)
#pragma once

#include "../attention/philox.cuh"

namespace attend {

constexpr int kFactoredRounds = 3;

struct PhiloxProduct {
  uint32 low;
  uint32 high;

  [[nodiscard]] static ATTEND_HOST_DEVICE constexpr PhiloxProduct of(uint32 multiplier, uint32 word) {
    const uint64 product = static_cast<uint64>(multiplier) * word;
    return {static_cast<uint32>(product), static_cast<uint32>(product >> 32)};
  }
};

// Returns the per-row part of the Philox state: product 0 of round 2.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr PhiloxProduct philox_row(const DropMask& drop_mask, uint32 row) {
  const uint32 high = PhiloxProduct::of(kPhiloxMultiplier1, drop_mask.head).high;
  return PhiloxProduct::of(kPhiloxMultiplier0, high ^ row ^ drop_mask.key0);
}

// Per-key part of the Philox state after kFactoredRounds, for a quad of keys. A thread loads its 16 bytes at once.
struct alignas(16) PhiloxQuad {
  uint32 factor;  // of round 3's product 1, without the row's part
  uint32 word0;   // without the high half of that product
  uint32 word2;   // without the row's part
  uint32 word3;

  [[nodiscard]] static ATTEND_HOST_DEVICE constexpr PhiloxQuad of(const DropMask& drop_mask, uint32 key_quad) {
    const uint32 head_low = kPhiloxMultiplier1 * drop_mask.head;
    const auto first = PhiloxProduct::of(kPhiloxMultiplier0, key_quad);
    const auto second = PhiloxProduct::of(kPhiloxMultiplier1, first.high ^ drop_mask.stream ^ drop_mask.key1);
    const auto third = PhiloxProduct::of(kPhiloxMultiplier0, second.high ^ head_low ^ (drop_mask.key0 + kPhiloxWeyl0));
    return {first.low ^ (drop_mask.key1 + kPhiloxWeyl1), second.low ^ (drop_mask.key0 + 2 * kPhiloxWeyl0),
            third.high ^ (drop_mask.key1 + 2 * kPhiloxWeyl1), third.low};
  }

  // Returns the words of the row and the quad after kFactoredRounds. After kPhiloxRounds they are DropMask::words().
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr PhiloxWords meet(PhiloxProduct row) const {
    const auto product1 = PhiloxProduct::of(kPhiloxMultiplier1, row.high ^ factor);
    return {{product1.high ^ word0, product1.low, word2 ^ row.low, word3}};
  }
};

}  // namespace attend
