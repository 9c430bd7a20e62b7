// Compares ring attention with the float64 reference. For every algorithm, a pairwise covering array combines options,
// shardings and numbers of ranks. The error budgets are those of a single device. $ATTEND_TEST_SEED changes the random
// numbers.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "ring/ring_run.hpp"
#include "support/compare.hpp"
#include "support/covering_array.hpp"

namespace attend::test {
namespace {

enum Factor {
  kDtype,
  kShardingKind,
  kRanks,
  kLengths,
  kHeads,
  kHeadDims,
  kMask,
  kSoftcap,
  kAlibi,
  kBias,
  kBoolMask,
  kDropout,
  kScale,
  kLayout,
  kDout,
  kDlse,
  kBatching,
  kFill,
  kNumFactors
};

constexpr DType kDtypes[] = {DType::kF32, DType::kF16, DType::kBF16};
constexpr Sharding kShardings[] = {Sharding::kContiguous, Sharding::kZigzag, Sharding::kStriped};
constexpr int kNumRanks[] = {1, 2, 3, 4, 7};
struct Pair {
  std::int64_t q, k;
};
// No case has many more keys than rows. In rows far from their keys, ALiBi pushes p below the smallest normal number.
// The error budgets do not cover such numbers.
constexpr Pair kLengthPairs[] = {{0, 5},   {5, 0},    {1, 1},    {2, 3},     {1, 90},  {17, 5},
                                 {64, 64}, {97, 130}, {130, 97}, {255, 200}, {56, 56}, {300, 330}};
constexpr Pair kHeadPairs[] = {{1, 1}, {4, 2}, {3, 1}};
constexpr Pair kHeadDimPairs[] = {{64, 64}, {8, 20}, {17, 17}, {128, 128}};
struct MaskKind {
  bool causal;
  std::int64_t left, right;
};
constexpr MaskKind kMasks[] = {{false, -1, -1}, {true, -1, -1}, {false, 9, -1}, {false, -1, 40},
                               {false, 30, 4},  {true, 65, -1}, {false, 0, 0},  {true, 3, -1}};
constexpr double kSoftcaps[] = {0, 0.7, 20};
constexpr int kAlibiKinds = 3;  // no ALiBi, one set of slopes for all sequences, one set per sequence
// 0 means no tensor; for n > 0, the bits of n - 1 select which of batch, heads and rows have full size.
constexpr int kBroadcasts = 9;
constexpr double kDropouts[] = {0, 0.2};
constexpr double kDefaultScale = INFINITY;
constexpr double kScales[] = {kDefaultScale, -0.2, 0.0};
constexpr int kLayouts = 4;
constexpr Fill kFills[] = {Fill::kNormal, Fill::kLarge, Fill::kOneHot, Fill::kOutlier, Fill::kNearUniform};

const std::vector<int> kNumValues = {std::size(kDtypes),
                                     std::size(kShardings),
                                     std::size(kNumRanks),
                                     std::size(kLengthPairs),
                                     std::size(kHeadPairs),
                                     std::size(kHeadDimPairs),
                                     std::size(kMasks),
                                     std::size(kSoftcaps),
                                     kAlibiKinds,
                                     kBroadcasts,
                                     kBroadcasts,
                                     std::size(kDropouts),
                                     std::size(kScales),
                                     kLayouts,
                                     2,
                                     2,
                                     2,
                                     std::size(kFills)};

/// Returns false for combinations that attention does not define, and for one-hot attention with scores that an option
/// flattens.
bool compatible(int f, int a, int g, int b) {
  constexpr int kFused = 3, kPacked = 1, kOneHot = 2, kZeroScale = 2, kSmallCap = 1;
  if (f == kHeadDims && g == kLayout && kHeadDimPairs[a].q != kHeadDimPairs[a].k && b == kFused) return false;
  if ((f == kBias || f == kBoolMask) && g == kBatching && a != 0 && b == kPacked) return false;
  if (f == kSoftcap && g == kFill && a == kSmallCap && b == kOneHot) return false;
  return !(f == kScale && g == kFill && a == kZeroScale && b == kOneHot);
}

constexpr RingAlgorithm kAlgorithms[] = {RingAlgorithm::kExchange, RingAlgorithm::kAllGather, RingAlgorithm::kAllToAll,
                                         RingAlgorithm::kTwoLevel};
// Numbers of ranks for kTwoLevel, used in place of kNumRanks. 4 ranks form groups of 2, 6 ranks form groups of 2 or 3,
// 8 ranks form groups of 2 or 4, and 9 ranks form groups of 3.
constexpr int kRanksInGroups[] = {4, 6, 8, 9, 4};

RingCase to_case(const Choice& v, RingAlgorithm algorithm, std::uint64_t seed) {
  AttentionCase c;
  c.dtype = kDtypes[v[kDtype]];
  c.batch = 2;
  c.seqlen_q = kLengthPairs[v[kLengths]].q;
  c.seqlen_k = kLengthPairs[v[kLengths]].k;
  c.heads_q = kHeadPairs[v[kHeads]].q;
  c.heads_k = kHeadPairs[v[kHeads]].k;
  // This algorithm divides the heads, so every rank gets the same number of heads.
  if (algorithm == RingAlgorithm::kAllToAll) {
    c.heads_k = kNumRanks[v[kRanks]];
    c.heads_q = (v[kHeads] == 0 ? 1 : 2) * c.heads_k;
  }
  int num_ranks = kNumRanks[v[kRanks]];
  if (algorithm == RingAlgorithm::kTwoLevel) {
    num_ranks = kRanksInGroups[v[kRanks]];
    c.heads_k = num_ranks == 9 ? 3 : num_ranks == 6 ? 6 : num_ranks / 2;
    c.heads_q = (v[kHeads] == 0 ? 1 : 2) * c.heads_k;
  }
  c.head_dim = kHeadDimPairs[v[kHeadDims]].q;
  c.head_dim_v = kHeadDimPairs[v[kHeadDims]].k;
  c.causal = kMasks[v[kMask]].causal;
  c.window_left = kMasks[v[kMask]].left;
  c.window_right = kMasks[v[kMask]].right;
  c.softcap = kSoftcaps[v[kSoftcap]];
  c.alibi = v[kAlibi] > 0;
  c.alibi_per_sequence = v[kAlibi] > 1;
  c.bias = numbered_broadcast(v[kBias]);
  c.mask = numbered_broadcast(v[kBoolMask]);
  c.dropout_p = kDropouts[v[kDropout]];
  if (kScales[v[kScale]] != kDefaultScale) c.scale = kScales[v[kScale]];
  c.layout = static_cast<CaseLayout>(v[kLayout]);
  c.broadcast_dout = v[kDout] == 1;
  c.dlse = v[kDlse] == 1;
  c.fill = kFills[v[kFill]];
  // With outliers and few rows, even a single device may exceed the error budget.
  const bool by_heads = algorithm == RingAlgorithm::kAllToAll || algorithm == RingAlgorithm::kTwoLevel;
  if (by_heads && c.fill == Fill::kOutlier && c.seqlen_q < 8) c.fill = Fill::kNormal;
  c.seed = seed;
  if (v[kBatching] == 1) {
    c.varlen_q = {c.seqlen_q, 0, c.seqlen_q / 2, 3};
    c.varlen_k = {c.seqlen_k, 4, 0, c.seqlen_k / 3 + 1};
  }
  return {c, kShardings[v[kShardingKind]], num_ranks, algorithm};
}

constexpr std::uint64_t kArraySeed = 20260722;

const std::vector<Choice>& choices() {
  static const std::vector<Choice> kChoices = covering_array(kNumValues, compatible, kArraySeed);
  return kChoices;
}

std::vector<RingCase> cases() {
  const char* text = std::getenv("ATTEND_TEST_SEED");
  const std::uint64_t seed = text == nullptr ? 1 : std::strtoull(text, nullptr, 10);
  std::vector<RingCase> all;
  for (std::size_t n = 0; n < choices().size(); n += ATTEND_TEST_STRIDE) {
    for (const RingAlgorithm algorithm : kAlgorithms) {
      const std::uint64_t numbers =
          // all_to_all changes the number of heads, so it uses other seeds.
          seed * 500 + n + (algorithm == RingAlgorithm::kAllToAll ? 250 : 0);
      all.push_back(to_case(choices()[n], algorithm, numbers));
    }
  }
  return all;
}

TEST(CoveringArrayOfRings, MissesNoCompatiblePair) {
  std::printf("%zu cases: %zu by each algorithm\n", cases().size(), cases().size() / std::size(kAlgorithms));
  EXPECT_GE(choices().size() * std::size(kAlgorithms), 300U);
  EXPECT_EQ(uncovered_pairs(kNumValues, compatible, choices()), 0);
}

class EveryRingPair : public testing::TestWithParam<RingCase> {};

TEST_P(EveryRingPair, StaysInBudget) {
  const Inputs in = make_inputs(GetParam().problem);
  std::string line;
  for (const TensorCheck& check : compare_outputs(in, run_on_ring(in, GetParam()))) {
    line += "; " + check.comparison.report.substr(0, check.comparison.report.find('\n'));
  }
  std::printf("%s\n  %s\n", describe(GetParam()).c_str(), line.c_str());
}

INSTANTIATE_TEST_SUITE_P(CoveringArray, EveryRingPair, testing::ValuesIn(cases()),
                         [](const auto& test) { return std::to_string(test.index); });

}  // namespace
}  // namespace attend::test
