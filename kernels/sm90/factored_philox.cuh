// Computes the same random words as philox.cuh, bit for bit, for many query rows and many quads of one head. A quad is
// a group of four adjacent keys. A Philox round multiplies two words, which gives product 0 and product 1. In the first
// rounds some products depend only on the quad, on the row or on the head. The kernel computes these products once and
// shares them. The table lists the inputs of each product:
//
//   round    product 0        product 1
//   1        quad             head
//   2        row              quad
//   3        quad             row and quad
//   4 to 10  row and quad     row and quad
//
// Only 15 of the 20 wide multiplications of a Philox block remain. A round has two keys, key 0 and key 1. It replaces
// the words 0 to 3 by these four values: high(product 1) ^ word 1 ^ key 0, low(product 1), high(product 0) ^ word 3 ^
// key 1, low(product 0)
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

// Returns the row's contribution to the Philox state, which is product 0 of round 2.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr PhiloxProduct philox_row(const DropMask& drop_mask, uint32 row) {
  const uint32 high = PhiloxProduct::of(kPhiloxMultiplier1, drop_mask.head).high;
  return PhiloxProduct::of(kPhiloxMultiplier0, high ^ row ^ drop_mask.key0);
}

// Philox state after kFactoredRounds of a quad of keys, without the contribution of the query row. The struct is
// aligned so that a thread loads its 16 bytes with one instruction.
struct alignas(16) PhiloxQuad {
  uint32 factor;  // factor from which round 3 computes product 1, still without the row's bits
  uint32 word0;   // word 0 without the high half of that product
  uint32 word2;   // word 2 without the row's bits
  uint32 word3;

  [[nodiscard]] static ATTEND_HOST_DEVICE constexpr PhiloxQuad of(const DropMask& drop_mask, uint32 key_quad) {
    const uint32 head_low = kPhiloxMultiplier1 * drop_mask.head;
    const auto first = PhiloxProduct::of(kPhiloxMultiplier0, key_quad);
    const auto second = PhiloxProduct::of(kPhiloxMultiplier1, first.high ^ drop_mask.stream ^ drop_mask.key1);
    const auto third = PhiloxProduct::of(kPhiloxMultiplier0, second.high ^ head_low ^ (drop_mask.key0 + kPhiloxWeyl0));
    return {first.low ^ (drop_mask.key1 + kPhiloxWeyl1), second.low ^ (drop_mask.key0 + 2 * kPhiloxWeyl0),
            third.high ^ (drop_mask.key1 + 2 * kPhiloxWeyl1), third.low};
  }

  // Combines the state of the quad with that of the row. Returns the words after kFactoredRounds. The remaining rounds
  // turn them into DropMask::words().
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr PhiloxWords meet(PhiloxProduct row) const {
    const auto product1 = PhiloxProduct::of(kPhiloxMultiplier1, row.high ^ factor);
    return {{product1.high ^ word0, product1.low, word2 ^ row.low, word3}};
  }
};

}  // namespace attend
