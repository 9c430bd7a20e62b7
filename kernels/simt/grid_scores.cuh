// The rules of scores for a tile that threads divide as a grid, each a small tile of its own: simt's layout.
//
//   apply_rules<kAllVisible>(tile, s, place, slope);   // place: which row and key number (i, j) of the thread is
#pragma once

#include "../attention/philox.cuh"
#include "../attention/score_rules.cuh"

namespace attend {

// Which numbers of a tile of scores a thread has. Number (i, j) belongs to neighbour i along one side and, along the
// other, to place j % 4 of the j / 4-th chunk of four, the chunks lying kChunkStep apart.
template <bool kRowsAreI, int kChunkStep>
struct ScorePlace {
  static constexpr bool kKeysAreJ = kRowsAreI;
  int i_begin;  // a multiple of 4 where keys are i
  int j_begin;  // a multiple of 4

  [[nodiscard]] static __device__ __forceinline__ constexpr int step(int j) { return j % 4 + j / 4 * kChunkStep; }
  [[nodiscard]] __device__ __forceinline__ int row(int i, int j) const {
    return kRowsAreI ? i_begin + i : j_begin + step(j);
  }
  [[nodiscard]] __device__ __forceinline__ int key(int i, int j) const {
    return kRowsAreI ? j_begin + step(j) : i_begin + i;
  }
};

// s, which holds q.k, becomes the score. slope: d score / d (scale q.k), kTransforms.
template <bool kAllVisible, class Config, class Place, int kM, int kN>
__device__ __forceinline__ void apply_rules(const TileRules<Config>& rules, float (&s)[kM][kN], const Place& place,
                                            float (&slope)[kM][kN]) {
#pragma unroll
  for (int i = 0; i < kM; ++i) {
#pragma unroll
    for (int j = 0; j < kN; ++j) {
      s[i][j] = rules.template score<kAllVisible>(s[i][j], place.row(i, j), place.key(i, j), slope[i][j]);
    }
  }
}

// As kept_bits() of a part whose keys do not share blocks four by four: a block for each.
template <int kM, int kN, class Config, class Place>
[[nodiscard]] __device__ __forceinline__ uint32 kept_bits_of_part(const TileRules<Config>& rules, const Place& place) {
  uint32 bits = 0;
#pragma unroll 1
  for (int n = 0; n < kM * kN; ++n) {
    const int64 row = rules.first_row + int64{rules.position_step} * place.row(n / kN, n % kN);
    const int64 key = rules.first_key + int64{rules.position_step} * place.key(n / kN, n % kN);
    bits |= static_cast<uint32>(rules.dropout.keeps(row, key)) << n;
  }
  return bits;
}

// Bit i * kN + j says that dropout keeps the number. Four neighbouring keys share one Philox block; block after block,
// as several at a time would take registers from those who hold sums.
template <int kM, int kN, class Config, class Place>
[[nodiscard]] __device__ __forceinline__ uint32 kept_bits(const TileRules<Config>& rules, const Place& place) {
  static_assert(kM * kN <= 32 && kN % 4 == 0 && (Place::kKeysAreJ || kM % 4 == 0));
  if constexpr (Config::kIsPart) return kept_bits_of_part<kM, kN>(rules, place);
  constexpr int kStep = Place::kKeysAreJ ? 1 : kN;  // from the bit of one key to that of the next
  uint32 bits = 0;
#pragma unroll 1
  for (int block = 0; block < kM * kN / 4; ++block) {
    const int i = Place::kKeysAreJ ? block / (kN / 4) : block / kN * 4;
    const int j = Place::kKeysAreJ ? block % (kN / 4) * 4 : block % kN;
    const PhiloxWords words =
        rules.dropout.words(rules.first_row + place.row(i, j), (rules.first_key + place.key(i, j)) / 4);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      bits |= static_cast<uint32>(words.word[n] >= rules.dropout.threshold) << (i * kN + j + n * kStep);
    }
  }
  return bits;
}

}  // namespace attend
