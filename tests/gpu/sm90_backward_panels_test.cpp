// Compares sm90_backward_panels with float64. Covers each pair of supported options, lengths that exercise tile edges
// and masks, problems that are cut into several panels, rows that see no key, repeats, and neighbours that hold NaN. o
// and lse come from the forward that `auto` picks.
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "cuda/driver/device.hpp"
#include "cuda/driver/stream.hpp"
#include "cuda/launch/family.hpp"
#include "cuda/launch/launcher.hpp"
#include "cuda/launch/sm90_backward_panels_plan.hpp"
#include "gpu/forward_checks.hpp"
#include "gpu/gpu.hpp"
#include "support/compare.hpp"
#include "support/covering_array.hpp"
#include "support/expect.hpp"

namespace attend::test {
namespace {

constexpr const char* kCompute = "sm90_backward_panels";

class PanelGradients : public HopperTest {};

class Sm90BackwardPanels : public PanelGradients, public testing::WithParamInterface<AttentionCase> {};

TEST_P(Sm90BackwardPanels, StaysInBudget) {
  check_backend(kCompute, make_inputs(GetParam()));
}

enum Factor { kDtype, kHeadDim, kHeadDimV, kMask, kScale, kPacked, kDlse };
struct Shape {
  std::int64_t batch, heads_q, heads_k, q, k;
};
constexpr std::array<std::int64_t, 6> kHeadDims = {512, 264, 320, 384, 392, 504};
constexpr std::array<std::int64_t, 5> kHeadDimsV = {0, 512, 264, 344, 64};  // 0 means the same head_dim as q
constexpr Shape kShapes[] = {{1, 1, 1, 1, 1},     {2, 2, 1, 63, 65},   {1, 4, 2, 129, 127}, {1, 2, 2, 64, 300},
                             {1, 4, 1, 193, 257}, {2, 3, 3, 200, 1},   {1, 2, 1, 5, 523},   {1, 2, 1, 0, 70},
                             {1, 2, 1, 70, 0},    {1, 6, 2, 385, 260}, {2, 2, 2, 256, 512}};
struct Mask {
  bool causal;
  std::int64_t left, right;
};
constexpr Mask kMasks[] = {{false, -1, -1}, {true, -1, -1}, {false, 100, 30}, {true, 65, -1}, {false, -1, 70}};

/// Returns cases that contain each pair of values, with problems of each shape.
std::vector<AttentionCase> option_pairs() {
  const std::vector<int> num_values = {2, kHeadDims.size(), kHeadDimsV.size(), std::size(kMasks), 4, 2, 2};
  constexpr Fill kFills[] = {Fill::kNormal, Fill::kLarge, Fill::kNormal, Fill::kOneHot, Fill::kNearUniform};
  std::vector<AttentionCase> cases;
  for (const Choice& v : covering_array(
           num_values, [](int, int, int, int) { return true; }, 20261130)) {
    const auto at = [&](Factor f) { return static_cast<std::size_t>(v[f]); };
    for (const Shape& s : kShapes) {
      const Mask& mask = kMasks[at(kMask)];
      AttentionCase c = {.dtype = v[kDtype] == 0 ? DType::kBF16 : DType::kF16,
                         .batch = s.batch,
                         .heads_q = s.heads_q,
                         .heads_k = s.heads_k,
                         .seqlen_q = s.q,
                         .seqlen_k = s.k,
                         .head_dim = kHeadDims[at(kHeadDim)],
                         .causal = mask.causal,
                         .window_left = mask.left,
                         .window_right = mask.right};
      c.head_dim_v = kHeadDimsV[at(kHeadDimV)];
      if (c.head_dim_v == 0) c.head_dim_v = c.head_dim;
      if (v[kScale] > 0) c.scale = std::array{-0.2, 0.35, 0.0}[at(kScale) - 1];
      if (v[kPacked] == 1) {
        c.varlen_q = {s.q, 0, s.q / 2, 3};
        c.varlen_k = {s.k, 4, 0, s.k / 3 + 1};
      }
      c.dlse = v[kDlse] == 1;
      const std::size_t number = cases.size();
      c.deterministic = number % 2 == 1;
      c.sinks = number % 3 == 1;
      c.sinks_per_sequence = number % 2 == 1;
      c.dsinks = number % 5 != 0;
      c.layout = number % 2 == 0 ? CaseLayout::kBHSD : CaseLayout::kBSHD;
      c.fill = kFills[number % std::size(kFills)];
      c.seed = number + 1;
      cases.push_back(std::move(c));
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(OptionPairs, Sm90BackwardPanels, testing::ValuesIn(option_pairs()), kIndexName);

TEST(Sm90BackwardPanelsCases, AreEnough) {
  EXPECT_GE(option_pairs().size(), 300U);
}

AttentionCase plain(std::int64_t heads_q, std::int64_t heads_k, std::int64_t seqlen, std::int64_t head_dim,
                    bool causal) {
  return test::plain(DType::kBF16, heads_q, heads_k, seqlen, seqlen, head_dim, causal);
}

/// Returns small cases with a tile edge or a mask each. The sanitizers run these.
std::vector<AttentionCase> slice_cases() {
  std::vector<AttentionCase> cases = {plain(1, 1, 65, 264, false), plain(2, 1, 130, 320, true),
                                      plain(1, 1, 200, 512, false)};
  cases.back().window_left = 70, cases.back().window_right = 5;
  cases.push_back(plain(1, 1, 140, 264, true));  // the first rows see no key
  cases.back().seqlen_k = 70, cases.back().dlse = true, cases.back().dtype = DType::kF16;
  AttentionCase packed = plain(2, 1, 0, 264, true);
  packed.varlen_q = {70, 0, 3};
  packed.varlen_k = {65, 4, 130};
  packed.sinks = packed.sinks_per_sequence = packed.dlse = true;
  cases.push_back(packed);
  AttentionCase odd = plain(1, 1, 66, 301, false);
  odd.head_dim_v = 261;
  odd.layout = CaseLayout::kPadded;
  cases.push_back(odd);
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Slice, Sm90BackwardPanels, testing::ValuesIn(slice_cases()), kIndexName);

/// Returns cases for the tests of small panels. In a panel of kSmallPanelKib, none of them fits as a whole.
constexpr std::int32_t kSmallPanelKib = 256;
std::vector<AttentionCase> several_panels() {
  std::vector<AttentionCase> cases = {plain(2, 1, 300, 264, true), plain(3, 3, 100, 264, false),
                                      plain(1, 1, 130, 264, false)};
  cases[0].seqlen_k = 700;
  cases[1].batch = 2;
  cases[2].seqlen_k = 530, cases[2].window_left = 40, cases[2].window_right = 90;
  AttentionCase packed = plain(2, 1, 0, 264, true);
  packed.varlen_q = {70, 0, 130};
  packed.varlen_k = {65, 4, 530};
  cases.push_back(packed);
  return cases;
}

class Sm90BackwardSmallPanels : public PanelGradients, public testing::WithParamInterface<AttentionCase> {};

TEST_P(Sm90BackwardSmallPanels, StayInBudget) {
  const Inputs in = make_inputs(GetParam());
  const Outputs out = make_outputs(in);
  run_forward(in, out, "auto");
  core::Problem p =
      core::make_backward_problem(in.dout.view(), in.q.view(), in.k.view(), in.v.view(), out.o.view(), out.lse.view(),
                                  out.dq.view(), out.dk.view(), out.dv.view(), in.params(kCompute), {});
  p.q.device = {DeviceType::kCUDA, 0};
  const cuda::Family& family = *cuda::find_family(kCompute);
  const cuda::DeviceInfo& device = cuda::device_info(0);
  cuda::Choice choice = family.choose(p, device);
  auto variant = choice.variant.as<cuda::Sm90BackwardPanelsVariant>();
  variant.panel_kib = kSmallPanelKib;
  const auto plan = cuda::Sm90BackwardPanelsPlan::of(p, variant);
  ASSERT_TRUE(plan.panel_units < plan.units || plan.panel_keys < p.max_seqlen_k);
  choice.variant = variant;
  family.lay_out(p, device, choice);
  const cuda::ContextGuard guard(0);
  const cuda::OwnStream stream;
  cuda::launch(family, p, choice, stream.get());
  cuda::synchronize(stream.get());
  compare_outputs(in, out);
}

INSTANTIATE_TEST_SUITE_P(Cases, Sm90BackwardSmallPanels, testing::ValuesIn(several_panels()), kIndexName);

class AheadBackwardPanels : public PanelGradients {};

TEST_F(AheadBackwardPanels, CompilesWhatTheCasesNeed) {
  std::vector<AttentionCase> cases = option_pairs();
  for (const std::vector<AttentionCase>& more : {slice_cases(), several_panels()}) {
    cases.insert(cases.end(), more.begin(), more.end());
  }
  compile_ahead(kCompute, cases);
}

TEST_F(PanelGradients, RepeatsAreBitEqual) {
  for (const std::int64_t head_dim : {264, 512}) {
    const Inputs in = make_inputs(plain(6, 2, 1000, head_dim, head_dim == 512));
    const Outputs first = run(in, kCompute);
    for (int round = 0; round < 50; ++round) {
      const Outputs again = make_outputs(in);
      run_forward(in, again, kCompute);
      run_backward(in, again, kCompute);
      ASSERT_EQ(again.dq.bytes(), first.dq.bytes()) << round;
      ASSERT_EQ(again.dk.bytes(), first.dk.bytes()) << round;
      ASSERT_EQ(again.dv.bytes(), first.dv.bytes()) << round;
    }
  }
}

/// The gradients of a sequence must not depend on the contents of the other sequences.
TEST_F(PanelGradients, NeighboursThatHoldNaNReachNothing) {
  constexpr std::int64_t kLength = 70, kHeadDim = 264;
  for (const bool packed : {false, true}) {
    AttentionCase c = plain(1, 1, kLength, kHeadDim, true);
    c.batch = 3;
    if (packed) c.varlen_q = c.varlen_k = {kLength, kLength, kLength};
    const Inputs in = make_inputs(c);
    const Outputs want = run(in, kCompute);
    const auto place = [packed](std::int64_t sequence, std::int64_t i) {
      return packed ? std::pair<std::int64_t, std::int64_t>{0, sequence * kLength + i} : std::pair{sequence, i};
    };
    for (const std::int64_t sequence : {0, 2}) {
      for (std::int64_t i = 0; i < kLength; ++i) {
        const auto [b, row] = place(sequence, i);
        for (const TensorBuffer* t : {&in.q, &in.k, &in.v, &in.dout}) {
          for (std::int64_t col = 0; col < kHeadDim; ++col) t->set(b, 0, row, col, NAN);
        }
      }
    }
    const Outputs got = run(in, kCompute);
    for (std::int64_t i = 0; i < kLength; ++i) {
      const auto [b, row] = place(1, i);
      for (std::int64_t col = 0; col < kHeadDim; ++col) {
        ASSERT_EQ(got.dq.at(b, 0, row, col), want.dq.at(b, 0, row, col)) << packed << " " << i;
        ASSERT_EQ(got.dk.at(b, 0, row, col), want.dk.at(b, 0, row, col)) << packed << " " << i;
        ASSERT_EQ(got.dv.at(b, 0, row, col), want.dv.at(b, 0, row, col)) << packed << " " << i;
      }
    }
  }
}

}  // namespace
}  // namespace attend::test
