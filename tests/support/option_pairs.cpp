#include "support/option_pairs.hpp"

#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "support/covering_array.hpp"

namespace attend::test {
namespace {

// --- The factors of the covering array: each factor is one option of the problem. ---
enum Factor {
  kDtype,
  kHeadDim,
  kHeadDimV,
  kLengths,
  kHeads,
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
  kOffset,
  kSinks,
  kNumFactors
};

constexpr DType kDtypes[] = {DType::kF32, DType::kF16, DType::kBF16};
constexpr std::int64_t kHeadDims[] = {1, 3, 8, 17, 32, 40, 59, 64, 72, 80, 96, 111, 112, 128, 160, 192, 256, 512};
constexpr std::int64_t kSameHeadDim = 0;
constexpr std::int64_t kHeadDimsV[] = {kSameHeadDim, 1, 20, 64, 129};
struct Lengths {
  std::int64_t q, k;
};
constexpr Lengths kLengthPairs[] = {{0, 5},   {5, 0},     {1, 1},     {1, 200},   {2, 3},      {3, 17},
                                    {17, 5},  {63, 64},   {64, 63},   {65, 97},   {127, 128},  {129, 127},
                                    {97, 65}, {200, 255}, {257, 200}, {128, 128}, {1000, 1023}};
struct Heads {
  std::int64_t q, k;
};
constexpr Heads kHeadPairs[] = {{1, 1}, {2, 2}, {4, 2}, {3, 1}, {5, 1}, {7, 1}, {8, 1}, {6, 2}};
struct MaskKind {
  bool causal;
  std::int64_t left, right;
};
constexpr MaskKind kMasks[] = {{false, -1, -1}, {true, -1, -1}, {false, 9, -1},
                               {false, -1, 70}, {false, 30, 4}, {true, 65, -1}};
constexpr double kSoftcaps[] = {0, 0.7, 20};
constexpr int kAlibiKinds = 3;  // no ALiBi, one set of slopes for all sequences, one set per sequence
constexpr int kSinkKinds = 3;   // no sinks, one set for all sequences, one set per sequence
// Index 0 means no tensor. For index n > 0, the bits of n - 1 select which of batch, heads and rows have full size.
constexpr int kBroadcasts = 9;
constexpr double kDropouts[] = {0, 0.1, 0.5};
constexpr double kDefaultScale = INFINITY;
constexpr double kScales[] = {kDefaultScale, 0.35, -0.2, 0.0};
constexpr int kLayouts = 4;
constexpr int kFills = 6;
constexpr std::int64_t kOffsets[] = {0, 1, 2, 3, 5, 8, 15};

const std::vector<int> kNumValues = {std::size(kDtypes),
                                     std::size(kHeadDims),
                                     std::size(kHeadDimsV),
                                     std::size(kLengthPairs),
                                     std::size(kHeadPairs),
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
                                     kFills,
                                     std::size(kOffsets),
                                     kSinkKinds};

bool is_pair(int f, int a, int g, int b, int wanted_f, int wanted_a, int wanted_g, int wanted_b) {
  return f == wanted_f && a == wanted_a && g == wanted_g && b == wanted_b;
}

/// Returns false for combinations that attention does not define and for combinations that are too slow for the
/// reference.
bool compatible(int f, int a, int g, int b) {
  constexpr int kFused = 3;
  constexpr int kPacked = 1;
  const bool longest = f == kLengths && a == std::size(kLengthPairs) - 1;
  if (f == kHeadDimV && g == kLayout && a != kSameHeadDim && b == kFused) return false;
  if ((f == kBias || f == kBoolMask) && g == kBatching && a != 0 && b == kPacked) return false;
  if (f == kHeadDim && g == kLengths && kHeadDims[a] > 128 && b == std::size(kLengthPairs) - 1) return false;
  if (longest && g == kHeads && kHeadPairs[b].q > 3) return false;
  // A soft cap below 1 limits score differences, so attention cannot be one-hot. With scale 0, attention is uniform for
  // every fill, so the one-hot fill adds nothing.
  return !is_pair(f, a, g, b, kSoftcap, 1, kFill, static_cast<int>(Fill::kOneHot)) &&
         !is_pair(f, a, g, b, kScale, 3, kFill, static_cast<int>(Fill::kOneHot));
}

AttentionCase to_case(const Choice& v, std::uint64_t seed) {
  AttentionCase c;
  c.dtype = kDtypes[v[kDtype]];
  c.head_dim = kHeadDims[v[kHeadDim]];
  c.head_dim_v = kHeadDimsV[v[kHeadDimV]] == kSameHeadDim ? c.head_dim : kHeadDimsV[v[kHeadDimV]];
  c.seqlen_q = kLengthPairs[v[kLengths]].q;
  c.seqlen_k = kLengthPairs[v[kLengths]].k;
  c.batch = c.seqlen_q * c.seqlen_k > 20000 ? 1 : 2;
  c.heads_q = kHeadPairs[v[kHeads]].q;
  c.heads_k = kHeadPairs[v[kHeads]].k;
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
  c.fill = static_cast<Fill>(v[kFill]);
  c.base_offset = kOffsets[v[kOffset]];
  c.sinks = v[kSinks] > 0;
  c.sinks_per_sequence = v[kSinks] > 1;
  c.seed = seed;
  if (v[kBatching] == 1) {
    c.varlen_q = {c.seqlen_q, 0, c.seqlen_q / 2, 3};
    c.varlen_k = {c.seqlen_k, 4, 0, c.seqlen_k / 3 + 1};
  }
  return c;
}

constexpr std::uint64_t kArraySeed = 20240601;

}  // namespace

const std::vector<AttentionCase>& option_pair_cases() {
  static const std::vector<AttentionCase> kCases = [] {
    const char* text = std::getenv("ATTEND_TEST_SEED");
    const std::uint64_t seed = text == nullptr ? 1 : std::strtoull(text, nullptr, 10);
    std::vector<AttentionCase> cases;
    const std::vector<Choice> choices = covering_array(kNumValues, compatible, kArraySeed);
    for (std::size_t n = 0; n < choices.size(); n += ATTEND_TEST_STRIDE)
      cases.push_back(to_case(choices[n], seed * 1000 + n));
    if (ATTEND_TEST_STRIDE > 1) {
      std::printf("covering array: %zu of %zu cases (stride %d)\n", cases.size(), choices.size(), ATTEND_TEST_STRIDE);
    }
    return cases;
  }();
  return kCases;
}

int uncovered_option_pairs() {
  return uncovered_pairs(kNumValues, compatible, covering_array(kNumValues, compatible, kArraySeed));
}

}  // namespace attend::test
