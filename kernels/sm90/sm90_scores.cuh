// Turns the products q.k in a consumer's registers into the values that the softmax reads. Also decides which entries
// of p dropout keeps.
//
// If no modification changes the scores, only masks remain, and a tile that all rows see completely needs no
// instructions. Otherwise ../attention/accumulator_scores.cuh applies the modifications. Two modifications have faster
// code, if no other modification changes the scores. The first is a transform (softcap) of 16-bit types, which is
// computed from reciprocals (score_transform.cuh). The constant and the factor of the transform are merged with those
// of the softmax. The second is a 16-bit bias. If TMA can load the bias, it loads the bias together with k
// (kTermsTiles). Otherwise each lane loads chunks of 16 bytes while the products run. Loads of 4 bytes in accumulator
// order would touch the same number of L1 cache lines for a quarter of the bytes, and each tile would wait for them.
#pragma once

#include "../attention/accumulator_scores.cuh"
#include "packed_drop.cuh"
#include "quad_transpose.cuh"
#include "sm90_terms_tile.cuh"
#include "sm90_work.cuh"

namespace attend {

template <class Config>
struct Sm90Scores {
  static constexpr int kScores = Config::kBlockN / 2;
  static constexpr bool kHasRules = Score<Config>::kChangesScores;
  static constexpr bool kHolds = Score<Config>::kIsCustom && CustomScoreCode::kHolds;
  static constexpr bool kLoadsTermsEarly = Score<Config>::kOnlyAddsFromMemory && !Config::kTermsTiles &&
                                           sizeof(typename TermsElementOf<Config>::Storage) == sizeof(Bits16) &&
                                           Config::kBlockN % 32 == 0;
  // Whether `rules` stays in registers for all key tiles. If scores need values from memory, those values need the
  // registers that pointers and strides would occupy. The rules are then built again for each tile. The rules are also
  // built again for custom scores. If kOverlap needs registers for a second p, they are also built again for dropout
  // combined with a term by position (ALiBi).
  static constexpr bool kKeepsRules = (kHasRules || Score<Config>::kDrops) && !Score<Config>::kReadsMemory &&
                                      !Score<Config>::kIsCustom &&
                                      !(Score<Config>::kDrops && Score<Config>::kAddsByPosition && Config::kOverlap);
  static constexpr int kTermsOfChunk = 8;  // elements of the bias that a lane loads with one instruction
  using TermsElement = TermsElementOf<Config>;
  static constexpr int kTermsWords = kLoadsTermsEarly ? kScores / 2 : 1;

  const Sm90ForwardArgs& args;
  const Sm90Work& work;   // in shared memory, so that rarely used values occupy no registers
  int consumer;           // index of the consumer warpgroup
  Sm90KeyTiles unmasked;  // key tiles in which all rows of the warpgroup see all keys
  Sm90KeyList<Config> list;
  ScoreRules<Config> rules;
  PhiloxProduct random_row;  // Philox product of the row for which this thread computes random words

  [[nodiscard]] static __device__ __forceinline__ Sm90Scores of(const Sm90ForwardArgs& args, const Sm90Work& work,
                                                                int consumer, const WindowMask& mask,
                                                                const Sm90KeyList<Config>& list) {
    Sm90Scores scores = {args, work, consumer, {}, list, {}, {}};
    scores.unmasked = unmasked_tiles_of_rows<Config, kWarpgroupRows>(mask, work.row + consumer * kWarpgroupRows);
    if constexpr (kKeepsRules) scores.rules = sm90_rules<Config>(args, work);
    if constexpr (Score<Config>::kDrops) {
      const TileRules<Config> tile = scores.rules_of_tile(0);
      scores.random_row = philox_row(tile.drop_mask, static_cast<uint32>(tile.first_row) + row_decided_by(thread()));
    }
    return scores;
  }

  // Returns the key tile at a position of the tile list.
  [[nodiscard]] __device__ __forceinline__ SeenKeyTile<Config> tile_at(int place) const {
    return list.tile(place, consumer, thread());
  }

  // Returns the factor that turns the values in s into exponents of 2.
  [[nodiscard]] __device__ __forceinline__ float multiplier() const {
    if constexpr (kFoldsScale<Config>) {
      return args.scale_log2;
    } else if constexpr (Score<Config>::kAdds || Score<Config>::kIsCustom) {
      return kLog2E;
    } else {
      return ScoreTransform::cap_of(args.options) * (is_reciprocal(args) ? 2.0f * kLog2E : kLog2E);
    }
  }
  // Returns the value that must be added to lse: the cap if s holds -r of a transform, and 0 otherwise.
  [[nodiscard]] static __device__ __forceinline__ float lse_offset(const Sm90ForwardArgs& args) {
    return is_reciprocal(args) ? ScoreTransform::cap_of(args.options) : 0.0f;
  }

  // Loads this thread's bias entries of key tile n if all rows see all keys of the tile. The load needs no scores, so
  // it overlaps with the products. Returns whether the entries were loaded.
  [[nodiscard]] __device__ __forceinline__ bool load_terms(uint32 (&terms)[kTermsWords], int n) const {
    if constexpr (kLoadsTermsEarly) {
      const TileRules<Config> tile = rules_of_tile(n);
      if (!tile.template all_visible<kWarpgroupRows, Config::kBlockN>()) return false;
      if (!are_chunks(tile.terms, tile.terms_row_stride)) return false;
#pragma unroll
      for (int h = 0; h < kRowsOfThread; ++h) {
        const auto* from = tile.terms + (accumulator_row(thread()) + h * kRowHalf) * tile.terms_row_stride +
                           thread() % 4 * kTermsOfChunk;
#pragma unroll
        for (int i = 0; i < kTermsWords / 8; ++i) {
          uint32* to = terms + (2 * i + h) * 4;
          // volatile, because the compiler would otherwise move the load after the wait for the products.
          asm volatile("ld.global.nc.v4.b32 {%0, %1, %2, %3}, [%4];"
                       : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                       : "l"(from + i * 4 * kTermsOfChunk));
        }
      }
      return true;
    }
    return false;
  }

  // Turns s into the values that the softmax reads. Keys that a row does not see get -inf. Even a full mask has two
  // groups of hidden keys: keys beyond the sequence's end, which are in the first processed tile, and keys that a block
  // mask hides.
  template <bool kIsFirst>
  __device__ __forceinline__ void finish(float (&s)[kScores], const SeenKeyTile<Config>& tile, bool has_terms,
                                         const uint32 (&terms)[kTermsWords]) const {
    finish_seen<kIsFirst>(s, tile.number, has_terms, terms);
    tile.hide(s);
  }

  // Sets s of the cache's hidden keys to -inf, if kIsCached is set. `count` is RingPlace::count of the tile in the ring
  // of k.
  __device__ __forceinline__ void hide(float (&s)[kScores], const Sm90Storage<Config>& smem, uint32 count) const {
    if constexpr (Config::kIsCached) {
      const Sm90KeyBits<Config>& hidden = smem.hidden.of_tile[count % smem.hidden.kTiles];
      if (!hidden.any()) return;
#pragma unroll
      for (int i = 0; i < kScores; ++i) {
        const int key = i / 4 * kColumnsOfTile + accumulator_column(thread()) + i % 2;
        if ((hidden.word[i / 4 * kColumnsOfTile / kWarpThreads] >> key % kWarpThreads & 1) != 0) s[i] = -kInfinity;
      }
    }
  }

  // Adds the bias to s. `tile` is the shared-memory address of the bias tile. The products in s are multiplied by the
  // scale.
  __device__ __forceinline__ void add_terms_tile(float (&s)[kScores], uint32 tile) const {
    if constexpr (Config::kTermsTiles) {
#pragma unroll
      for (int panel = 0; panel < Config::kBlockN / kPanelColumns; ++panel) {
        Sm90TermsFragment<TermsElement, false> terms;
        terms.read(tile + panel * Sm90Shape<Config>::kPanelBytesQ + consumer * kWarpgroupRows * kSwizzleBytes,
                   thread());
        terms.add(s + panel * kPanelColumns / 2, args.base.scale);
      }
    }
  }

  // Decides which entries of the tile dropout keeps. A quad is a group of four keys that share one Philox state. The
  // states of the tile's quads arrived with k in this buffer. The decision needs no scores, so it overlaps with the
  // products.
  __device__ __forceinline__ void decide(uint32 (&kept)[kKeptWords<kScores>], const Sm90Storage<Config>& smem,
                                         uint32 buffer) const {
    if constexpr (Score<Config>::kDrops) {
      kept_bits_factored<kScores, 4>(rules_of_tile(0).drop_mask, random_row, smem.quads.of_tile[buffer], kept,
                                     thread());
    }
  }
  // Sets the entries of p that dropout removes to 0. They stay part of the softmax's row sum, which was computed
  // before.
  __device__ __forceinline__ void drop(uint32 (&p)[kScores / 2], const uint32 (&kept)[kKeptWords<kScores>]) const {
    if constexpr (Score<Config>::kDrops) drop_pairs<kScores>(p, kept);
  }

 private:
  // Does the same as finish(), but does not apply the block mask.
  template <bool kIsFirst>
  __device__ __forceinline__ void finish_seen(float (&s)[kScores], int n, bool has_terms,
                                              const uint32 (&terms)[kTermsWords]) const {
    if (kLoadsTermsEarly && has_terms) {
      add_terms(s, terms);
    } else if constexpr (Config::kTermsTiles) {
      mask_tile<kIsFirst>(s, n);
    } else if (is_reciprocal(args)) {
      const float factor = rules.transform.to_exponent();
#pragma unroll
      for (int i = 0; i < kScores; ++i) s[i] = ScoreTransform::minus_r(s[i] * factor);
      mask_tile<kIsFirst>(s, n);
    } else if constexpr (kHasRules) {
      TileRules<Config> tile = rules_of_tile(n);
      if (!tile.template all_visible<kWarpgroupRows, Config::kBlockN>()) {
        apply_rules<false>(tile, s, thread());
      } else if (kHolds && tile.template hold<kWarpgroupRows, Config::kBlockN>()) {
        apply_rules_held(tile, s, thread());
      } else {
        apply_rules<true>(tile, s, thread());
      }
    } else {
      mask_tile<kIsFirst>(s, n);
    }
  }
  [[nodiscard]] static __device__ __forceinline__ int thread() {
    return static_cast<int>(threadIdx.x) % kWarpgroup;
  }
  [[nodiscard]] __device__ __forceinline__ TileRules<Config> rules_of_tile(int n) const {
    const int64 row = work.row + consumer * kWarpgroupRows;
    const int64 key = static_cast<int64>(n) * Config::kBlockN;
    if constexpr (kKeepsRules) return rules.tile(row, key);
    return sm90_rules<Config>(args, work).tile(row, key);
  }
  // Returns a window bound as an int. Limits it to 2^30, which exceeds any sequence length, so that adding a row index
  // does not overflow.
  [[nodiscard]] static __device__ __forceinline__ int clamped(int64 window) {
    return static_cast<int>(min(window, int64{1} << 30));
  }
  // Returns the index of the first key of tile n for which this thread holds scores.
  [[nodiscard]] __device__ __forceinline__ int first_key(int n) const {
    return n * Config::kBlockN + accumulator_column(thread());
  }
  // Returns the key on the diagonal for the thread's row h = 0.
  [[nodiscard]] __device__ __forceinline__ int diagonal() const {
    return work.row + consumer * kWarpgroupRows + accumulator_row(thread()) + work.seqlen_k - work.seqlen_q;
  }
  // Returns whether the transform is computed from its reciprocal r. The values in s are then -r.
  [[nodiscard]] static __device__ __forceinline__ bool is_reciprocal(const Sm90ForwardArgs& args) {
    return Score<Config>::kOnlyTransforms && Config::kElement != ElementType::kF32 &&
           ScoreTransform::can_be_reciprocal(args.options);
  }
  __device__ __forceinline__ void add_terms(float (&s)[kScores], const uint32 (&terms)[kTermsWords]) const {
    if constexpr (kLoadsTermsEarly) {
#pragma unroll
      for (int i = 0; i < kTermsWords / 4; ++i) {
        // Four words have 32 keys of row h; each lane of the quad loaded 8 of them.
        uint32 four[4] = {terms[4 * i], terms[4 * i + 1], terms[4 * i + 2], terms[4 * i + 3]};
        transpose_quad(four);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          float* pair = s + 4 * (i / 2 * 4 + j) + 2 * (i % 2);
          pair[0] = fmaf(pair[0], args.base.scale, TermsElement::low(four[j]));
          pair[1] = fmaf(pair[1], args.base.scale, TermsElement::high(four[j]));
        }
      }
    }
  }
  // Returns whether each chunk of eight elements of each row is aligned to 16 bytes, so that one load can read it.
  template <class Storage>
  [[nodiscard]] static __device__ __forceinline__ bool are_chunks(const Storage* data, int64 row_stride) {
    return reinterpret_cast<uint64>(data) % 16 == 0 && row_stride % kTermsOfChunk == 0;
  }
  template <bool kIsFirst>
  __device__ __forceinline__ void mask_tile(float (&s)[kScores], int n) const {
    if constexpr (kIsFirst || Config::kMask != MaskKind::kFull) {
      if (n >= unmasked.end) mask_end(s, n);
    }
    if constexpr (Config::kMask == MaskKind::kWindow) {
      if (n < unmasked.begin) mask_begin(s, n);
    }
  }
  __device__ __forceinline__ void mask_end(float (&s)[kScores], int n) const {
    const int keys = work.seqlen_k - first_key(n);
    const int right = Config::kMask == MaskKind::kCausal ? 0 : clamped(args.options.window_right);
#pragma unroll
    for (int h = 0; h < kRowsOfThread; ++h) {
      int first_unseen = keys;
      if constexpr (Config::kMask != MaskKind::kFull) {
        if (right >= 0) first_unseen = min(first_unseen, diagonal() + h * kRowHalf - first_key(n) + 1 + right);
      }
#pragma unroll
      for (int i = 2 * h; i < kScores; i += 4) {
        const int column = i / 4 * kColumnsOfTile;
        if (column >= first_unseen) s[i] = -kInfinity;
        if (column + 1 >= first_unseen) s[i + 1] = -kInfinity;
      }
    }
  }
  __device__ __forceinline__ void mask_begin(float (&s)[kScores], int n) const {
    const int left = clamped(args.options.window_left);  // an open window masks no tile, so this code never sees its
                                                         // bound
#pragma unroll
    for (int h = 0; h < kRowsOfThread; ++h) {
      const int first_seen = diagonal() + h * kRowHalf - left - first_key(n);
#pragma unroll
      for (int i = 2 * h; i < kScores; i += 4) {
        const int column = i / 4 * kColumnsOfTile;
        if (column < first_seen) s[i] = -kInfinity;
        if (column + 1 < first_seen) s[i + 1] = -kInfinity;
      }
    }
  }
};

}  // namespace attend
