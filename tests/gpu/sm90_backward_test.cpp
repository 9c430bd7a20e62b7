// Compares sm90_backward with float64. Covers each pair of supported options, lengths that exercise tile edges and
// masks, repeats, and neighbours that hold NaN. o and lse come from the forward that `auto` picks.
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "cuda/driver/device.hpp"
#include "cuda/driver/stream.hpp"
#include "gpu/forward_checks.hpp"
#include "gpu/gpu.hpp"
#include "support/covering_array.hpp"

namespace attend::test {
namespace {

constexpr const char* kCompute = "sm90_backward";

class Sm90Gradients : public HopperTest {};

class Sm90Backward : public Sm90Gradients, public testing::WithParamInterface<AttentionCase> {};

TEST_P(Sm90Backward, StaysInBudget) {
  check_backend(kCompute, make_inputs(GetParam()));
}

enum Factor { kDtype, kHeadDim, kHeadDimV, kMask, kScale, kPacked, kDeterministic, kDlse, kRules };
enum Rules { kPlain, kAlibi, kDropout, kBoth, kSoftcap, kSoftcapDropout, kBias, kBiasDropout };
struct Shape {
  std::int64_t batch, heads_q, heads_k, q, k;
};
/// Sizes that are combined with the options. There is one set for kernels up to 128 columns, one for more columns, one
/// for softcap and others for bias.
struct Sizes {
  std::vector<std::int64_t> head_dims;
  std::vector<std::int64_t> head_dims_v;  ///< 0 means the same head_dim as q
  std::vector<Shape> shapes;              ///< lengths near tile edges
  std::vector<Rules> rules = {kPlain, kAlibi, kDropout, kBoth};
  bool dbias = false;  ///< whether the bias gradient is computed
};
const Sizes kNarrow = {{64, 128, 8, 40, 72, 80, 96, 112},
                       {0, 64, 128, 24},
                       {{1, 1, 1, 1, 1},
                        {2, 2, 1, 63, 65},
                        {1, 4, 2, 129, 127},
                        {3, 2, 2, 64, 300},
                        {1, 8, 1, 193, 257},
                        {2, 3, 3, 200, 1},
                        {1, 2, 2, 5, 1023},
                        {2, 6, 2, 385, 512},
                        {1, 2, 1, 0, 70},
                        {1, 2, 1, 70, 0},
                        {1, 12, 4, 700, 900},
                        {2, 2, 2, 256, 192}}};
const Sizes kWide = {{256, 192, 136, 160, 200, 248},
                     {0, 256, 192, 176, 64, 128},
                     {{1, 1, 1, 1, 1},
                      {2, 2, 1, 63, 65},
                      {1, 4, 2, 129, 127},
                      {1, 2, 2, 64, 300},
                      {1, 4, 1, 193, 257},
                      {2, 3, 3, 200, 1},
                      {1, 2, 1, 5, 523},
                      {1, 2, 1, 0, 70},
                      {1, 2, 1, 70, 0},
                      {1, 6, 2, 385, 260},
                      {2, 2, 2, 256, 192}}};
const Sizes kCapped = {{64, 128, 256, 40, 96, 192},
                       {0, 64, 256},
                       {{1, 1, 1, 1, 1},
                        {1, 4, 2, 129, 127},
                        {1, 4, 1, 193, 257},
                        {2, 3, 3, 200, 1},
                        {1, 2, 1, 70, 0},
                        {1, 6, 2, 385, 260},
                        {2, 2, 2, 256, 192}},
                       {kSoftcap, kSoftcapDropout}};
/// The rows of a bias must be a multiple of 16 bytes apart.
const Sizes kBiased = {{64, 128, 192, 40, 72},
                       {0, 64, 192},
                       {{1, 1, 1, 1, 8},
                        {2, 2, 1, 63, 64},
                        {1, 4, 2, 129, 136},
                        {2, 4, 1, 193, 256},
                        {2, 3, 3, 200, 8},
                        {1, 6, 2, 385, 264},
                        {3, 2, 2, 256, 192}},
                       {kBias, kBiasDropout}};
/// If batch entries share the bias, the blocks of a cluster, one per entry, sum its gradient.
const Sizes kBiasGradients = {{64, 128, 192, 40, 72},
                              {0, 64, 192},
                              {{1, 1, 1, 1, 8},
                               {2, 2, 1, 63, 64},
                               {2, 4, 2, 193, 256},
                               {4, 3, 3, 200, 136},
                               {2, 6, 2, 385, 264},
                               {3, 2, 2, 130, 72},
                               {8, 2, 1, 70, 136},
                               {5, 1, 1, 65, 192}},
                              {kBias, kBiasDropout},
                              true};
struct Mask {
  bool causal;
  std::int64_t left, right;
};
constexpr Mask kMasks[] = {{false, -1, -1}, {true, -1, -1}, {false, 100, 30}, {true, 65, -1}, {false, -1, 70}};

/// Excludes combinations that the family refuses. One is ALiBi with a window that includes keys after the row's
/// position. The other is ALiBi with dropout if a head_dim is above 64 and none is above 128.
bool is_compatible(const Sizes& sizes, int f, int a, int g, int b) {
  // The library refuses packed sequences with a bias.
  if (f == kPacked && a == 1) return &sizes != &kBiased && !sizes.dbias;
  if (g != kRules) return true;
  const Rules rules = sizes.rules[static_cast<std::size_t>(b)];
  const bool has_alibi = rules == kAlibi || rules == kBoth;
  if (f == kMask) return !has_alibi || kMasks[a].causal || (kMasks[a].left < 0 && kMasks[a].right < 0);
  const bool may_be_both = rules != kBoth || &sizes == &kWide;
  if (f == kHeadDim) return may_be_both || sizes.head_dims[static_cast<std::size_t>(a)] <= 64;
  if (f == kHeadDimV) return may_be_both || sizes.head_dims_v[static_cast<std::size_t>(a)] <= 64;
  return true;
}

/// Sets the options of a case. `number` is the index of the case. This index selects the broadcast of the bias and
/// whether the case has sinks. Most cases with sinks also compute their gradient.
void set_rules(AttentionCase& c, Rules rules, std::size_t number, bool dbias) {
  c.alibi = rules == kAlibi || rules == kBoth;
  if (rules == kSoftcap || rules == kSoftcapDropout) c.softcap = number % 2 == 0 ? 20 : 1.5;
  if (rules == kBias || rules == kBiasDropout) {
    c.bias = Broadcast{number % 2 == 0, dbias || number % 3 != 0, true};
    c.dbias = dbias;
  }
  if (rules != kPlain && rules != kAlibi && rules != kSoftcap && rules != kBias) c.dropout_p = 0.3;
  c.sinks = number % 3 == 1;
  c.sinks_per_sequence = number % 2 == 1;
  c.dsinks = number % 5 != 0;
}

/// Returns cases that contain each pair of values, with problems of each shape.
std::vector<AttentionCase> option_pairs(const Sizes& sizes) {
  const std::vector<int> num_values = {2,
                                       static_cast<int>(sizes.head_dims.size()),
                                       static_cast<int>(sizes.head_dims_v.size()),
                                       std::size(kMasks),
                                       4,
                                       2,
                                       2,
                                       2,
                                       static_cast<int>(sizes.rules.size())};
  const auto compatible = [&](int f, int a, int g, int b) { return is_compatible(sizes, f, a, g, b); };
  constexpr Fill kFills[] = {Fill::kNormal, Fill::kLarge, Fill::kNormal, Fill::kOneHot, Fill::kNearUniform};
  std::vector<AttentionCase> cases;
  for (const Choice& v : covering_array(num_values, compatible, 20261122)) {
    const auto at = [&](Factor f) { return static_cast<std::size_t>(v[f]); };
    for (const Shape& s : sizes.shapes) {
      const Mask& mask = kMasks[at(kMask)];
      AttentionCase c = {.dtype = v[kDtype] == 0 ? DType::kBF16 : DType::kF16,
                         .batch = s.batch,
                         .heads_q = s.heads_q,
                         .heads_k = s.heads_k,
                         .seqlen_q = s.q,
                         .seqlen_k = s.k,
                         .head_dim = sizes.head_dims[at(kHeadDim)],
                         .causal = mask.causal,
                         .window_left = mask.left,
                         .window_right = mask.right};
      c.head_dim_v = sizes.head_dims_v[at(kHeadDimV)];
      if (c.head_dim_v == 0) c.head_dim_v = c.head_dim;
      if (v[kScale] > 0) c.scale = std::array{-0.2, 0.35, 0.0}[at(kScale) - 1];
      if (v[kPacked] == 1) {
        c.varlen_q = {s.q, 0, s.q / 2, 3};
        c.varlen_k = {s.k, 4, 0, s.k / 3 + 1};
      }
      c.deterministic = v[kDeterministic] == 1;
      c.dlse = v[kDlse] == 1;
      // Shapes and options advance with different periods, so every combination of options meets every shape.
      const std::size_t number = cases.size() + (sizes.dbias ? cases.size() / sizes.shapes.size() : 0);
      set_rules(c, sizes.rules[at(kRules)], number, sizes.dbias);
      c.layout = cases.size() % 2 == 0 ? CaseLayout::kBHSD : CaseLayout::kBSHD;
      c.fill = kFills[cases.size() % std::size(kFills)];
      c.seed = cases.size() + 1;
      cases.push_back(std::move(c));
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(OptionPairs, Sm90Backward, testing::ValuesIn(option_pairs(kNarrow)), kIndexName);
INSTANTIATE_TEST_SUITE_P(WideOptionPairs, Sm90Backward, testing::ValuesIn(option_pairs(kWide)), kIndexName);
INSTANTIATE_TEST_SUITE_P(SoftcapPairs, Sm90Backward, testing::ValuesIn(option_pairs(kCapped)), kIndexName);
INSTANTIATE_TEST_SUITE_P(BiasGradientPairs, Sm90Backward, testing::ValuesIn(option_pairs(kBiasGradients)), kIndexName);
INSTANTIATE_TEST_SUITE_P(BiasPairs, Sm90Backward, testing::ValuesIn(option_pairs(kBiased)), kIndexName);

TEST(Sm90BackwardCases, AreEnough) {
  EXPECT_GE(option_pairs(kNarrow).size(), 500U);
  EXPECT_GE(option_pairs(kWide).size(), 400U);
  EXPECT_GE(option_pairs(kCapped).size(), 150U);
  EXPECT_GE(option_pairs(kBiased).size(), 150U);
  EXPECT_GE(option_pairs(kBiasGradients).size(), 150U);
}

AttentionCase plain(std::int64_t heads_q, std::int64_t heads_k, std::int64_t seqlen, std::int64_t head_dim,
                    bool causal) {
  return test::plain(DType::kBF16, heads_q, heads_k, seqlen, seqlen, head_dim, causal);
}

/// Returns cases with groups of query heads, whose dk and dv are summed in memory. There are more key blocks than
/// multiprocessors, so the work of the last wave is split.
std::vector<AttentionCase> grouped_cases() {
  std::vector<AttentionCase> cases;
  const auto add = [&](DType dtype, std::int64_t heads_q, std::int64_t heads_k, std::int64_t q, std::int64_t k,
                       std::int64_t head_dim, std::int64_t head_dim_v, bool causal) -> AttentionCase& {
    AttentionCase c = plain(heads_q, heads_k, q, head_dim, causal);
    c.dtype = dtype;
    c.seqlen_k = k;
    c.head_dim_v = head_dim_v;
    c.dlse = cases.size() % 2 == 1;
    c.layout = cases.size() % 3 == 0 ? CaseLayout::kBSHD : CaseLayout::kBHSD;
    c.sinks = cases.size() % 3 == 1;
    c.seed = 900 + cases.size();
    return cases.emplace_back(c);
  };
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    add(dtype, 8, 1, 1030, 300, 128, 128, false);
    add(dtype, 16, 2, 2085, 333, 128, 64, true);
    add(dtype, 8, 1, 1100, 193, 64, 64, false).batch = 2;
    add(dtype, 9, 1, 2100, 400, 40, 64, true);
  }
  add(DType::kBF16, 4, 1, 4100, 130, 128, 128, false);
  add(DType::kBF16, 16, 2, 1030, 130, 128, 128, false).dropout_p = 0.2;
  add(DType::kBF16, 8, 1, 1030, 200, 64, 64, false).alibi = true;
  add(DType::kBF16, 144, 18, 1030, 600, 72, 24, false);
  add(DType::kBF16, 34, 34, 150, 600, 128, 128, false);
  add(DType::kBF16, 34, 34, 150, 600, 64, 64, false);  // persistent blocks of 64 columns, whose last items are cut
  add(DType::kBF16, 34, 34, 150, 600, 128, 128, false).deterministic = true;
  add(DType::kBF16, 68, 34, 70, 600, 80, 80, true);
  // More than 16 key blocks, so the fixed order of the sums consists of two parts.
  for (const std::int64_t head_dim : {128, 64}) {
    for (const bool causal : {true, false})
      add(DType::kBF16, 2, 1, 2300, 2500, head_dim, 128, causal).deterministic = true;
    AttentionCase& windowed = add(DType::kBF16, 2, 2, 2500, 2500, head_dim, head_dim, false);
    windowed.window_left = 1300;
    windowed.window_right = 40;
    windowed.deterministic = true;
    AttentionCase& packed = add(DType::kF16, 2, 1, 2300, 2500, head_dim, head_dim, true);
    packed.varlen_q = {2300, 700};
    packed.varlen_k = {2500, 900};
    packed.deterministic = true;
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Groups, Sm90Backward, testing::ValuesIn(grouped_cases()), kIndexName);

/// Returns cases with one or two heads per multiprocessor of an H200. Each block then computes complete heads, unless a
/// row tile sees no key.
std::vector<AttentionCase> own_head_cases() {
  std::vector<AttentionCase> cases;
  const auto add = [&](std::int64_t q, std::int64_t k, std::int64_t head_dim, std::int64_t head_dim_v,
                       bool causal) -> AttentionCase& {
    AttentionCase c = plain(11, 11, q, head_dim, causal);
    c.batch = 12;
    c.dtype = cases.size() % 2 == 0 ? DType::kBF16 : DType::kF16;
    c.seqlen_k = k;
    c.head_dim_v = head_dim_v;
    c.dlse = cases.size() % 3 == 1;
    c.layout = cases.size() % 4 < 2 ? CaseLayout::kBSHD : CaseLayout::kBHSD;
    c.seed = 700 + cases.size();
    return cases.emplace_back(c);
  };
  for (const std::int64_t head_dim : {64, 128}) {
    add(200, 200, head_dim, head_dim, false);
    add(257, 257, head_dim, head_dim, true);
    add(64, 300, head_dim, head_dim, true);
    add(129, 127, head_dim, head_dim, false);
    add(200, 190, head_dim, head_dim, true);  // only some rows of the first tile see keys
    add(200, 120, head_dim, head_dim, true);  // no row of the first tile sees a key
    add(1, 1, head_dim, head_dim, false);
    add(5, 260, head_dim, head_dim, false).deterministic = true;
    AttentionCase& windowed = add(300, 260, head_dim, head_dim, false);
    windowed.window_left = 100;
    windowed.window_right = 30;
    add(257, 257, head_dim, head_dim, true).deterministic = true;
    add(193, 140, head_dim, head_dim, true).alibi = true;
    add(130, 260, head_dim, head_dim, false).dropout_p = 0.2;
    add(193, 257, head_dim, head_dim, true).softcap = 10;
    add(130, 129, head_dim, head_dim, true).sinks = true;
    add(70, 140, head_dim, head_dim, true).batch = 24;
  }
  add(193, 193, 80, 72, true);
  add(150, 150, 112, 24, false);
  add(193, 200, 40, 40, true).scale = -0.2;
  add(150, 260, 64, 128, false);
  return cases;
}

INSTANTIATE_TEST_SUITE_P(OwnHeads, Sm90Backward, testing::ValuesIn(own_head_cases()), kIndexName);

/// Returns cases with two KV heads per multiprocessor of an H200. Their blocks of up to 64 columns are not persistent.
/// With few heads they are (tests/cuda/own_heads_test.cpp), so the other suites rarely test these blocks.
std::vector<AttentionCase> narrow_cases() {
  std::vector<AttentionCase> cases;
  const auto add = [&](std::int64_t q, std::int64_t k, std::int64_t head_dim, bool causal) -> AttentionCase& {
    AttentionCase c = plain(44, 22, q, head_dim, causal);
    c.batch = 12;
    c.dtype = cases.size() % 2 == 0 ? DType::kBF16 : DType::kF16;
    c.seqlen_k = k;
    c.dlse = cases.size() % 3 == 1;
    c.layout = cases.size() % 4 < 2 ? CaseLayout::kBSHD : CaseLayout::kBHSD;
    c.seed = 1100 + cases.size();
    return cases.emplace_back(c);
  };
  for (const bool causal : {false, true}) {
    add(130, 190, 64, causal);
    add(65, 384, 40, causal);
    add(1, 150, 64, causal).head_dim_v = 24;
    add(150, 180, 64, causal).alibi = true;
    add(129, 192, 64, causal).dropout_p = 0.2;
    AttentionCase& both = add(70, 191, 64, causal);
    both.alibi = true;
    both.dropout_p = 0.3;
    add(130, 190, 64, causal).softcap = 1.5;
    add(130, 190, 56, causal).sinks = true;
  }
  for (const std::int64_t head_dim : {64, 32}) {
    AttentionCase& windowed = add(200, 190, head_dim, false);
    windowed.window_left = 60;
    windowed.window_right = 10;
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Narrow, Sm90Backward, testing::ValuesIn(narrow_cases()), kIndexName);

/// Returns one small case for each kernel variant. The sanitizers run these.
std::vector<AttentionCase> slice_cases() {
  std::vector<AttentionCase> cases = {plain(2, 1, 200, 128, true), plain(2, 2, 200, 64, false),
                                      plain(1, 1, 130, 128, false)};
  AttentionCase packed = plain(2, 1, 0, 128, true);
  packed.varlen_q = {130, 0, 3};
  packed.varlen_k = {65, 4, 200};
  cases.push_back(packed);
  packed.sinks = packed.sinks_per_sequence = packed.dlse = true;
  cases.push_back(packed);
  cases.push_back(plain(2, 1, 200, 64, true));
  cases.back().deterministic = true;
  for (const std::int64_t head_dim : {64, 128, 256}) {
    cases.push_back(plain(2, 1, 200, head_dim, true));
    cases.back().alibi = true;
    cases.push_back(plain(2, 1, 200, head_dim, false));
    cases.back().dropout_p = 0.2;
    cases.push_back(plain(8, 1, 1030, head_dim, false));  // kernels sum dk and dv in memory
    cases.back().seqlen_k = 70;
    cases.push_back(plain(2, 1, 200, head_dim, true));
    cases.back().softcap = 10;
    cases.back().sinks = true;
    if (head_dim == 256) continue;
    cases.push_back(plain(2, 1, 200, head_dim, false));
    cases.back().bias = Broadcast{false, true, true};
    cases.back().dbias = false;
    for (const bool is_shared : {false, true}) {
      cases.push_back(plain(2, 1, 136, head_dim, is_shared));
      cases.back().batch = 2;
      cases.back().bias = Broadcast{!is_shared, true, true};
    }
  }
  cases.push_back(plain(2, 1, 200, 192, true));
  cases.push_back(plain(2, 1, 130, 40, true));
  cases.back().head_dim_v = 200;
  packed.head_dim = packed.head_dim_v = 256;
  cases.push_back(packed);
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Slice, Sm90Backward, testing::ValuesIn(slice_cases()), kIndexName);

/// Returns cases whose number of keys is not a multiple of 16 bytes of bias. The rows of the bias are padded to 16
/// bytes.
std::vector<AttentionCase> odd_bias_cases() {
  std::vector<AttentionCase> cases;
  for (const std::int64_t seqlen_k : {5, 61, 69, 133, 269}) {
    for (const bool causal : {false, true}) {
      AttentionCase c = plain(1, 1, 150, seqlen_k < 100 ? 61 : 125, causal);
      c.seqlen_k = seqlen_k;
      c.layout = CaseLayout::kPadded;
      c.bias = Broadcast{true, true, true};
      c.seed = cases.size() + 1;
      cases.push_back(c);
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(OddBias, Sm90Backward, testing::ValuesIn(odd_bias_cases()), kIndexName);

class AheadBackward : public Sm90Gradients {};

TEST_F(AheadBackward, CompilesWhatTheBackwardCasesNeed) {
  std::vector<AttentionCase> cases = option_pairs(kNarrow);
  for (const std::vector<AttentionCase>& more : {grouped_cases(), own_head_cases()}) {
    cases.insert(cases.end(), more.begin(), more.end());
  }
  compile_ahead(kCompute, cases);
}
TEST_F(AheadBackward, CompilesWhatTheWideBackwardCasesNeed) {
  std::vector<AttentionCase> cases = option_pairs(kWide);
  for (const std::vector<AttentionCase>& more :
       {option_pairs(kCapped), option_pairs(kBiased), slice_cases(), option_pairs(kBiasGradients), odd_bias_cases()}) {
    cases.insert(cases.end(), more.begin(), more.end());
  }
  compile_ahead(kCompute, cases);
}

TEST_F(Sm90Gradients, DeterministicRepeatsAreBitEqual) {
  struct Case {
    std::int64_t head_dim, seqlen;
    bool causal;
    std::int64_t heads_q = 6, heads_k = 2;  // with 132 heads, each block computes complete heads
  };
  for (const auto& [head_dim, seqlen, causal, heads_q, heads_k] :
       {Case{64, 1000, true}, Case{128, 1000, false}, Case{256, 1000, false}, Case{96, 1000, false},
        Case{40, 1000, false}, Case{128, 2500, true}, Case{64, 400, true, 132, 132}, Case{128, 300, false, 132, 132}}) {
    // With seqlen 2500, the fixed order of the sums consists of two parts.
    AttentionCase c = plain(heads_q, heads_k, seqlen, head_dim, causal);
    c.deterministic = true;
    if (head_dim == 96) c.softcap = 20;
    if (head_dim == 40) c.head_dim_v = 128;  // selects the kernel with one pass and two buffers
    const Inputs in = make_inputs(c);
    const Outputs first = run(in, kCompute);
    for (int round = 0; round < 100; ++round) {
      const Outputs again = make_outputs(in);
      run_forward(in, again, kCompute);
      run_backward(in, again, kCompute);
      ASSERT_EQ(again.dq.bytes(), first.dq.bytes()) << round;
      ASSERT_EQ(again.dk.bytes(), first.dk.bytes()) << round;
      ASSERT_EQ(again.dv.bytes(), first.dv.bytes()) << round;
    }
  }
}

/// The gradients of a batch entry must not depend on the contents of the other entries.
TEST_F(Sm90Gradients, NeighboursThatHoldNaNReachNothing) {
  for (const int round : {0, 1, 2, 3, 4}) {
    const bool packed = round % 2 != 0;
    const std::int64_t head_dim = round < 2 || round == 4 ? 128 : 256;
    AttentionCase c = plain(2, 2, round == 4 ? 152 : 150, head_dim, true);
    if (round == 4) c.bias = Broadcast{true, true, true};
    c.batch = 3;
    c.deterministic = true;
    if (packed) c.varlen_q = c.varlen_k = {150, 150, 150};
    const Inputs in = make_inputs(c);
    const Outputs want = run(in, kCompute);
    const std::int64_t rows = packed ? 150 : 0;
    for (std::int64_t h = 0; h < 2; ++h) {
      for (std::int64_t col = 0; col < head_dim; ++col) {
        for (const std::int64_t sequence : {0, 2}) {
          for (std::int64_t i = 0; i < 150; ++i) {
            const std::int64_t b = packed ? 0 : sequence, row = sequence * rows + i;
            for (const TensorBuffer* t : {&in.q, &in.k, &in.v, &in.dout}) t->set(b, h, row, col, NAN);
          }
        }
      }
    }
    const Outputs got = run(in, kCompute);
    for (std::int64_t h = 0; h < 2; ++h) {
      for (std::int64_t i = 0; i < 150; ++i) {
        const std::int64_t b = packed ? 0 : 1, row = rows + i;
        for (std::int64_t col = 0; col < head_dim; ++col) {
          ASSERT_EQ(got.dq.at(b, h, row, col), want.dq.at(b, h, row, col)) << round << " " << h << " " << i;
          ASSERT_EQ(got.dk.at(b, h, row, col), want.dk.at(b, h, row, col)) << round << " " << h << " " << i;
          ASSERT_EQ(got.dv.at(b, h, row, col), want.dv.at(b, h, row, col)) << round << " " << h << " " << i;
          if (got.dbias) {
            ASSERT_EQ(got.dbias->at(b, h, row, col), want.dbias->at(b, h, row, col)) << h << " " << i;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace attend::test
