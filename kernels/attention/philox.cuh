// Dropout decisions. Philox 4x32-10 is used as a pure function of (seed, offset, sequence, head, row, key).
//
// The generator has no state, so every backend and every tile size makes the same decisions. Its inputs are
//   counter = (key / 4, row, sequence * num_heads_q + head, low 32 bits of offset)
//   key     = (low 32 bits of seed, high 32 bits of seed ^ high 32 bits of offset)
// Word key % 4 of the result decides. The entry is kept if the word is at least dropout_threshold(p).
// Source: Salmon, Moraes, Dror, Shaw, Parallel random numbers: as easy as 1, 2, 3 (SC 2011), section 3.3 and table 2.
#pragma once

#include "../common/portable.cuh"

namespace attend {

constexpr uint32 kPhiloxMultiplier0 = 0xD2511F53u;
constexpr uint32 kPhiloxMultiplier1 = 0xCD9E8D57u;
constexpr uint32 kPhiloxWeyl0 = 0x9E3779B9u;  // golden ratio
constexpr uint32 kPhiloxWeyl1 = 0xBB67AE85u;  // sqrt(3) - 1
constexpr int kPhiloxRounds = 10;

struct PhiloxWords {
  uint32 word[4];
};

// Applies round number `round` to the words. key0 and key1 are the keys of round 0.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr PhiloxWords philox_round(PhiloxWords counter, uint32 key0, uint32 key1,
                                                                    int round) {
  const uint64 product0 = static_cast<uint64>(kPhiloxMultiplier0) * counter.word[0];
  const uint64 product1 = static_cast<uint64>(kPhiloxMultiplier1) * counter.word[2];
  key0 += static_cast<uint32>(round) * kPhiloxWeyl0;
  key1 += static_cast<uint32>(round) * kPhiloxWeyl1;
  return {{static_cast<uint32>(product1 >> 32) ^ counter.word[1] ^ key0, static_cast<uint32>(product1),
           static_cast<uint32>(product0 >> 32) ^ counter.word[3] ^ key1, static_cast<uint32>(product0)}};
}

[[nodiscard]] ATTEND_HOST_DEVICE constexpr PhiloxWords philox_4x32_10(PhiloxWords counter, uint32 key0, uint32 key1) {
  for (int round = 0; round < kPhiloxRounds; ++round) counter = philox_round(counter, key0, key1, round);
  return counter;
}

// Returns the threshold below which a word drops its entry. This is p * 2^32, rounded to nearest, for 0 <= p < 1.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr uint32 dropout_threshold(double p) {
  const double scaled = p * 4294967296.0 + 0.5;
  return scaled >= 4294967295.0 ? 4294967295u : static_cast<uint32>(scaled);
}

// Dropout of one (sequence, head). Decides which entries of its seqlen_q x seqlen_k matrix are kept.
struct DropMask {
  uint32 key0;       // low 32 bits of seed
  uint32 key1;       // high 32 bits of seed ^ high 32 bits of offset
  uint32 head;       // sequence * num_heads_q + head, modulo 2^32
  uint32 stream;     // low 32 bits of offset
  uint32 threshold;  // see dropout_threshold()

  [[nodiscard]] static ATTEND_HOST_DEVICE constexpr DropMask make(uint64 seed, uint64 offset, int64 head_index,
                                                                  double p) {
    DropMask mask = {0, 0, static_cast<uint32>(head_index), 0, dropout_threshold(p)};
    mask.take_state(seed, offset);
    return mask;
  }
  ATTEND_HOST_DEVICE constexpr void take_state(uint64 seed, uint64 offset) {
    key0 = static_cast<uint32>(seed);
    key1 = static_cast<uint32>(seed >> 32) ^ static_cast<uint32>(offset >> 32);
    stream = static_cast<uint32>(offset);
  }

  // Returns the four words that decide keys 4 * key_quad to 4 * key_quad + 3 of a row.
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr PhiloxWords words(int64 row, int64 key_quad) const {
    return philox_4x32_10({{static_cast<uint32>(key_quad), static_cast<uint32>(row), head, stream}}, key0, key1);
  }

  [[nodiscard]] ATTEND_HOST_DEVICE constexpr bool keeps(int64 row, int64 key) const {
    return words(row, key / 4).word[key % 4] >= threshold;
  }
};

}  // namespace attend
