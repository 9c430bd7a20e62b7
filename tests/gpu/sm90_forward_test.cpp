// Compares sm90_forward with float64. Covers each pair of options and head_dims, shapes that exercise tile edges and
// masks, repeats, neighbours that hold NaN, long rows and graphs.
#include <gtest/gtest.h>

#include "cuda/driver/device.hpp"
#include "cuda/driver/stream.hpp"
#include "dispatch/dispatch.hpp"
#include "gpu/forward_checks.hpp"
#include "gpu/gpu.hpp"
#include "support/covering_array.hpp"

namespace attend::test {
namespace {

constexpr const char* kCompute = "sm90_forward";
class Sm90 : public HopperTest {};

class Sm90Forward : public Sm90, public testing::WithParamInterface<AttentionCase> {};

TEST_P(Sm90Forward, StaysInBudget) {
  const Inputs in = make_inputs(GetParam());
  ASSERT_TRUE(supports(kCompute, in)) << describe(GetParam());
  check_backend(kCompute, in);
}

// Compile-time parameters of a kernel. Each pair of their values occurs in some kernel variant.
enum Factor {
  kDtype,
  kHeadDim,
  kHeadDimV,
  kMask,
  kSoftcap,
  kAlibi,
  kBias,
  kBoolMask,
  kDropout,
  kScale,
  kPacked,
  kSinks,
  kFactors
};
constexpr std::int64_t kHeadDims[] = {64, 128, 256, 8, 40, 72, 80, 96, 104, 112, 136, 160, 176, 192, 248};
constexpr std::int64_t kHeadDimsV[] = {0, 64, 128, 24, 200};  // 0 means the same head_dim as q
struct Mask {
  bool causal;
  std::int64_t left, right;
};
constexpr Mask kMasks[] = {{false, -1, -1}, {true, -1, -1}, {false, 100, 30}, {true, 65, -1}, {false, -1, 70}};
const std::vector<int> kNumValues = {
    2, std::size(kHeadDims), std::size(kHeadDimsV), std::size(kMasks), 2, 3, 9, 9, 2, 3, 2, 3};

bool compatible(int f, int a, int g, int b) {
  const bool has_matrix = (f == kBias || f == kBoolMask) && a > 0;
  if (has_matrix && g == kPacked && b == 1) return false;
  // Above 192 columns the family does not support a bias. edge_cases() tests boolean masks without options, and the
  // BoolMasks tests combine them with other options.
  const bool is_wide = (f == kHeadDim && kHeadDims[a] > 192) || (f == kHeadDimV && kHeadDimsV[a] > 192);
  return !(is_wide && (g == kBias || g == kBoolMask) && b > 0);
}

AttentionCase variant_case(const Choice& v) {
  const auto at = [&](Factor f) { return static_cast<std::size_t>(v[f]); };
  AttentionCase c = {.dtype = v[kDtype] == 0 ? DType::kBF16 : DType::kF16, .head_dim = kHeadDims[at(kHeadDim)]};
  c.head_dim_v = kHeadDimsV[at(kHeadDimV)] == 0 ? c.head_dim : kHeadDimsV[at(kHeadDimV)];
  c.causal = kMasks[at(kMask)].causal;
  c.window_left = kMasks[at(kMask)].left;
  c.window_right = kMasks[at(kMask)].right;
  c.softcap = v[kSoftcap] == 1 ? 1.5 : 0;
  c.alibi = v[kAlibi] > 0;
  c.alibi_per_sequence = v[kAlibi] > 1;
  c.bias = numbered_broadcast(v[kBias]);
  c.mask = numbered_broadcast(v[kBoolMask]);
  c.dropout_p = v[kDropout] == 1 ? 0.3 : 0;
  if (v[kScale] > 0) c.scale = v[kScale] == 1 ? -0.2 : 0.35;
  c.sinks = v[kSinks] > 0;
  c.sinks_per_sequence = v[kSinks] > 1;
  if (v[kPacked] == 1) c.varlen_q = {0};  // marks the case as packed; add_shapes() sets the lengths
  return c;
}

/// Adds problems for one kernel variant. The problems have lengths near tile edges, few and many heads, several layouts
/// and magnitudes.
void add_shapes(std::vector<AttentionCase>& cases, const AttentionCase& variant) {
  struct Shape {
    std::int64_t batch, heads_q, heads_k, q, k;
  };
  static constexpr Shape kShapes[] = {{1, 1, 1, 1, 1},     {2, 2, 1, 63, 65}, {1, 4, 2, 129, 127}, {3, 2, 2, 64, 300},
                                      {1, 8, 1, 193, 257}, {2, 3, 3, 200, 1}, {1, 2, 2, 5, 1023},  {2, 6, 2, 385, 512}};
  constexpr CaseLayout kLayouts[] = {CaseLayout::kBHSD, CaseLayout::kBSHD};
  constexpr Fill kFills[] = {Fill::kNormal, Fill::kLarge,       Fill::kNormal, Fill::kOneHot,
                             Fill::kNormal, Fill::kNearUniform, Fill::kOutlier};
  for (const Shape& s : kShapes) {
    AttentionCase c = variant;
    c.batch = s.batch;
    c.heads_q = s.heads_q;
    c.heads_k = s.heads_k;
    c.seqlen_q = s.q;
    c.seqlen_k = s.k;
    if (variant.packed()) {
      c.varlen_q = {s.q, 0, s.q / 2, 3};
      c.varlen_k = {s.k, 4, 0, s.k / 3 + 1};
    }
    c.layout = kLayouts[cases.size() % std::size(kLayouts)];
    c.fill = kFills[cases.size() % std::size(kFills)];
    c.seed = cases.size() + 1;
    cases.push_back(std::move(c));
  }
}

std::vector<AttentionCase> option_pairs() {
  std::vector<AttentionCase> cases;
  for (const Choice& choice : covering_array(kNumValues, compatible, 20261121)) add_shapes(cases, variant_case(choice));
  return cases;
}

INSTANTIATE_TEST_SUITE_P(OptionPairs, Sm90Forward, testing::ValuesIn(option_pairs()), kIndexName);

TEST(Sm90ForwardCases, AreEnough) {
  EXPECT_GE(option_pairs().size(), 500U);
  EXPECT_EQ(uncovered_pairs(kNumValues, compatible, covering_array(kNumValues, compatible, 20261121)), 0);
}

/// Returns cases with lengths on both sides of every tile edge, length 0, and more rows than keys. The cases use the
/// usual head_dims and no options.
std::vector<AttentionCase> edge_cases() {
  constexpr std::int64_t kLengths[] = {0,   1,   2,   63,  64,  65,  79,  80,  81,  112,
                                       127, 128, 129, 176, 177, 191, 192, 193, 256, 353};
  std::vector<AttentionCase> cases;
  for (const std::int64_t head_dim : {64, 128, 256}) {
    for (const std::int64_t q : kLengths) {
      for (const std::int64_t k : {q, q / 2 + 3, 2 * q, std::int64_t{130}}) {
        cases.push_back(plain(DType::kBF16, 2, 1, q, k, head_dim, cases.size() % 3 != 0));
        cases.back().batch = 2;
        cases.back().seed = cases.size();
        cases.back().sinks = cases.size() % 4 == 1;
        cases.back().sinks_per_sequence = cases.size() % 8 == 1;
      }
    }
  }
  for (const bool causal : {false, true}) {
    cases.push_back(plain(DType::kBF16, 2, 1, 200, 270, 256, causal));
    cases.back().mask = Broadcast{false, true, true};
  }
  cases.push_back(plain(DType::kBF16, 2, 2, 300, 0, 128, false));
  cases.push_back(plain(DType::kBF16, 1, 1, 700, 5000, 128, false));  // selects wide key tiles
  cases.push_back(plain(DType::kF16, 12, 4, 2500, 2500, 128, true));  // enough work for several tiles per SM
  cases.push_back(plain(DType::kBF16, 24, 8, 1500, 1700, 64, true));
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Edges, Sm90Forward, testing::ValuesIn(edge_cases()), kIndexName);

/// Returns cases with dropout, where some warps compute the dropout decisions for other warps. The lengths lie on both
/// sides of every tile edge. Some rows skip keys at either end of a tile or see no key. Some cases have several tiles
/// per multiprocessor, others few rows.
std::vector<AttentionCase> dropout_cases() {
  std::vector<AttentionCase> cases;
  const auto add = [&](AttentionCase c, double p) {
    c.dropout_p = p;
    c.seed = cases.size() + 1;
    cases.push_back(std::move(c));
  };
  for (const std::int64_t head_dim : {64, 96, 128, 192, 256}) {
    for (const std::int64_t q : {1, 63, 65, 127, 129, 193, 300}) {
      add(plain(DType::kBF16, 4, 2, q, q + 70, head_dim, q % 4 != 1), 0.3);
    }
    AttentionCase many = plain(DType::kF16, 30, 6, 600, 500, head_dim, true);  // the first 100 rows see no key
    add(many, 0.1);
    many.causal = false;
    many.window_left = 150;
    many.window_right = 40;
    many.sinks = true;
    add(many, 0.9);
    AttentionCase packed = plain(DType::kBF16, 6, 2, 0, 0, head_dim, true);
    packed.varlen_q = {130, 0, 3, 700};
    packed.varlen_k = {65, 4, 200, 900};
    add(packed, 0.5);
    add(plain(DType::kBF16, 2, 2, 150, 140, head_dim, false), 1e-12);  // the dropout threshold rounds to 0
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Dropout, Sm90Forward, testing::ValuesIn(dropout_cases()), kIndexName);

/// Returns one small case for each kernel variant. The sanitizers run these.
std::vector<AttentionCase> slice_cases() {
  std::vector<AttentionCase> cases = {
      plain(DType::kBF16, 2, 1, 200, 300, 128, true), plain(DType::kF16, 2, 2, 193, 257, 64, false),
      plain(DType::kBF16, 1, 1, 130, 200, 256, false), plain(DType::kBF16, 2, 1, 3, 300, 128, false)};
  AttentionCase packed = plain(DType::kBF16, 2, 1, 0, 0, 128, true);
  packed.varlen_q = {130, 0, 3};
  packed.varlen_k = {65, 4, 200};
  cases.push_back(packed);
  packed.sinks = packed.sinks_per_sequence = true;
  cases.push_back(packed);
  AttentionCase all = plain(DType::kBF16, 2, 1, 140, 150, 72, true);
  all.bias = Broadcast{false, true, true};
  all.mask = Broadcast{true, false, true};
  all.sinks = true;
  all.dropout_p = 0.3;
  all.softcap = 2;
  all.alibi = true;
  all.window_left = 80;
  cases.push_back(all);
  for (const std::int64_t head_dim : {64, 128, 256}) {
    AttentionCase dropout = plain(DType::kBF16, 2, 1, 200, 300, head_dim, true);
    dropout.dropout_p = 0.2;
    dropout.sinks = head_dim == 256;
    cases.push_back(dropout);
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Slice, Sm90Forward, testing::ValuesIn(slice_cases()), kIndexName);

class AheadForward : public Sm90 {};

TEST_F(AheadForward, CompilesWhatTheForwardCasesNeed) {
  std::vector<AttentionCase> cases = option_pairs();
  for (const auto& more : {edge_cases(), dropout_cases(), slice_cases()}) {
    cases.insert(cases.end(), more.begin(), more.end());
  }
  compile_ahead(kCompute, cases);
}

/// The rows see more and more keys. Truncation in tensor cores must not accumulate with the number of keys.
TEST_F(Sm90, LongRowsKeepTheirAccuracy) {
  for (const std::int64_t seqlen_k : {65536, 262144}) {
    AttentionCase c = plain(DType::kBF16, 1, 1, 3, seqlen_k, 64, false);
    check_backend(kCompute, make_inputs(c));
    c.fill = Fill::kNearUniform;
    check_backend(kCompute, make_inputs(c));
  }
}

TEST_F(Sm90, AThousandRepeatsAreBitEqual) {
  AttentionCase c = plain(DType::kBF16, 6, 2, 1000, 1100, 128, true);
  c.dropout_p = 0.1;
  check_repeats(kCompute, plain(DType::kBF16, 6, 2, 1000, 1100, 64, true), 1000);
  check_repeats(kCompute, c, 1000);
  c.head_dim = c.head_dim_v = 256;  // selects other tiles
  check_repeats(kCompute, c, 300);
}

TEST_F(Sm90, AFiniteBiasIsNotMinusInfinity) {
  for (const std::int64_t head_dim : {64, 128}) check_finite_bias(kCompute, head_dim);
}

TEST_F(Sm90, NeighboursThatHoldNaNReachNothing) {
  for (const bool packed : {false, true}) check_neighbours(kCompute, 128, packed);
}

TEST_F(Sm90, LargeScoresStayFinite) {
  for (const std::int64_t head_dim : {64, 96, 128, 192, 256}) check_large_scores(kCompute, head_dim);
}

/// The only key has the score 64 * 133120^2 / 8. Each row of o must equal the value of this key.
TEST_F(Sm90, OneKeyOfALargeScoreGivesItsValue) {
  const Inputs in = make_inputs(plain(DType::kBF16, 1, 1, 1, 1, 64, false));
  for (const TensorBuffer* t : {&in.q, &in.k, &in.v}) t->fill(133120);
  const Outputs out = run(in, kCompute);
  for (std::int64_t col = 0; col < 64; ++col) EXPECT_EQ(out.o.at(0, 0, 0, col), 133120) << col;
}

TEST_F(Sm90, AColdVariantMayBeCaptured) {
  AttentionCase c = plain(DType::kF16, 2, 1, 90, 110, 88, true);
  c.softcap = 4;
  c.alibi = true;
  const Inputs in = make_inputs(c);
  const Outputs out = make_outputs(in);
  const cuda::ContextGuard guard(0);
  const cuda::OwnStream stream;
  CapturedGraph graph(stream.get(), [&] { submit(kCompute, in, out, stream.get()); });
  graph.launch();
  cuda::synchronize(stream.get());
  const Outputs want = run(in, kCompute);
  EXPECT_EQ(out.o.bytes(), want.o.bytes());
  EXPECT_EQ(out.lse.bytes(), want.lse.bytes());
}

/// The library must use a caller-provided workspace, and must refuse one that is too small.
TEST_F(Sm90, AWorkspaceMayBeGiven) {
  const Inputs in = make_inputs(plain(DType::kBF16, 4, 2, 300, 300, 128, true));
  const Outputs want = run(in, kCompute), out = make_outputs(in);
  const cuda::ContextGuard guard(0);
  const cuda::OwnStream stream;
  Params params = in.params(kCompute);
  const Tensor lse = on_gpu(out.lse);
  const std::size_t bytes =
      forward_workspace_bytes(on_gpu(in.q), on_gpu(in.k), on_gpu(in.v), on_gpu(out.o), &lse, params);
  ASSERT_GT(bytes, 0U);
  const cuda::Scratch memory(bytes, stream.get());
  params.workspace = {reinterpret_cast<void*>(memory.data()), bytes};
  forward(on_gpu(in.q), on_gpu(in.k), on_gpu(in.v), on_gpu(out.o), &lse, params, stream.get());
  cuda::synchronize(stream.get());
  EXPECT_EQ(out.o.bytes(), want.o.bytes());
  params.workspace.bytes = bytes - 1;
  EXPECT_THROW(forward(on_gpu(in.q), on_gpu(in.k), on_gpu(in.v), on_gpu(out.o), &lse, params, stream.get()), Error);
}

}  // namespace
}  // namespace attend::test
