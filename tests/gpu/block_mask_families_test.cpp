// Compares block masks with the float64 reference in the families that read them as a map (simt, and sm80_forward with
// sm80_backward). The cases contain every mask of the cookbook and masks combined with options. block_mask_test.cpp
// tests sm90.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "cuda/driver/device.hpp"
#include "cuda/launch/family.hpp"
#include "gpu/gpu.hpp"
#include "gpu/output_checks.hpp"
#include "gpu/own_functions.hpp"
#include "mask/mask_cookbook.hpp"
#include "score/score_case.hpp"

namespace attend::test {
namespace {

using Index = std::int64_t;

/// Names of the backends that compute forward and backward.
struct Pair {
  const char* name;
  const char* forward;
  const char* backward;
};
constexpr Pair kPairs[] = {{"simt", "simt", "simt"}, {"sm80", "sm80_forward", "sm80_backward"}};
constexpr Pair kWide = {"sm80 and simt", "sm80_forward", "simt"};  // sm80_backward does not support head_dim above 256
constexpr Pair kReference = {"reference", "reference", "reference"};

/// Each test has two parameters: a pair of backends, and a number. The number selects a mask or a part of the cases.
class OfPairs : public GpuTest, public testing::WithParamInterface<std::tuple<std::size_t, std::size_t>> {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped() || cuda::find_family(pair().forward)->supports(cuda::device_info(0).arch())) return;
    GTEST_SKIP() << "no instructions for " << pair().forward;
  }
  [[nodiscard]] static const Pair& pair() { return kPairs[std::get<0>(GetParam())]; }
  [[nodiscard]] static std::size_t number() { return std::get<1>(GetParam()); }
  [[nodiscard]] static bool is_simt() { return std::get<0>(GetParam()) == 0; }
};

const auto kPairAndNumber = [](const auto& test) {
  return kPairs[std::get<0>(test.param)].name + ("_" + std::to_string(std::get<1>(test.param)));
};

/// A problem with a block mask and, optionally, a score function.
struct MaskedCase {
  AttentionCase attention;
  const BlockMask* mask = nullptr;
  std::string score = {};
  // float32 tensor that the score function reads; its gradient is also computed.
  std::optional<CaptureBuffer> capture = {};
};

struct Results {
  Outputs out;
  std::vector<double> dcapture = {};
};

Results run_masked(const MaskedCase& c, const Inputs& in, const Pair& pair) {
  Results results = {make_outputs(in)};
  ForwardCall call = forward_of(in, results.out, pair.forward);
  const Device device = call.q.device;
  std::optional<ScoreFunction> score;
  if (!c.score.empty()) {
    score.emplace(c.score,
                  c.capture ? std::vector<ScoreCapture>{c.capture->capture(device)} : std::vector<ScoreCapture>{});
  }
  call.params.block_mask = c.mask;
  call.params.score = score ? &*score : nullptr;
  forward(call);
  BackwardCall back = backward_of(in, results.out, pair.backward);
  back.params.block_mask = c.mask;
  back.params.score = score ? &*score : nullptr;
  std::optional<CaptureBuffer> gradient;
  if (c.capture) {
    gradient.emplace(c.capture->name(), in.options.dtype == DType::kF64 ? DType::kF64 : DType::kF32, c.capture->shape(),
                     std::vector<double>(static_cast<std::size_t>(c.capture->numel()), NAN));
    const ConstStridedTensor view = gradient->capture(device).tensor;
    back.captures.push_back(
        {gradient->name(), {const_cast<void*>(view.data), view.dtype, view.shape, view.stride, view.device}});
  }
  backward(back);
  wait_for(pair.forward);
  if (gradient) results.dcapture = gradient->values();
  return results;
}

void expect_reference(const MaskedCase& c, const Pair& pair) {
  SCOPED_TRACE(pair.name + (" " + describe(c.attention)) + " " + c.score);
  const DType dtype = c.attention.dtype;
  const double unit = dtype == DType::kF32 ? 5e-6 : dtype == DType::kBF16 ? 0x1p-7 : 0x1p-10;
  const Inputs in = make_inputs(c.attention);
  const Results got = run_masked(c, in, pair), truth = run_masked(c, as_f64(in), kReference);
  std::printf("%s %s:", pair.name, describe(c.attention).c_str());
  expect_near("o", got.out.o, truth.out.o, unit);
  expect_near("lse", got.out.lse, truth.out.lse, c.score.empty() && c.attention.softcap == 0 ? 5e-6 : unit);
  expect_near("dq", got.out.dq, truth.out.dq, 4 * unit);
  expect_near("dk", got.out.dk, truth.out.dk, 4 * unit);
  expect_near("dv", got.out.dv, truth.out.dv, 4 * unit);
  if (got.out.dbias) expect_near("dbias", *got.out.dbias, *truth.out.dbias, 4 * unit);
  if (got.out.dsinks) expect_near("dsinks", *got.out.dsinks, *truth.out.dsinks, 4 * unit);
  if (c.capture) expect_near("dcapture", got.dcapture, truth.dcapture, 4 * unit);
  std::printf("\n");
}

/// Returns two cases for the mask with the given number. Sizes and dtypes alternate with the number, so that all of
/// them occur.
std::vector<AttentionCase> cookbook_cases(bool is_simt, std::size_t number) {
  const DType types[] = {DType::kF32, DType::kBF16, DType::kF16};
  const auto type = [&](std::size_t n) { return is_simt ? types[(number + n) % 3] : types[1 + (number + n) % 2]; };
  std::vector<AttentionCase> all = {base_case(type(0)), base_case(type(1))};
  if (number % 2 == 0) {
    all[1].head_dim = 128, all[1].head_dim_v = 96, all[1].seqlen_q = 300;
  } else {
    all[1].head_dim = all[1].head_dim_v = 192, all[1].seqlen_k = 130, all[1].heads_k = 4;
  }
  return all;
}

class GpuBlockMaps : public OfPairs {};

INSTANTIATE_TEST_SUITE_P(All, GpuBlockMaps,
                         testing::Combine(testing::Range<std::size_t>(0, std::size(kPairs)),
                                          testing::Range<std::size_t>(0, mask_cookbook().size())),
                         kPairAndNumber);

TEST_P(GpuBlockMaps, OfTheCookbookAreTheReference) {
  const MaskRecipe& recipe = mask_cookbook()[number()];
  SCOPED_TRACE(recipe.name);
  for (const AttentionCase& c : cookbook_cases(is_simt(), number())) {
    const MaskSizes sizes = mask_sizes({c.batch, c.heads_q, c.seqlen_q, c.seqlen_k});
    const std::vector<CaptureBuffer> captures = recipe.captures(sizes);
    const BlockMask mask = make_block_mask(function_of(recipe, captures), sizes.shape);
    expect_reference({c, &mask}, pair());
  }
}

/// Returns cases of one dtype that each combine a mask with other options.
std::vector<AttentionCase> option_cases(DType dtype) {
  std::vector<AttentionCase> all(14, base_case(dtype));
  all[0].causal = true, all[0].seqlen_q = 277;
  all[1].window_left = 90, all[1].window_right = 40, all[1].sinks = true;
  all[2].softcap = 10, all[2].head_dim = 40, all[2].head_dim_v = 72;
  all[3].dropout_p = 0.2, all[3].heads_k = 1;
  all[4].alibi = true, all[4].causal = true, all[4].head_dim = all[4].head_dim_v = 128;
  all[5].bias = Broadcast{}, all[5].seqlen_k = 276;
  all[6].bias = Broadcast{false, true, false}, all[6].head_dim = all[6].head_dim_v = 128;
  all[7].mask = Broadcast{false, false, true};
  all[8].deterministic = true, all[8].head_dim = all[8].head_dim_v = 128;
  all[9].head_dim = 33, all[9].head_dim_v = 7, all[9].dropout_p = 0.5, all[9].softcap = 5;
  all[10].seqlen_q = 1, all[10].seqlen_k = 129, all[10].head_dim = all[10].head_dim_v = 256;
  all[11].bias = Broadcast{false, false, true}, all[11].head_dim = all[11].head_dim_v = 192, all[11].causal = true;
  all[12].layout = CaseLayout::kPadded, all[12].scale = -0.3, all[12].head_dim = all[12].head_dim_v = 128;
  all[13].head_dim = 300, all[13].head_dim_v = 400, all[13].heads_q = 2, all[13].seqlen_q = 70;
  return all;
}

/// Mask text for which some rows and tiles see no key, heads differ, and all pattern tiles are different.
constexpr const char* kRagged = "(q // 50 + k // 70 + h) % 3 != 0 && (q + 3 * k) % 5 < 3 && q // 64 != 1";

constexpr std::size_t kParts = 4;

class GpuBlockMapOptions : public OfPairs {};

INSTANTIATE_TEST_SUITE_P(All, GpuBlockMapOptions,
                         testing::Combine(testing::Range<std::size_t>(0, std::size(kPairs)),
                                          testing::Range<std::size_t>(0, kParts)),
                         kPairAndNumber);

TEST_P(GpuBlockMapOptions, ComposeWithAMask) {
  const std::vector<AttentionCase> all = option_cases(DType::kF32);
  for (std::size_t n = number(); n < all.size(); n += kParts) {
    const DType dtype = is_simt() ? (n % 3 == 0 ? DType::kBF16 : DType::kF32) : DType::kBF16;
    const AttentionCase c = option_cases(dtype)[n];
    const BlockMask mask = make_block_mask(MaskFunction(kRagged), {1, c.heads_q, c.seqlen_q, c.seqlen_k});
    expect_reference({c, &mask}, is_simt() || c.head_dim <= 256 ? pair() : kWide);
  }
}

/// The score functions include one with slope 1, some with other slopes, one that is NaN for hidden pairs, and one that
/// gives some rows very large scores.
TEST_P(GpuBlockMapOptions, ComposeWithAFunction) {
  const CaptureBuffer gain("gain", DType::kF32, {4}, {0.5, 1, 2, -1});
  const CaptureBuffer table("table", DType::kF32, {4, 16}, normal_values(64, 1));
  const std::vector<std::pair<std::string, std::optional<CaptureBuffer>>> functions = {
      {"score + table[h][clamp(q - k, -8, 7) + 8]", table},
      {"gain[h] * tanh(score / 2) - 0.01 * abs(q - k)", gain},
      {"score - log(float(q_len - q)) - log(float(k + 1 - 70 * (k // 70 == 1)))", std::nullopt},
      {"q % 3 == 0 ? score - 1e30 : score", std::nullopt}};
  const auto& [text, capture] = functions[number()];
  std::vector<AttentionCase> all(2, base_case(is_simt() ? DType::kF32 : DType::kBF16));
  all[1].head_dim = all[1].head_dim_v = 128, all[1].causal = true, all[1].seqlen_q = 277;
  for (const AttentionCase& c : all) {
    const BlockMask mask = make_block_mask(MaskFunction(kRagged), {1, c.heads_q, c.seqlen_q, c.seqlen_k});
    expect_reference({c, &mask, text, capture}, pair());
  }
}

/// Tests that run once for each pair of backends.
class GpuBlockMapPairs : public OfPairs {};

INSTANTIATE_TEST_SUITE_P(All, GpuBlockMapPairs,
                         testing::Combine(testing::Range<std::size_t>(0, std::size(kPairs)),
                                          testing::Values(std::size_t{0})),
                         [](const auto& test) { return std::string(kPairs[std::get<0>(test.param)].name); });

/// There are so many keys that kernels save partial sums to memory. A range of keys in the middle is hidden.
TEST_P(GpuBlockMapPairs, SumOverVeryManyKeys) {
  AttentionCase c = base_case(DType::kF16);
  c.batch = c.heads_q = c.heads_k = 1, c.seqlen_q = 32, c.seqlen_k = 70000, c.head_dim = c.head_dim_v = 16;
  const BlockMask mask = make_block_mask(MaskFunction("k % 2 == 0 && k // 512 % 3 != 1 && q > 2"), {1, 1, 32, 70000});
  expect_reference({c, &mask}, pair());
}

/// Tiles that no row sees must not be loaded. NaN in these tiles must therefore have no effect.
TEST_P(GpuBlockMapPairs, LeaveEmptyTilesOut) {
  const BlockMask mask = make_block_mask(MaskFunction(UnseenNaN::kMask), {1, 1, 512, 768});
  for (const Index head_dim : {64, 128, 256}) {
    AttentionCase c = base_case(is_simt() ? DType::kF32 : DType::kBF16);
    c.head_dim = c.head_dim_v = head_dim;
    const auto in = UnseenNaN::of(c);
    const MaskedCase masked = {c, &mask};
    expect_left_out(run_masked(masked, in.poisoned, pair()).out, run_masked(masked, in.clean, pair()).out);
  }
}

}  // namespace
}  // namespace attend::test
