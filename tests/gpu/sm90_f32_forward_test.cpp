// Compares sm90_f32_forward with float64. Covers each pair of options and head_dims, shapes that exercise tile edges
// and masks, numbers of every magnitude, NaN and infinities, and repeats.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "attend/attention.hpp"
#include "attend/block_mask.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/driver/stream.hpp"
#include "gpu/forward_checks.hpp"
#include "gpu/gpu.hpp"
#include "support/covering_array.hpp"
#include "support/expect.hpp"
#include "support/standard.hpp"
#include "support/tolerances.hpp"

namespace attend::test {
namespace {

constexpr const char* kCompute = "sm90_f32_forward";
class Sm90F32 : public HopperTest {};

class Sm90F32Forward : public Sm90F32, public testing::WithParamInterface<AttentionCase> {};

TEST_P(Sm90F32Forward, StaysInBudget) {
  const Inputs in = make_inputs(GetParam());
  ASSERT_TRUE(supports(kCompute, in)) << describe(GetParam());
  check_backend(kCompute, in);
}

// Compile-time parameters of a kernel. Each pair of their values occurs in some kernel variant.
enum Factor {
  kHeadDim,
  kHeadDimV,
  kMask,
  kSoftcap,
  kAlibi,
  kBias,
  kBoolMask,
  kScale,
  kPacked,
  kSinks,
  kLayout,
  kFactors
};
constexpr std::int64_t kHeadDims[] = {64, 128, 8, 40, 59, 72, 96, 112};
constexpr std::int64_t kHeadDimsV[] = {0, 64, 128, 24, 33};  // 0 means the same head_dim as q
struct Mask {
  bool causal;
  std::int64_t left, right;
};
constexpr Mask kMasks[] = {{false, -1, -1}, {true, -1, -1}, {false, 100, 30}, {true, 65, -1}, {false, -1, 70}};
constexpr CaseLayout kLayouts[] = {CaseLayout::kBHSD, CaseLayout::kBSHD, CaseLayout::kPadded};
const std::vector<int> kNumValues = {
    std::size(kHeadDims), std::size(kHeadDimsV), std::size(kMasks), 2, 3, 9, 9, 3, 2, 3, std::size(kLayouts)};

bool compatible(int f, int a, int g, int b) {
  const bool has_matrix = (f == kBias || f == kBoolMask) && a > 0;
  if (has_matrix && g == kPacked && b == 1) return false;
  // Above head_dim 64, ALiBi with a boolean mask is not supported.
  return !(f == kAlibi && a > 0 && g == kBoolMask && b > 0);
}

AttentionCase variant_case(const Choice& v) {
  const auto at = [&](Factor f) { return static_cast<std::size_t>(v[f]); };
  AttentionCase c = {.dtype = DType::kF32, .head_dim = kHeadDims[at(kHeadDim)]};
  c.head_dim_v = kHeadDimsV[at(kHeadDimV)] == 0 ? c.head_dim : kHeadDimsV[at(kHeadDimV)];
  c.causal = kMasks[at(kMask)].causal;
  c.window_left = kMasks[at(kMask)].left;
  c.window_right = kMasks[at(kMask)].right;
  c.softcap = v[kSoftcap] == 1 ? 1.5 : 0;
  c.alibi = v[kAlibi] > 0;
  c.alibi_per_sequence = v[kAlibi] > 1;
  c.bias = numbered_broadcast(v[kBias]);
  c.mask = numbered_broadcast(v[kBoolMask]);
  if (v[kScale] > 0) c.scale = v[kScale] == 1 ? -0.2 : 0.35;
  c.sinks = v[kSinks] > 0;
  c.sinks_per_sequence = v[kSinks] > 1;
  c.layout = kLayouts[at(kLayout)];
  if (v[kPacked] == 1) c.varlen_q = {0};  // marks the case as packed; add_shapes() sets the lengths
  return c;
}

/// Adds problems for one kernel variant. The problems have lengths near tile edges, few and many heads, and different
/// magnitudes.
void add_shapes(std::vector<AttentionCase>& cases, const AttentionCase& variant) {
  struct Shape {
    std::int64_t batch, heads_q, heads_k, q, k;
  };
  static constexpr Shape kShapes[] = {
      {1, 1, 1, 1, 1}, {2, 2, 1, 63, 65}, {1, 4, 2, 129, 127}, {3, 2, 2, 64, 300}, {2, 6, 2, 385, 512}};
  constexpr Fill kFills[] = {Fill::kNormal, Fill::kLarge,       Fill::kSmall,
                             Fill::kOneHot, Fill::kNearUniform, Fill::kOutlier};
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
    c.fill = kFills[cases.size() % std::size(kFills)];
    c.base_offset = cases.size() % 3 == 2 ? 1 : 0;
    c.seed = cases.size() + 1;
    cases.push_back(std::move(c));
  }
}

std::vector<AttentionCase> option_pairs() {
  std::vector<AttentionCase> cases;
  for (const Choice& choice : covering_array(kNumValues, compatible, 20261130)) add_shapes(cases, variant_case(choice));
  return cases;
}

INSTANTIATE_TEST_SUITE_P(OptionPairs, Sm90F32Forward, testing::ValuesIn(option_pairs()), kIndexName);

TEST(Sm90F32ForwardCases, AreEnough) {
  EXPECT_GE(option_pairs().size(), 150U);
  EXPECT_EQ(uncovered_pairs(kNumValues, compatible, covering_array(kNumValues, compatible, 20261130)), 0);
}

/// Returns cases with lengths on both sides of every tile edge, length 0, more rows than keys, and several tiles per
/// SM.
std::vector<AttentionCase> edge_cases() {
  constexpr std::int64_t kLengths[] = {0, 1, 2, 63, 64, 65, 95, 96, 97, 127, 128, 129, 191, 192, 193, 289};
  std::vector<AttentionCase> cases;
  for (const std::int64_t head_dim : {64, 128}) {
    for (const std::int64_t q : kLengths) {
      for (const std::int64_t k : {q, q / 2 + 3, 2 * q, std::int64_t{130}}) {
        cases.push_back(plain(DType::kF32, 2, 1, q, k, head_dim, cases.size() % 3 != 0));
        cases.back().batch = 2;
        cases.back().seed = cases.size();
        cases.back().sinks = cases.size() % 4 == 1;
      }
    }
  }
  cases.push_back(plain(DType::kF32, 2, 2, 300, 0, 128, false));
  cases.push_back(plain(DType::kF32, 1, 1, 700, 5000, 128, false));
  cases.push_back(plain(DType::kF32, 12, 4, 2500, 2500, 128, true));
  cases.push_back(plain(DType::kF32, 24, 8, 1500, 1700, 64, true));
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Edges, Sm90F32Forward, testing::ValuesIn(edge_cases()), kIndexName);

/// Returns one small case for each kernel variant. The sanitizers run these.
std::vector<AttentionCase> slice_cases() {
  std::vector<AttentionCase> cases = {
      plain(DType::kF32, 2, 1, 200, 300, 128, true), plain(DType::kF32, 2, 2, 193, 257, 64, false),
      plain(DType::kF32, 1, 1, 130, 200, 40, false), plain(DType::kF32, 2, 1, 3, 300, 128, false)};
  AttentionCase packed = plain(DType::kF32, 2, 1, 0, 0, 128, true);
  packed.varlen_q = {130, 0, 3};
  packed.varlen_k = {65, 4, 200};
  cases.push_back(packed);
  packed.sinks = packed.sinks_per_sequence = true;
  packed.head_dim = packed.head_dim_v = 57;
  cases.push_back(packed);
  AttentionCase all = plain(DType::kF32, 2, 1, 140, 150, 72, true);
  all.sinks = true;
  all.softcap = 2;
  all.alibi = true;
  all.window_left = 80;
  cases.push_back(all);
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Slice, Sm90F32Forward, testing::ValuesIn(slice_cases()), kIndexName);

/// The cases have enough rows that every multiprocessor computes some of the larger tiles.
std::vector<AttentionCase> tall_cases() {
  std::vector<AttentionCase> cases;
  for (const std::int64_t head_dim : {64, 128}) {
    for (const bool causal : {false, true}) {
      cases.push_back(
          plain(DType::kF32, 24, 8, 650, 300 + 100 * static_cast<std::int64_t>(cases.size()), head_dim, causal));
      cases.back().seed = cases.size();
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Tall, Sm90F32Forward, testing::ValuesIn(tall_cases()), kIndexName);

class AheadF32Forward : public Sm90F32 {};

TEST_F(AheadF32Forward, CompilesWhatTheForwardCasesNeed) {
  std::vector<AttentionCase> cases = option_pairs();
  for (const auto& more : {edge_cases(), slice_cases(), tall_cases()})
    cases.insert(cases.end(), more.begin(), more.end());
  compile_ahead(kCompute, cases);
}

/// The rows have more and more keys. Truncation in tensor cores must not accumulate with the number of keys.
TEST_F(Sm90F32, LongRowsKeepTheirAccuracy) {
  for (const std::int64_t head_dim : {64, 128}) {
    for (const std::int64_t seqlen_k : {16384, 131072}) {
      AttentionCase c = plain(DType::kF32, 1, 1, 3, seqlen_k, head_dim, false);
      check_backend(kCompute, make_inputs(c));
      c.fill = Fill::kNearUniform;
      check_backend(kCompute, make_inputs(c));
    }
  }
}

/// All values are positive, so every truncated product makes o smaller. Prints the error in units of 2^-24 of o.
TEST_F(Sm90F32, SumsOfOneSignAreAsGoodAsPlainFloat32) {
  for (const std::int64_t head_dim : {64, 128}) {
    for (const bool is_flat : {true, false}) {
      const Inputs in = make_inputs(plain(DType::kF32, 1, 1, 128, 1536, head_dim, false));
      if (is_flat) in.q.fill(0);
      in.v.generate([](auto, auto, auto row, auto col) { return 1 + double((row * 37 + col * 11) % 128) / 128; });
      const Outputs out = make_outputs(in), want = make_outputs(in);
      run_forward(in, out, kCompute);
      run_forward(in, want, "reference");
      const std::vector<double> got = out.o.values(), truth = want.o.values();
      const Standard standard = run_standard(in);
      double sum = 0, largest = 0, of_standard = 0;
      for (std::size_t at = 0; at < got.size(); ++at) {
        sum += (got[at] - truth[at]) / truth[at];
        largest = std::max(largest, std::abs(got[at] - truth[at]));
        of_standard = std::max(of_standard, std::abs(double(standard.o.value[at]) - truth[at]));
      }
      const double mean = sum / static_cast<double>(got.size()) / unit_roundoff(DType::kF32);
      std::printf("head_dim %d, %s weights: o is off by %.2f 2^-24 in the mean; error %.3g, plain float32's %.3g\n",
                  static_cast<int>(head_dim), is_flat ? "equal" : "different", mean, largest, of_standard);
      // All elements of o are below 2.
      EXPECT_LE(largest, kForwardFactor * of_standard + unit_roundoff(DType::kF32) * 2);
    }
  }
}

/// Every row has numbers of a different magnitude. A float32 is split into 16-bit parts, and some heads have a wider
/// range than two parts can represent.
TEST_F(Sm90F32, NumbersOfEverySizeStayInBudget) {
  for (const double spread : {4.0, 12.0, 40.0, 200.0}) {
    for (const char* which : {"q", "k", "v"}) {
      const Inputs in = make_inputs(plain(DType::kF32, 2, 1, 150, 200, 64, spread > 50));
      const TensorBuffer& t = which[0] == 'q' ? in.q : which[0] == 'k' ? in.k : in.v;
      for (std::int64_t h = 0; h < t.shape()[1]; ++h) {
        for (std::int64_t row = 0; row < t.shape()[2]; ++row) {
          const double size = std::exp2(std::floor(spread * (double(row * 7 % 31) / 30 - 0.5)));
          for (std::int64_t col = 0; col < 64; ++col) t.set(0, h, row, col, t.at(0, h, row, col) * size);
        }
      }
      check_backend(kCompute, in);
    }
  }
}

/// Columns have different magnitudes. Those of k are the reciprocals of those of q, so each column contributes the same
/// to the scores.
TEST_F(Sm90F32, ColumnsOfReciprocalSizesStayInBudget) {
  for (const double spread : {2.0, 12.0, 30.0, 48.0}) {
    for (const std::int64_t head_dim : {64, 128}) {
      const Inputs in = make_inputs(plain(DType::kF32, 2, 1, 150, 200, head_dim, false));
      for (const auto& [tensor, sign] : {std::pair{&in.q, 1}, {&in.k, -1}}) {
        tensor->generate([&](auto b, auto h, auto row, auto col) {
          return tensor->at(b, h, row, col) * std::exp2(sign * std::floor(spread * (double(col * 7 % 31) / 30 - 0.5)));
        });
      }
      check_backend(kCompute, in);
    }
  }
}

/// Each column of o has its own magnitude, and its error must be small compared with that.
TEST_F(Sm90F32, ColumnsOfOAreExactBesideAHugeOne) {
  for (const double size : {0x1p10, 0x1p20, 0x1p40}) {
    const Inputs in = make_inputs(plain(DType::kF32, 2, 1, 150, 200, 64, true));
    in.v.generate(
        [&](auto b, auto h, auto row, auto col) { return in.v.at(b, h, row, col) * (col == 33 ? size : 1.0); });
    const Outputs out = make_outputs(in), want = make_outputs(in);
    run_forward(in, out, kCompute);
    run_forward(in, want, "reference");
    const std::vector<double> got = out.o.values(), truth = want.o.values();
    double largest = 0;
    for (std::size_t at = 0; at < got.size(); ++at) {
      if (at % 64 != 33) largest = std::max(largest, std::abs(got[at] - truth[at]));
    }
    std::printf("one column %g times as large: error of the others %.3g\n", size, largest);
    EXPECT_LE(largest, 4e-6) << size;
  }
}

/// All numbers of a tensor have one magnitude, which ranges from far below to far above 1.
TEST_F(Sm90F32, TensorsOfEverySizeStayInBudget) {
  for (const double size : {1e-30, 1e-16, 1e-3, 1e3, 1e12, 1e30}) {
    for (const char* which : {"q", "k", "v"}) {
      AttentionCase c = plain(DType::kF32, 1, 1, 100, 130, 128, false);
      if (which[0] != 'v') c.scale = 0.1 / size;
      const Inputs in = make_inputs(c);
      const TensorBuffer& t = which[0] == 'q' ? in.q : which[0] == 'k' ? in.k : in.v;
      t.generate([&](auto b, auto h, auto row, auto col) { return t.at(b, h, row, col) * size; });
      check_backend(kCompute, in);
    }
  }
}

TEST_F(Sm90F32, RowsOfZerosAreLikeOthers) {
  const Inputs in = make_inputs(plain(DType::kF32, 1, 1, 130, 200, 64, false));
  for (const TensorBuffer* t : {&in.q, &in.k, &in.v}) {
    t->generate([&](auto b, auto h, auto row, auto col) { return row % 3 == 0 ? 0.0 : t->at(b, h, row, col); });
  }
  check_backend(kCompute, in);
  for (const TensorBuffer* t : {&in.q, &in.k, &in.v}) t->fill(0);
  check_backend(kCompute, in);
}

/// NaN and infinities must reach exactly the results that depend on them, even if only some rows of a tile see the
/// value.
TEST_F(Sm90F32, NaNAndInfinitiesReachExactlyWhatDependsOnThem) {
  for (const double value : {double(NAN), double(INFINITY), -double(INFINITY)}) {
    for (const char* which : {"q", "k", "v"}) {
      const Inputs in = make_inputs(plain(DType::kF32, 4, 2, 100, 131, 64, true));
      const TensorBuffer& t = which[0] == 'q' ? in.q : which[0] == 'k' ? in.k : in.v;
      t.set(0, 1, 70, 5, value);
      const Outputs out = make_outputs(in), want = make_outputs(in);
      run_forward(in, out, kCompute);
      run_forward(in, want, "reference");
      std::int64_t not_finite = 0;
      for (const auto& [got, truth] : {std::pair{&out.o, &want.o}, {&out.lse, &want.lse}}) {
        const std::vector<double> x = got->values(), y = truth->values();
        for (std::size_t at = 0; at < x.size(); ++at) {
          not_finite += std::isfinite(y[at]) ? 0 : 1;
          const bool is_same = std::isnan(y[at]) ? std::isnan(x[at]) : x[at] == y[at] || std::abs(x[at] - y[at]) < 1e-5;
          ASSERT_TRUE(is_same) << which << " " << value << " at " << at << ": " << x[at] << ", not " << y[at];
        }
      }
      EXPECT_GT(not_finite, 0) << which;
    }
  }
}

TEST_F(Sm90F32, NeighboursThatHoldNaNReachNothing) {
  for (const bool packed : {false, true}) check_neighbours(kCompute, 128, packed, DType::kF32);
}

TEST_F(Sm90F32, LargeScoresStayFinite) {
  for (const std::int64_t head_dim : {64, 128}) check_large_scores(kCompute, head_dim, DType::kF32);
}

TEST_F(Sm90F32, AFiniteBiasIsNotMinusInfinity) {
  for (const std::int64_t head_dim : {64, 128}) check_finite_bias(kCompute, head_dim, DType::kF32);
}

/// Compares with simt. Runs with a block mask, with a score function, and with both.
TEST_F(Sm90F32, BlockMasksAndFunctionsOfScoresAreThoseOfSimt) {
  const BlockMask mask = make_block_mask(MaskFunction("k <= q || k % 7 == 0"), {1, 1, 150, 300});
  const ScoreFunction score("0.5 * score - 0.01 * abs(q - k)");
  const cuda::ContextGuard guard(0);
  const cuda::OwnStream stream;
  for (const std::int64_t head_dim : {64, 128}) {
    const Inputs in = make_inputs(plain(DType::kF32, 2, 1, 150, 300, head_dim, false));
    for (const int which : {1, 2, 3}) {
      const auto run_by = [&](const char* compute) {
        Outputs out = make_outputs(in);
        Params params = in.params(compute);
        if ((which & 1) != 0) params.block_mask = &mask;
        if ((which & 2) != 0) params.score = &score;
        const Tensor lse = on_gpu(out.lse);
        forward(on_gpu(in.q), on_gpu(in.k), on_gpu(in.v), on_gpu(out.o), &lse, params, stream.get());
        cuda::synchronize(stream.get());
        return out;
      };
      const Outputs got = run_by(kCompute), want = run_by("simt");
      expect_near("o", got.o.values(), want.o.values(), property_tolerance(DType::kF32));
      expect_near("lse", got.lse.values(), want.lse.values(), property_tolerance(DType::kF32));
    }
  }
}

TEST_F(Sm90F32, RepeatsAreBitEqual) {
  check_repeats(kCompute, plain(DType::kF32, 6, 2, 1000, 1100, 64, true), 300);
  check_repeats(kCompute, plain(DType::kF32, 6, 2, 1000, 1100, 128, true), 300);
}

}  // namespace
}  // namespace attend::test
