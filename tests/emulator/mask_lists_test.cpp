// Compares two sets of tile lists: those that sm90's kernels build from a boolean mask, and those that the host builds
// from the same block mask.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "attend/block_mask.hpp"
#include "core/block_tiles.hpp"
#include "cuda/launch/block_mask_lists.hpp"
#include "cuda/launch/families.hpp"
#include "cuda/launch/sm90_mask_steps.hpp"
#include "emulator/emulated_kernel.hpp"
#include "support/attention_case.hpp"

namespace attend::test {
namespace {

using Index = std::int64_t;

constexpr Index kHeads = 4, kBatch = 2;

/// One entry of a list: the tile's number, the words of each pattern, and the turn. Only the lists of row tiles for a
/// key tile have turns. A turn is the position of a key tile in the order in which dq is summed.
using Entry = std::tuple<int, std::vector<std::vector<uint32>>, int>;
using Lists = std::vector<std::vector<Entry>>;

Entry entry_of(const int* entry, int words, bool by_keys, const uint32* patterns) {
  std::vector<std::vector<uint32>> of_tiles;
  for (int i = 1; i < words - (by_keys ? 1 : 0); ++i) {
    const Index pattern = entry[i];
    if (pattern < 0) {
      of_tiles.push_back({static_cast<uint32>(pattern)});
    } else {
      of_tiles.emplace_back(patterns + pattern * kPatternWords, patterns + (pattern + 1) * kPatternWords);
    }
  }
  return {entry[0], of_tiles, by_keys ? entry[words - 1] : 0};
}

Lists on_host(const cuda::BlockMaskLists& lists, const core::BlockTiles& tiles, int words, bool by_keys) {
  const std::vector<uint32> patterns = cuda::pattern_words(tiles, by_keys);
  Lists all;
  for (std::size_t list = 0; list + 1 < lists.begin.size(); ++list) {
    all.emplace_back();
    for (Index n = lists.begin[list]; n < lists.begin[list + 1]; ++n) {
      all.back().push_back(entry_of(lists.entries.data() + n * words, words, by_keys, patterns.data()));
    }
  }
  return all;
}

Lists by_kernels(const BlockMaskArgs& args, std::size_t num_lists, bool by_keys) {
  Lists all(num_lists);
  for (std::size_t list = 0; list < num_lists; ++list) {
    for (Index n = args.bounds[2 * list]; n < args.bounds[2 * list + 1]; ++n) {
      all[list].push_back(entry_of(args.entries + n * args.entry_words, args.entry_words, by_keys, args.patterns));
    }
  }
  return all;
}

/// Returns the compiled kernel. Each kernel is compiled once.
const EmulatedKernel& kernel_of(const cuda::KernelSpec& spec) {
  static std::map<std::string, EmulatedKernel> all;
  return all.try_emplace(cuda::identity(spec), spec).first->second;
}

struct Recipe {
  const char* text;
  Index seqlen_q, seqlen_k;
  bool causal = false;
  CaseLayout layout = CaseLayout::kBHSD;
};

/// Makes a forward call whose boolean mask equals the mask text. The call's window does not hide any further key.
/// Compares the kernels' lists with the host's.
void expect_the_hosts(const Recipe& recipe, int rows, int keys, int heads_k) {
  AttentionCase c = {.dtype = DType::kBF16,
                     .batch = kBatch,
                     .heads_q = kHeads,
                     .heads_k = heads_k,
                     .seqlen_q = recipe.seqlen_q,
                     .seqlen_k = recipe.seqlen_k,
                     .causal = recipe.causal,
                     .layout = recipe.layout};
  const BlockMask mask = make_block_mask(MaskFunction(recipe.text), {kBatch, kHeads, recipe.seqlen_q, recipe.seqlen_k});
  const core::BlockTiles& tiles = *mask.state();
  c.mask = Broadcast{tiles.batch > 1, tiles.num_heads > 1, true};
  Inputs in = make_inputs(c);
  in.mask->generate([&](Index b, Index h, Index q, Index k) {
    return mask.sees(tiles.batch > 1 ? b : 0, tiles.num_heads > 1 ? h : 0, q, k) ? 1.0 : 0.0;
  });
  const Outputs out = make_outputs(in);
  const core::Problem p = core::make_problem(forward_of(in, out, "cpu"));
  const bool is_persistent = keys == 128;
  const cuda::Sm90MaskLists wanted = {.by_rows_rows = rows,
                                      .by_rows_keys = keys,
                                      .by_keys_keys = keys,
                                      .has_order = true,
                                      .is_persistent = is_persistent};
  const cuda::Sm90MaskSteps steps(p, wanted);
  std::vector<cuda::KernelSpec> specs;
  wanted.add_specs(cuda::find_arch("sm_90a"), specs);
  cuda::Choice choice;
  steps.add_steps(choice);
  ASSERT_EQ(specs.size(), wanted.num_steps());
  ASSERT_EQ(choice.num_steps, wanted.num_steps());
  std::vector<std::byte> memory(static_cast<std::size_t>(steps.bytes()), std::byte{0x5A});
  const std::vector<Sm90MaskArgs> args = steps.args(memory.data());
  for (std::size_t step = 0; step < args.size(); ++step) {
    kernel_of(specs[step]).launch(&args[step], static_cast<unsigned>(choice.steps[step].blocks), 1);
  }
  const auto found = steps.lists(memory.data());
  const auto by_rows = cuda::BlockMaskLists::of(tiles, rows, keys);
  const auto by_keys = cuda::BlockMaskLists::by_keys(tiles, keys, static_cast<int>(p.heads_per_group()), is_persistent);
  EXPECT_EQ(by_kernels(found.by_rows, by_rows.begin.size() - 1, false),
            on_host(by_rows, tiles, found.by_rows.entry_words, false));
  EXPECT_EQ(by_kernels(found.by_keys, by_keys.begin.size() - 1, true),
            on_host(by_keys, tiles, found.by_keys.entry_words, true));
}

TEST(EmulatedMaskLists, AreThoseOfTheHost) {
  if (!why_no_emulation().empty()) GTEST_SKIP() << why_no_emulation();
  const Recipe recipes[] = {
      {"k <= q + k_len - q_len", 300, 517, true},
      {"abs(q - k - 200) < 30 + 20 * h", 300, 517},
      {"(q * 7 + k * 3 + b) % 5 < 2 && q // 64 != 1", 300, 1217, false, CaseLayout::kPadded},
      {"false", 65, 64},
      {"q // 128 == k // 128 || b == 1", 512, 512},
      // The lists have more elements than a warp has lanes, or more than a block handles.
      {"(q // 64 + k // 64 + h) % 3 == 0", 192, 2560},
  };
  for (const Recipe& recipe : recipes) {
    SCOPED_TRACE(recipe.text);
    expect_the_hosts(recipe, 128, 128, 2);
    expect_the_hosts(recipe, 192, 64, 4);
    expect_the_hosts(recipe, 64, 192, 1);
  }
}

}  // namespace
}  // namespace attend::test
