// The `cpu` backend against the float64 reference: every option in a pairwise covering array, and the hard rules.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "support/compare.hpp"
#include "support/covering_array.hpp"
#include "support/option_cases.hpp"
#include "support/tolerances.hpp"

namespace attend::test {
namespace {

constexpr const char* kBackend = "cpu";

// --- The factors of the covering array. ---
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
constexpr int kAlibiKinds = 3;  // none, one for all sequences, one per sequence
// Index 0: none. n > 0: bits of n - 1 tell which of batch, heads, rows is full.
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
                                     std::size(kOffsets)};

bool is_pair(int f, int a, int g, int b, int wanted_f, int wanted_a, int wanted_g, int wanted_b) {
  return f == wanted_f && a == wanted_a && g == wanted_g && b == wanted_b;
}

/// What attention does not define, and what would take the reference too long.
bool compatible(int f, int a, int g, int b) {
  constexpr int kFused = 3;
  constexpr int kPacked = 1;
  const bool longest = f == kLengths && a == std::size(kLengthPairs) - 1;
  if (f == kHeadDimV && g == kLayout && a != kSameHeadDim && b == kFused) return false;
  if ((f == kBias || f == kBoolMask) && g == kBatching && a != 0 && b == kPacked) return false;
  if (f == kHeadDim && g == kLengths && kHeadDims[a] > 128 && b == std::size(kLengthPairs) - 1) return false;
  if (longest && g == kHeads && kHeadPairs[b].q > 3) return false;
  // A soft cap under 1 and one-hot attention contradict each other, and scale 0 makes every fill uniform.
  return !is_pair(f, a, g, b, kSoftcap, 1, kFill, static_cast<int>(Fill::kOneHot)) &&
         !is_pair(f, a, g, b, kScale, 3, kFill, static_cast<int>(Fill::kOneHot));
}

std::optional<Broadcast> broadcast(int index) {
  if (index == 0) return std::nullopt;
  const int bits = index - 1;
  return Broadcast{(bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0};
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
  c.bias = broadcast(v[kBias]);
  c.mask = broadcast(v[kBoolMask]);
  c.dropout_p = kDropouts[v[kDropout]];
  if (kScales[v[kScale]] != kDefaultScale) c.scale = kScales[v[kScale]];
  c.layout = static_cast<CaseLayout>(v[kLayout]);
  c.broadcast_dout = v[kDout] == 1;
  c.dlse = v[kDlse] == 1;
  c.fill = static_cast<Fill>(v[kFill]);
  c.base_offset = kOffsets[v[kOffset]];
  c.seed = seed;
  if (v[kBatching] == 1) {
    c.varlen_q = {c.seqlen_q, 0, c.seqlen_q / 2, 3};
    c.varlen_k = {c.seqlen_k, 4, 0, c.seqlen_k / 3 + 1};
  }
  return c;
}

/// The cases, in a fixed order; under slow sanitizers every ATTEND_TEST_STRIDE-th. ATTEND_TEST_SEED changes the
/// numbers.
const std::vector<AttentionCase>& covering_cases() {
  static const std::vector<AttentionCase> kCases = [] {
    const char* text = std::getenv("ATTEND_TEST_SEED");
    const std::uint64_t seed = text == nullptr ? 1 : std::strtoull(text, nullptr, 10);
    std::vector<AttentionCase> cases;
    const std::vector<Choice> choices = covering_array(kNumValues, compatible, 20240601);
    for (std::size_t n = 0; n < choices.size(); n += ATTEND_TEST_STRIDE)
      cases.push_back(to_case(choices[n], seed * 1000 + n));
    if (ATTEND_TEST_STRIDE > 1) {
      std::printf("covering array: %zu of %zu cases (stride %d)\n", cases.size(), choices.size(), ATTEND_TEST_STRIDE);
    }
    return cases;
  }();
  return kCases;
}

TEST(CoveringArrayOfOptions, MissesNoCompatiblePair) {
  const std::vector<Choice> choices = covering_array(kNumValues, compatible, 20240601);
  std::printf("%zu cases\n", choices.size());
  EXPECT_EQ(uncovered_pairs(kNumValues, compatible, choices), 0);
}

class EveryOptionPair : public testing::TestWithParam<AttentionCase> {};

TEST_P(EveryOptionPair, StaysInBudget) {
  const std::string line = check_against_reference(make_inputs(GetParam()), kBackend);
  std::printf("%s\n  %s\n", describe(GetParam()).c_str(), line.c_str());
}

INSTANTIATE_TEST_SUITE_P(CoveringArray, EveryOptionPair, testing::ValuesIn(covering_cases()),
                         [](const auto& test) { return std::to_string(test.index); });

// One option at a time on a tiny problem: where a covering-array case fails, these tell which option it is.
INSTANTIATE_TEST_SUITE_P(OneOptionF32, EveryOptionPair, testing::ValuesIn(option_cases(DType::kF32)),
                         [](const auto& test) { return std::to_string(test.index); });
INSTANTIATE_TEST_SUITE_P(OneOptionBF16, EveryOptionPair, testing::ValuesIn(option_cases(DType::kBF16)),
                         [](const auto& test) { return std::to_string(test.index); });

// Every head_dim, in steps that hit each remainder of the vector width, with another head_dim_v.
class EveryHeadDim : public testing::TestWithParam<int> {};

TEST_P(EveryHeadDim, StaysInBudget) {
  AttentionCase c = {.dtype = kDtypes[GetParam() % 3],
                     .batch = 1,
                     .heads_q = 2,
                     .heads_k = 1,
                     .seqlen_q = 33,
                     .seqlen_k = 35,
                     .head_dim = GetParam(),
                     .head_dim_v = (GetParam() * 7) % 130 + 1,
                     .causal = true};
  check_against_reference(make_inputs(c), kBackend);
}

INSTANTIATE_TEST_SUITE_P(To130, EveryHeadDim, testing::Range(1, 131, ATTEND_TEST_STRIDE));
INSTANTIATE_TEST_SUITE_P(Sparse, EveryHeadDim, testing::Values(144, 176, 191, 224, 255, 257, 320, 384, 511, 512));

// The textbook loop, in the little that it supports.
TEST(Naive, StaysInBudget) {
  for (const bool causal : {false, true}) {
    for (const Lengths lengths : {Lengths{0, 3}, Lengths{3, 0}, Lengths{1, 1}, Lengths{33, 70}, Lengths{70, 33}}) {
      check_against_reference(make_inputs({.batch = 2,
                                           .heads_q = 6,
                                           .heads_k = 2,
                                           .seqlen_q = lengths.q,
                                           .seqlen_k = lengths.k,
                                           .head_dim = 40,
                                           .head_dim_v = 24,
                                           .causal = causal,
                                           .dlse = true,
                                           .layout = CaseLayout::kBSHD}),
                              "cpu_naive");
    }
  }
}

/// Largest |a - b| and largest |b|.
struct Distance {
  double error = 0, scale = 0;
  Distance(const std::vector<double>& a, const std::vector<double>& b) {
    for (std::size_t n = 0; n < a.size(); ++n) {
      if (!(std::abs(a[n] - b[n]) <= error)) error = std::abs(a[n] - b[n]);
      scale = std::max(scale, std::abs(b[n]));
    }
  }
};

AttentionCase seed_shape(DType dtype, bool causal) {
  return {.dtype = dtype,
          .batch = 2,
          .heads_q = 8,
          .heads_k = 8,
          .seqlen_q = 512,
          .seqlen_k = 512,
          .head_dim = 64,
          .head_dim_v = 64,
          .causal = causal,
          .seed = 42};
}

class HardRules : public testing::TestWithParam<bool> {};

TEST_P(HardRules, F32AtTheSeedShape) {
  const Inputs in = make_inputs(seed_shape(DType::kF32, GetParam()));
  const Outputs truth = run(as_f64(in), "reference");
  const Outputs out = run(in, kBackend);
  const Distance o(out.o.values(), truth.o.values());
  std::printf("o: max abs error %.3g, allowed %.3g\n", o.error, kSeedShapeForwardAbsolute);
  EXPECT_TRUE(o.error <= kSeedShapeForwardAbsolute);
  const std::pair<const TensorBuffer*, const TensorBuffer*> gradients[] = {
      {&out.dq, &truth.dq}, {&out.dk, &truth.dk}, {&out.dv, &truth.dv}};
  for (const auto& [got, want] : gradients) {
    const Distance d(got->values(), want->values());
    std::printf("gradient: max abs error %.3g, allowed %.3g\n", d.error, kSeedShapeGradientAbsolute);
    EXPECT_TRUE(d.error <= kSeedShapeGradientAbsolute);
  }
}

TEST_P(HardRules, F32OnNormalInputs) {
  for (const std::int64_t head_dim : {16, 64, 128, 256}) {
    for (const Lengths lengths : {Lengths{40, 33}, Lengths{128, 300}, Lengths{33, 1500}}) {
      const AttentionCase c = {.batch = 1,
                               .heads_q = 2,
                               .heads_k = 2,
                               .seqlen_q = lengths.q,
                               .seqlen_k = lengths.k,
                               .head_dim = head_dim,
                               .head_dim_v = head_dim,
                               .causal = GetParam(),
                               .seed = 3};
      SCOPED_TRACE(describe(c));
      const Inputs in = make_inputs(c);
      const Outputs truth = run(as_f64(in), "reference");
      const Outputs out = run(in, kBackend);
      EXPECT_TRUE(Distance(out.o.values(), truth.o.values()).error <= kF32ForwardAbsolute);
      const std::pair<const TensorBuffer*, const TensorBuffer*> gradients[] = {
          {&out.dq, &truth.dq}, {&out.dk, &truth.dk}, {&out.dv, &truth.dv}};
      for (const auto& [got, want] : gradients) {
        const Distance d(got->values(), want->values());
        EXPECT_TRUE(d.error <= kF32GradientRelative * d.scale) << d.error << " of " << d.scale;
      }
    }
  }
}

// error <= 2 x that of the standard implementation + 1e-5 of the largest magnitude, forward and backward alike.
TEST_P(HardRules, HalfTypesAtTwiceTheStandard) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    AttentionCase c = seed_shape(dtype, GetParam());
    c.batch = 1;
    const Inputs in = make_inputs(c);
    const Outputs truth = run(as_f64(in), "reference");
    const Standard standard = run_standard(in);
    const Outputs out = run(in, kBackend);
    const auto check = [&](const char* name, const TensorBuffer& got, const TensorBuffer& want,
                           const StandardTensor& s) {
      const Distance ours(got.values(), want.values());
      const double allowed = kHalfRuleFactor * Distance(s.value, want.values()).error + kHalfRuleFloor * ours.scale;
      std::printf("%s %s: error %.3g, allowed %.3g\n", dtype_name(dtype), name, ours.error, allowed);
      EXPECT_TRUE(ours.error <= allowed) << dtype_name(dtype) << " " << name;
    };
    check("o", out.o, truth.o, standard.o);
    check("dq", out.dq, truth.dq, standard.dq);
    check("dk", out.dk, truth.dk, standard.dk);
    check("dv", out.dv, truth.dv, standard.dv);
  }
}

INSTANTIATE_TEST_SUITE_P(FullAndCausal, HardRules, testing::Bool());

}  // namespace
}  // namespace attend::test
