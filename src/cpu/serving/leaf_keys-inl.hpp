// Finds the addresses of the keys and values of leaves in a cache, in the order in which a tile reads them. Included
// once per SIMD target.
#if defined(ATTEND_CPU_LEAF_KEYS_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTEND_CPU_LEAF_KEYS_INL
#undef ATTEND_CPU_LEAF_KEYS_INL
#else
#define ATTEND_CPU_LEAF_KEYS_INL
#endif

#include <algorithm>

#include "core/elements.hpp"
#include "cpu/serving/cached_rows-inl.hpp"
#include "cpu/serving/decode_tiles.hpp"

HWY_BEFORE_NAMESPACE();
namespace attend::cpu::HWY_NAMESPACE {

using core::DecodeProblem;

// On processors without instructions newer than SSE4, products take longer than memory accesses, so prefetches would
// not help.
constexpr bool kPrefetches = HWY_TARGET != HWY_SSE4;

// If the keys and values are not in a processor cache, their rows are prefetched into the first-level cache. Keys are
// prefetched kKeyBytesAhead bytes before they are read, or a quarter of that if four leaves are interleaved. Values are
// prefetched one block ahead. Two blocks of values fit into the first-level cache of 32 KiB, unless rows are long.
// Smaller blocks would be slower, because the sums are loaded and stored once per block.
constexpr std::int64_t kKeyBytesAhead = 8 << 10;
constexpr std::int64_t kValueBytesAtOnce = 16 << 10;
constexpr std::int64_t kFewestValuesAtOnce = 32;
constexpr std::int64_t kMostValuesAtOnce = 64;
constexpr std::int64_t kMostAhead = 128;  // maximum number of rows that are prefetched ahead

/// The range of keys of one leaf and their scale factors.
struct LeafKeys {
  // First key, rounded down to a multiple of the vector length, because the position of a key determines its lane.
  std::int64_t begin = 0;
  std::int64_t count = 0;
  bool some_missing = false;
  // Scale factors of the keys and values of an 8-bit cache. The factor is 1 for a key that does not exist. Unset if the
  // cache has no factors.
  float k_descale[kLeaf];
  float v_descale[kLeaf];

  /// Multiplies `s` by `factors`, in full vectors.
  HWY_NOINLINE void multiply(float* HWY_RESTRICT s, const float* HWY_RESTRICT factors) const {
    for (std::int64_t j = 0; j < count; j += kLanes) {
      hn::StoreU(hn::Mul(hn::LoadU(kFloats, s + j), hn::LoadU(kFloats, factors + j)), kFloats, s + j);
    }
  }
};

/// Addresses of the rows of one leaf, or of kLeavesAtOnce full leaves. The rows of several leaves are interleaved: the
/// first key of each leaf, then the second key of each leaf, and so on. This order is faster, because memory has a
/// higher rate if a processor reads several regions alternately.
struct KeyRows {
  int leaves = 0;
  LeafKeys leaf[kLeavesAtOnce];
  // Rows are in the order in which the tile reads them: key j of leaf n is k[j * leaves + n]. The number of keys is
  // rounded up to a multiple of kKeysAtOnce. If the tile prefetches, each array continues with rows that are only
  // prefetched. k continues with the first values, and v continues with the first keys of the next leaves.
  const void* k[kLeavesAtOnce * kLeaf + kMostAhead];
  const void* v[kLeavesAtOnce * kLeaf + kMostAhead];

  /// Returns the number of key rows to multiply, rounded up to a multiple of kKeysAtOnce per leaf. Some of the last
  /// rows may stand for keys that do not exist.
  [[nodiscard]] std::int64_t rows_scored() const { return leaves * round_up(leaf[0].count, kKeysAtOnce); }

  /// Finds the rows of `number` leaves, starting with leaf `first`. If a key does not exist, its address is `missing`,
  /// a row of zeros. The function is not inlined, so that all instances of TilePass share one copy of its code.
  HWY_NOINLINE void find(const DecodeProblem& p, const DecodeTile& tile, const KeyRange& of_tile, std::int64_t first,
                         int number, const void* missing) {
    leaves = number;
    for (int n = 0; n < leaves; ++n) {
      const std::int64_t begin = (first + n) * kLeaf;
      find_leaf(p, tile, {std::max(of_tile.begin, begin), std::min(of_tile.end, begin + kLeaf)}, n, missing);
    }
    const std::int64_t values = leaves * leaf[0].count;
    const std::int64_t scored = rows_scored();
    std::fill(k + values, k + scored, missing);
    std::fill(v + values, v + values + kMostAhead, missing);
    if (!kPrefetches || !tile.prefetches) return;
    for (int n = 0; n < leaves; ++n) {
      const std::int64_t begin = (first + leaves + n) * kLeaf;
      const std::int64_t end = std::min(of_tile.end, begin + kMostAhead / leaves);
      for (std::int64_t key = begin; key < end;) {
        const core::CacheRun run = p.run(tile.sequence, key);
        const std::int64_t rows = std::min(end - key, run.count);
        find_rows(p.k, tile, run, v + values + (key - begin) * leaves + n, rows, missing);
        key += rows;
      }
    }
    std::copy_n(v, kMostAhead, k + scored);
  }

 private:
  void find_leaf(const DecodeProblem& p, const DecodeTile& tile, const KeyRange& range, int n, const void* missing) {
    LeafKeys& keys = leaf[n];
    keys.begin = range.begin / kLanes * kLanes;
    keys.count = range.end - keys.begin;
    keys.some_missing = false;
    for (std::int64_t j = 0; j < range.begin - keys.begin; ++j) {  // no row sees these keys
      k[j * leaves + n] = missing;
      v[j * leaves + n] = missing;
    }
    if (p.k_descale.data != nullptr) std::fill_n(keys.k_descale, kLeaf, 1.0F);
    if (p.v_descale.data != nullptr) std::fill_n(keys.v_descale, kLeaf, 1.0F);
    for (std::int64_t key = range.begin; key < range.end;) {
      const core::CacheRun run = p.run(tile.sequence, key);
      const std::int64_t rows = std::min(range.end - key, run.count);
      const std::int64_t at = key - keys.begin;
      keys.some_missing |= run.block < 0;
      if (run.block >= 0) {
        find_factors(p.k_descale, tile, run, keys.k_descale + at, rows);
        find_factors(p.v_descale, tile, run, keys.v_descale + at, rows);
      }
      find_rows(p.k, tile, run, k + at * leaves + n, rows, missing);
      find_rows(p.v, tile, run, v + at * leaves + n, rows, missing);
      key += rows;
    }
  }

  /// Finds the addresses of the next `rows` rows of a run of keys.
  void find_rows(const Tensor& cache, const DecodeTile& tile, const core::CacheRun& run, const void** to,
                 std::int64_t rows, const void* missing) const {
    const bool is_missing = run.block < 0;
    const std::int64_t step = is_missing ? 0 : cache.stride[2] * dtype_bytes(cache.dtype);
    const auto* from =
        static_cast<const char*>(is_missing ? missing : core::element(cache, run.block, tile.key_head, run.row));
    for (std::int64_t i = 0; i < rows; ++i, from += step) to[i * leaves] = from;
  }

  HWY_NOINLINE static void find_factors(const core::Descale& descale, const DecodeTile& tile, const core::CacheRun& run,
                                        float* to, std::int64_t keys) {
    if (descale.data == nullptr) return;
    const float* factor = descale.of(tile.sequence.index, tile.key_head, {run.block, run.row});
    for (std::int64_t n = 0; n < keys; ++n) to[n] = core::multiplier(factor[n * descale.row_stride]);
  }
};

}  // namespace attend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
