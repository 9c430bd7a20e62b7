// Applies score rules in simt's layout, in which threads divide a tile as a grid and each thread has a small tile.
//
//   const GridRules<Config, Place> grid = {tile, place};   // place: row and key of number (i, j) of the thread
//   grid.template apply<kAllVisible, kOfTerms>(s, slope);
#pragma once

#include "../attention/philox.cuh"
#include "../attention/score_rules.cuh"
#include "../tiles/extents.cuh"

namespace attend {

// Positions of a thread's numbers in a tile of scores. Index i numbers neighbours along one side of the tile. Along the
// other side, j is element j % 4 of chunk j / 4. A chunk has four elements, and a thread's chunks are kChunkStep apart.
// kRowsAreI states that i is the side of the rows.
template <bool kRowsAreI, int kChunkStep>
struct ScorePlace {
  static constexpr bool kKeysAreJ = kRowsAreI;
  int i_begin;  // a multiple of 4 if i numbers keys
  int j_begin;  // a multiple of 4

  [[nodiscard]] static __device__ __forceinline__ constexpr int step(int j) { return j % 4 + j / 4 * kChunkStep; }
  [[nodiscard]] __device__ __forceinline__ int row(int i, int j) const {
    return kRowsAreI ? i_begin + i : j_begin + step(j);
  }
  [[nodiscard]] __device__ __forceinline__ int key(int i, int j) const {
    return kRowsAreI ? j_begin + step(j) : i_begin + i;
  }
};

// Returns whether the bit is set in a result of GridRules::kept_bits(). The number that belongs to it is then kept.
[[nodiscard]] __device__ __forceinline__ bool is_kept(uint32 kept, int bit) {
  return (kept >> bit & 1) != 0;
}

template <class Config, class Place>
struct GridRules {
  const TileRules<Config>& rules;
  const Place& place;

  // Replaces q.k in s by the score. See TileRules::score() for `slope`.
  template <bool kAllVisible, bool kOfTerms, class Scores>
  __device__ __forceinline__ void apply(Scores& s, Scores& slope) const {
#pragma unroll
    for (int i = 0; i < kRowsOf<Scores>; ++i) {
#pragma unroll
      for (int j = 0; j < kColumnsOf<Scores>; ++j) {
        s[i][j] = rules.template score<kAllVisible, kOfTerms>(s[i][j], place.row(i, j), place.key(i, j), slope[i][j]);
      }
    }
    if constexpr (!kAllVisible) hide_unseen(s);
  }

  // Computes the input scores of the custom score function from products q.k.
  template <bool kAllVisible, class Scores>
  __device__ __forceinline__ void own_scores(Scores& s, const Scores& products) const {
#pragma unroll
    for (int i = 0; i < kRowsOf<Scores>; ++i) {
#pragma unroll
      for (int j = 0; j < kColumnsOf<Scores>; ++j) {
        float unused;
        s[i][j] = rules.template own_score<kAllVisible>(products[i][j], place.row(i, j), place.key(i, j), unused);
      }
    }
  }

  // Returns a bit for each of kM x kN numbers, set if dropout keeps the number. Bit i * kN + j belongs to number (i,
  // j). Four neighbouring keys share one Philox block. The blocks are computed one after another, because several at a
  // time would need registers that the sums occupy.
  template <int kM, int kN>
  [[nodiscard]] __device__ __forceinline__ uint32 kept_bits() const {
    static_assert(kM * kN <= 32 && kN % 4 == 0 && (Place::kKeysAreJ || kM % 4 == 0));
    if constexpr (Config::kIsPart) return kept_bits_of_part<kM, kN>();
    constexpr int kStep = Place::kKeysAreJ ? 1 : kN;  // distance between the bits of two neighbouring keys
    uint32 bits = 0;
#pragma unroll 1
    for (int block = 0; block < kM * kN / 4; ++block) {
      const int i = Place::kKeysAreJ ? block / (kN / 4) : block / kN * 4;
      const int j = Place::kKeysAreJ ? block % (kN / 4) * 4 : block % kN;
      const PhiloxWords words =
          rules.drop_mask.words(rules.first_row + place.row(i, j), (rules.first_key + place.key(i, j)) / 4);
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        bits |= static_cast<uint32>(words.word[n] >= rules.drop_mask.threshold) << (i * kN + j + n * kStep);
      }
    }
    return bits;
  }

 private:
  // Sets the scores that the block map hides to -inf. Four neighbours along j lie in the same tile of the map.
  template <class Scores>
  __device__ __forceinline__ void hide_unseen(Scores& s) const {
    if constexpr (has_block_map<Config>()) {
#pragma unroll
      for (int i = 0; i < kRowsOf<Scores>; ++i) {
#pragma unroll
        for (int j = 0; j < kColumnsOf<Scores>; j += 4) {
          const int64 row = rules.first_row + place.row(i, j), key = rules.first_key + place.key(i, j);
          const auto seen =
              static_cast<uint32>(Place::kKeysAreJ ? rules.map.keys_of_row(row, key) : rules.map.rows_of_key(key, row));
#pragma unroll
          for (int n = 0; n < 4; ++n) {
            if ((seen >> n & 1) == 0) s[i][j + n] = -kInfinity;
          }
        }
      }
    }
  }

  // Returns kept_bits() for a part of a larger problem. Keys that are neighbours here may lie in different Philox
  // blocks of the larger problem, so each number needs a block.
  template <int kM, int kN>
  [[nodiscard]] __device__ __forceinline__ uint32 kept_bits_of_part() const {
    uint32 bits = 0;
#pragma unroll 1
    for (int n = 0; n < kM * kN; ++n) {
      const int64 row = rules.first_row + int64{rules.position_step} * place.row(n / kN, n % kN);
      const int64 key = rules.first_key + int64{rules.position_step} * place.key(n / kN, n % kN);
      bits |= static_cast<uint32>(rules.drop_mask.keeps(row, key)) << n;
    }
    return bits;
  }
};

}  // namespace attend
