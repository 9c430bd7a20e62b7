// Compares sm90_backward with float64. Covers each pair of supported options, lengths that exercise tile edges and
// masks, repeats, and neighbours that hold NaN. o and lse come from the forward that `auto` picks.
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "cuda/driver/device.hpp"
#include "cuda/driver/stream.hpp"
#include "gpu/forward_checks.hpp"
#include "gpu/gpu.hpp"
#include "gpu/sm90_backward_cases.hpp"
#include "support/covering_array.hpp"

namespace attend::test {
namespace {

using namespace sm90_backward;

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

INSTANTIATE_TEST_SUITE_P(Groups, Sm90Backward, testing::ValuesIn(grouped_cases()), kIndexName);
INSTANTIATE_TEST_SUITE_P(OwnHeads, Sm90Backward, testing::ValuesIn(own_head_cases()), kIndexName);
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
