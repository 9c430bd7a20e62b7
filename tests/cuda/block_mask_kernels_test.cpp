// Tests kernels with block masks. Checks the lists of key tiles that they read, and compiles them without warnings.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "attend/block_mask.hpp"
#include "cuda/jit_fixture.hpp"
#include "cuda/launch/block_map.hpp"
#include "cuda/launch/block_mask_lists.hpp"
#include "kernels/sm90/sm90_backward_schedule.cuh"
#include "kernels/tiles/accumulator_mask.cuh"
#include "made_up.hpp"

namespace attend::test {
namespace {

using Index = std::int64_t;

/// Returns whether a row sees a key, by the method of a kernel. The kernel reads the list of tiles and the bits of each
/// pattern tile.
class ByLists {
 public:
  ByLists(const BlockMask& mask, Index rows, Index keys)
      : tiles_(*mask.state()),
        rows_(rows),
        keys_(keys),
        lists_(cuda::BlockMaskLists::of(tiles_, static_cast<int>(rows), static_cast<int>(keys))),
        words_(cuda::pattern_words(tiles_)) {}

  [[nodiscard]] bool sees(Index head, Index q, Index k) const {
    const Index patterns = keys_ / 64, words = 1 + rows_ / 64 * patterns;
    const Index of_head = (tiles_.seqlen_q + rows_ - 1) / rows_;
    const int64* at = lists_.begin.data() + head * of_head + q / rows_;
    for (Index n = at[0]; n < at[1]; ++n) {
      const int* entry = lists_.entries.data() + n * words;
      EXPECT_TRUE(n == at[0] || entry[0] > entry[-words]);
      if (entry[0] != k / keys_) continue;
      const int pattern = entry[1 + q % rows_ / 64 * patterns + k % keys_ / 64];
      return pattern < 0 ? pattern == kAllSeen : bit(pattern, static_cast<int>(q % 64), static_cast<int>(k % 64));
    }
    return false;
  }
  [[nodiscard]] std::size_t num_tiles() const { return lists_.entries.size() / (1 + rows_ / 64 * (keys_ / 64)); }

 private:
  [[nodiscard]] bool bit(int pattern, int row, int key) const {
    const int thread = row / 16 * 32 + row % 8 * 4 + key % 8 / 2;
    const int i = key / 8 * 4 + row / 8 % 2 * 2 + key % 2;
    return (words_[static_cast<std::size_t>(pattern) * kPatternWords + thread] >> i & 1) != 0;
  }

  const core::BlockTiles& tiles_;
  Index rows_, keys_;
  cuda::BlockMaskLists lists_;
  std::vector<uint32> words_;
};

TEST(BlockMaskLists, SeeWhatTheMaskSees) {
  constexpr Index kRows = 300, kKeys = 517;
  for (const char* text : {"k <= q", "abs(q - k - 200) < 30 + 20 * h", "(q * 7 + k * 3 + b) % 5 < 2 && q // 64 != 1",
                           "false", "q // 128 == k // 128"}) {
    const BlockMask mask = make_block_mask(MaskFunction(text), {2, 3, kRows, kKeys});
    const BlockMaskShape shape = mask.shape();
    for (const Index rows : {64, 128, 192}) {
      for (const Index keys : {64, 128}) {
        const ByLists lists(mask, rows, keys);
        for (Index head = 0; head < shape.batch * shape.num_heads; ++head) {
          for (Index q = 0; q < kRows; ++q) {
            for (Index k = 0; k < kKeys; ++k) {
              ASSERT_EQ(lists.sees(head, q, k), mask.sees(head / shape.num_heads, head % shape.num_heads, q, k))
                  << text << " " << rows << "x" << keys << " " << head << " " << q << " " << k;
            }
          }
        }
      }
    }
    EXPECT_EQ(std::string(text) == "false", ByLists(mask, 128, 128).num_tiles() == 0);
  }
}

/// In deterministic mode, the blocks that see a row tile add to dq one after another. Checks that their turns are 0, 1,
/// 2, ... in the order in which the kernel processes the blocks.
void expect_turns(const cuda::BlockMaskLists& lists, Index entry_words, int blocks, bool is_persistent) {
  const auto order = Sm90BackwardOrder::of(blocks, is_persistent);
  for (Index first = 0; first + 1 < static_cast<Index>(lists.begin.size()); first += blocks) {
    std::map<int, int> turns;
    for (int place = 0; place < blocks; ++place) {
      const Index list = first + order.block_at(place);
      for (Index n = lists.begin[list]; n < lists.begin[list + 1]; ++n) {
        const int* entry = lists.entries.data() + n * entry_words;
        ASSERT_EQ(entry[entry_words - 1], turns[entry[0]]++) << blocks << " " << list << " " << entry[0];
      }
    }
  }
}

TEST(BlockMaskLists, ByKeysSeeTheSame) {
  constexpr Index kRows = 300, kKeys = 517;
  for (const char* text : {"k <= q", "abs(q - k - 200) < 30 + 20 * h", "(q * 7 + k * 3 + b) % 5 < 2 && q // 64 != 1"}) {
    const BlockMask mask = make_block_mask(MaskFunction(text), {2, 4, kRows, kKeys});
    const core::BlockTiles& tiles = *mask.state();
    const std::vector<uint32> words = cuda::pattern_words(tiles, true);
    for (const Index block : {64, 128, 192}) {
      for (const Index group : {1, 2, 4}) {
        const bool is_persistent = block == 128;
        const cuda::BlockMaskLists lists =
            cuda::BlockMaskLists::by_keys(tiles, static_cast<int>(block), static_cast<int>(group), is_persistent);
        const Index own = tiles.num_heads == 1 ? 1 : group, blocks = (kKeys + block - 1) / block;
        const Index entry_words = 2 + own * (block / 64);
        std::vector<char> seen(static_cast<std::size_t>(tiles.batch * tiles.num_heads * kRows * kKeys));
        for (Index list = 0; list + 1 < static_cast<Index>(lists.begin.size()); ++list) {
          for (Index n = lists.begin[list]; n < lists.begin[list + 1]; ++n) {
            const int* entry = lists.entries.data() + n * entry_words;
            EXPECT_TRUE(n == lists.begin[list] || entry[0] > entry[-entry_words]);
            for (Index pair = 0; pair < own * (block / 64) * 64 * 64; ++pair) {
              const Index place = pair / 4096, q = entry[0] * 64 + pair / 64 % 64, in_tile = pair % 64;
              const Index k = list % blocks * block + place % (block / 64) * 64 + in_tile;
              if (q >= kRows || k >= kKeys) continue;
              const int pattern = entry[1 + place];
              // In this layout the roles of rows and keys are exchanged.
              const int thread = static_cast<int>(in_tile / 16 * 32 + in_tile % 8 * 4 + q % 8 / 2);
              const int i = static_cast<int>(q % 64 / 8 * 4 + in_tile / 8 % 2 * 2 + q % 2);
              const bool sees = pattern < 0
                                    ? pattern == kAllSeen
                                    : (words[static_cast<std::size_t>(pattern) * kPatternWords + thread] >> i & 1) != 0;
              const Index head = list / blocks * own + place / (block / 64);
              seen[static_cast<std::size_t>((head * kRows + q) * kKeys + k)] = sees;
            }
          }
        }
        expect_turns(lists, entry_words, static_cast<int>(blocks), is_persistent);
        for (Index head = 0; head < tiles.batch * tiles.num_heads; ++head) {
          for (Index q = 0; q < kRows; ++q) {
            for (Index k = 0; k < kKeys; ++k) {
              ASSERT_EQ(seen[static_cast<std::size_t>((head * kRows + q) * kKeys + k)] != 0,
                        mask.sees(head / tiles.num_heads, head % tiles.num_heads, q, k))
                  << text << " " << block << " " << group << " " << head << " " << q << " " << k;
            }
          }
        }
      }
    }
  }
}

TEST(BlockMaskLists, ManyBlocksTakeTurnsInTheKernelsOrder) {
  const BlockMask mask =
      make_block_mask(MaskFunction("(q * 7 + k * 3) % 5 < 2 || q // 64 == k // 500"), {1, 1, 130, 2600});
  for (const bool is_persistent : {false, true}) {
    constexpr int kBlocks = (2600 + 127) / 128;
    EXPECT_NE(Sm90BackwardOrder::of(kBlocks, true).block_at(kBlocks - 1),
              Sm90BackwardOrder::of(kBlocks, false).block_at(kBlocks - 1));
    expect_turns(cuda::BlockMaskLists::by_keys(*mask.state(), 128, 1, is_persistent), 4, kBlocks, is_persistent);
  }
}

/// Finds out whether a row sees a key from the bits of a map, as kernels without lists do.
bool sees_in_map(const core::BlockTiles& tiles, const cuda::BlockMaskMap& map, Index head, Index q, Index k,
                 bool by_keys) {
  const Index at = (head * tiles.tile_rows() + q / 64) * tiles.tile_columns() + k / 64;
  const int pattern = map.tiles[static_cast<std::size_t>(at)];
  if (pattern < 0) return pattern == kAllSeen;
  const Index word = by_keys ? 64 + k % 64 : q % 64, bit = by_keys ? q % 64 : k % 64;
  return (map.patterns[static_cast<std::size_t>(pattern * kMapPatternWords + word)] >> bit & 1) != 0;
}

TEST(BlockMaskMap, SeesWhatTheMaskSees) {
  constexpr Index kRows = 300, kKeys = 517;
  for (const char* text :
       {"k <= q", "abs(q - k - 200) < 30 + 20 * h", "(q * 7 + k * 3 + b) % 5 < 2 && q // 64 != 1", "false", "true"}) {
    const BlockMask mask = make_block_mask(MaskFunction(text), {2, 3, kRows, kKeys});
    const BlockMaskShape shape = mask.shape();
    const core::BlockTiles& tiles = *mask.state();
    const auto map = cuda::BlockMaskMap::of(tiles);
    ASSERT_EQ(static_cast<Index>(map.tiles.size()), shape.batch * shape.num_heads * 5 * 9);
    for (Index head = 0; head < shape.batch * shape.num_heads; ++head) {
      for (Index q = 0; q < kRows; ++q) {
        for (Index k = 0; k < kKeys; ++k) {
          const bool wanted = mask.sees(head / shape.num_heads, head % shape.num_heads, q, k);
          for (const bool by_keys : {false, true}) {
            ASSERT_EQ(sees_in_map(tiles, map, head, q, k, by_keys), wanted) << text << " " << q << " " << k;
          }
        }
      }
    }
  }
}

class BlockMaskKernels : public NvrtcTest {
 protected:
  /// Compiles the kernels that a family uses for one problem with a block mask. Returns the number of kernels.
  static int compile_all(const cuda::Family& family, DType dtype, Index head_dim, const Params& params, bool backward,
                         const char* arch) {
    const BlockMask mask = make_block_mask(MaskFunction("k <= q || k < 5"), {1, 1, 1000, 1000});
    const cuda::DeviceInfo gpu = device(arch, 132);
    Params with_mask = params;
    with_mask.block_mask = &mask;
    MadeUp made(dtype, {.head_dim = head_dim, .head_dim_v = head_dim}, with_mask, backward);
    if (!family.supports(gpu.arch()) || family.lack(made.problem, gpu)) return 0;
    int compiled = 0;
    for (const cuda::KernelSpec& spec : family.kernels(family.choose(made.problem, gpu).variant, gpu.arch())) {
      const cuda::Resources resources = compiled_without_warnings(spec);
      const int spilled = resources.spill_store_bytes + resources.spill_load_bytes;
      std::printf("%s %s d %d%s%s%s %s: %d registers, %d bytes spilled\n", spec.name.c_str(), dtype_name(dtype),
                  static_cast<int>(head_dim), params.causal ? " causal" : "", params.softcap > 0 ? " softcap" : "",
                  params.dropout_p > 0 ? " dropout" : "", arch, resources.registers, spilled);
      ++compiled;
    }
    return compiled;
  }
};

/// Compiles kernels of sm90, which reads lists of tiles, and a few kernels of the other families, which read a map.
/// With ATTEND_TEST_FAMILY, all kernels of that family are compiled.
TEST_F(BlockMaskKernels, CompileWithoutWarnings) {
  const char* const only = std::getenv("ATTEND_TEST_FAMILY");
  int compiled = 0;
  for (const cuda::Family* family : cuda::families()) {
    const std::string name = family->name;
    if (only != nullptr && name != only) continue;
    const bool has_lists = name.starts_with("sm90");
    const bool is_simt = name == "simt";
    const bool has_all = has_lists || only != nullptr;
    for (const bool backward : {false, true}) {
      for (const Index head_dim : has_all ? std::vector<Index>{64, 96, 128, 192, 256} : std::vector<Index>{128}) {
        for (const Params& params :
             {Params{}, Params{.causal = true}, Params{.softcap = 30}, Params{.dropout_p = 0.1}}) {
          if (!has_all && (params.causal || params.softcap > 0)) continue;
          for (const char* arch : {"sm_90a", "sm_80", "sm_89"}) {
            if (std::string(arch) != "sm_90a" && (has_lists || only == nullptr)) continue;
            compiled += compile_all(*family, is_simt ? DType::kF32 : DType::kBF16, head_dim, params, backward, arch);
          }
        }
      }
    }
  }
  EXPECT_GT(compiled, 0);
}

}  // namespace
}  // namespace attend::test
