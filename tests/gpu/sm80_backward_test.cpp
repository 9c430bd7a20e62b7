// Compares sm80_backward with float64. Covers each pair of options, layouts, offsets and head_dims, the tiles of
// smaller GPUs, lengths that exercise tile edges and masks, dbias of every shape, repeats, neighbours that hold NaN,
// and large scores. o and lse come from the forward that `auto` picks.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "cuda/driver/device.hpp"
#include "cuda/driver/stream.hpp"
#include "cuda/launch/family.hpp"
#include "cuda/launch/launcher.hpp"
#include "dispatch/dispatch.hpp"
#include "gpu/forward_checks.hpp"
#include "gpu/gpu.hpp"
#include "support/expect.hpp"
#include "support/option_pairs.hpp"
#include "support/tolerances.hpp"

namespace attend::test {
namespace {

constexpr const char* kCompute = "sm80_backward";

class Sm80Gradients : public AmpereTest {};

class Sm80Backward : public Sm80Gradients, public testing::WithParamInterface<AttentionCase> {};

TEST_P(Sm80Backward, StaysInBudget) {
  check_backend(kCompute, make_inputs(GetParam()));
}

/// Returns the cases of the option covering array, converted to half precision. Float32 cases become the two half types
/// alternately. Each head_dim above 256 is replaced by one of kWide.
std::vector<AttentionCase> option_pairs() {
  constexpr std::int64_t kWide[] = {256, 200, 129};
  std::vector<AttentionCase> cases = option_pair_cases();
  for (std::size_t n = 0; n < cases.size(); ++n) {
    AttentionCase& c = cases[n];
    c.deterministic = n % 3 == 0;  // computes dq in a separate pass
    if (c.dtype == DType::kF32) c.dtype = n % 2 == 0 ? DType::kBF16 : DType::kF16;
    for (std::int64_t* head_dim : {&c.head_dim, &c.head_dim_v}) {
      if (*head_dim > 256) *head_dim = kWide[n % std::size(kWide)];
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(OptionPairs, Sm80Backward, testing::ValuesIn(option_pairs()), kIndexName);

/// Returns cases with lengths on both sides of every tile edge, with length 0 and with more rows than keys. The
/// head_dims lie on both sides of each padding step, and of the size from which dk and dv have separate kernels. Some
/// addresses and rows are unaligned. The bias has every shape.
std::vector<AttentionCase> edge_cases() {
  constexpr std::int64_t kLengths[] = {0, 1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 192, 257};
  std::vector<AttentionCase> cases;
  const auto add = [&](AttentionCase c) {
    c.seed = cases.size() + 1;
    c.deterministic = cases.size() % 3 == 0;
    cases.push_back(std::move(c));
  };
  for (const std::int64_t head_dim : {64, 128, 256}) {
    for (const std::int64_t q : kLengths) {
      for (const std::int64_t k : {q, q / 2 + 3, 2 * q}) {
        AttentionCase c =
            plain(cases.size() % 2 == 0 ? DType::kBF16 : DType::kF16, 4, 2, q, k, head_dim, cases.size() % 3 != 0);
        c.batch = 2;
        c.sinks = cases.size() % 4 == 1;
        c.sinks_per_sequence = cases.size() % 8 == 1;
        c.dlse = c.sinks;
        add(c);
      }
    }
  }
  for (const std::int64_t head_dim : {1, 15, 16, 17, 63, 65, 127, 129, 191, 193, 255}) {
    AttentionCase c = plain(DType::kF16, 2, 2, 140, 150, head_dim, true);
    add(c);
    c.head_dim_v = head_dim % 2 == 0 ? 200 : 40;
    c.layout = CaseLayout::kPadded;
    add(c);
    c.base_offset = 1;
    c.sinks = true;
    add(c);
  }
  for (const std::int64_t head_dim : {64, 128, 256}) {
    for (int broadcast = 1; broadcast <= 8; ++broadcast) {
      AttentionCase c = plain(broadcast % 2 == 0 ? DType::kBF16 : DType::kF16, 4, 2, 150, 170, head_dim, false);
      c.batch = 2;
      c.bias = numbered_broadcast(broadcast);
      if (broadcast % 3 == 0) c.softcap = 3;
      if (broadcast % 3 == 1) c.window_left = 40;
      add(c);
    }
  }
  add(plain(DType::kBF16, 2, 2, 300, 0, 128, false));
  add(plain(DType::kF16, 12, 4, 1500, 1700, 128, true));  // enough work for several blocks per SM
  add(plain(DType::kBF16, 16, 4, 1, 3000, 128, false));   // one query row
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Edges, Sm80Backward, testing::ValuesIn(edge_cases()), kIndexName);

/// Returns cases without options other than masks, which use sm80_backward_unmodified.cuh. The cases cover each mask
/// and tile, grouped heads, packed sequences that begin within a group of 16 rows, and negated, large and equal scores.
/// Neighbouring cases use different kernels.
std::vector<AttentionCase> unmodified_cases() {
  struct Shape {
    std::int64_t head_dim, head_dim_v;
  };
  constexpr Shape kShapes[] = {{64, 64}, {128, 128}, {256, 256}, {40, 64}, {192, 128}};
  struct Lengths {
    std::int64_t q, k;
  };
  constexpr Lengths kLengths[] = {{300, 315}, {64, 128}, {129, 65}, {1, 200}, {400, 700}};
  constexpr Fill kFills[] = {Fill::kNormal, Fill::kLarge, Fill::kNearUniform, Fill::kOneHot, Fill::kSmall};
  std::vector<AttentionCase> cases;
  for (std::size_t n = 0; n < std::size(kLengths); ++n) {
    for (const Shape& shape : kShapes) {
      AttentionCase c = plain(DType::kBF16, 4, 2, kLengths[n].q, kLengths[n].k, shape.head_dim, false);
      c.batch = 2;
      c.head_dim_v = shape.head_dim_v;
      c.fill = kFills[n];
      c.sinks = n % 2 == 1;
      c.seed = 100 + n;
      cases.push_back(c);
      c.dtype = DType::kF16;
      c.window_left = 70;
      c.window_right = 20;
      c.scale = -0.2;
      cases.push_back(c);
      c.dtype = DType::kBF16;
      c.scale = {};
      c.window_left = c.window_right = -1;
      c.causal = true;
      c.batch = 1;
      c.varlen_q = {3, kLengths[n].q, 0, 70, 17};
      c.varlen_k = {130, kLengths[n].k, 5, 90, 0};
      c.sinks_per_sequence = n == 1;
      cases.push_back(c);
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Plain, Sm80Backward, testing::ValuesIn(unmodified_cases()), kIndexName);

TEST(Sm80BackwardCases, AreEnough) {
  EXPECT_GE(option_pairs().size() * ATTEND_TEST_STRIDE + edge_cases().size(), 500U);
  EXPECT_EQ(uncovered_option_pairs(), 0);
}

AttentionCase with_all_options(AttentionCase c) {
  c.bias = Broadcast{false, true, true};
  c.mask = Broadcast{true, false, true};
  c.sinks = true;
  c.dropout_p = 0.3;
  c.softcap = 2;
  c.alibi = true;
  c.window_left = 80;
  c.dlse = true;
  return c;
}

/// Returns one small case for each kernel variant. The sanitizers run these.
std::vector<AttentionCase> slice_cases() {
  std::vector<AttentionCase> cases = {plain(DType::kBF16, 2, 1, 200, 300, 128, true),
                                      plain(DType::kF16, 2, 2, 193, 257, 64, false),
                                      plain(DType::kBF16, 1, 1, 130, 200, 256, false),
                                      plain(DType::kBF16, 2, 1, 70, 90, 50, true),
                                      plain(DType::kF16, 1, 1, 70, 90, 33, false),
                                      with_all_options(plain(DType::kBF16, 2, 1, 140, 150, 72, true)),
                                      with_all_options(plain(DType::kF16, 2, 1, 140, 150, 129, false)),
                                      with_all_options(plain(DType::kF16, 4, 2, 140, 150, 60, false))};
  cases.back().bias = Broadcast{true, false, false};  // the bias gradient is a sum over rows
  AttentionCase packed = plain(DType::kBF16, 2, 1, 0, 0, 128, true);
  packed.varlen_q = {130, 0, 3};
  packed.varlen_k = {65, 4, 200};
  cases.push_back(packed);
  packed.sinks = packed.sinks_per_sequence = packed.dlse = true;
  cases.push_back(packed);
  for (std::size_t n = 0; n < 3; ++n) {
    cases.push_back(cases[n]);
    cases.back().deterministic = true;
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Slice, Sm80Backward, testing::ValuesIn(slice_cases()), kIndexName);

constexpr const char* kSmallerGpus[] = {"sm_80", "sm_86"};  // GPUs whose blocks have less shared memory than Hopper's

int max_smem_of(const char* arch) {
  return cuda::find_arch(arch).max_smem_per_block;
}

/// Returns one case for each tile that smaller GPUs may use.
std::vector<AttentionCase> tile_cases() {
  std::vector<AttentionCase> cases;
  for (const std::int64_t head_dim : {64, 128, 192, 256}) {
    const AttentionCase bare = plain(DType::kBF16, 4, 2, 300, 315, head_dim, true);
    cases.insert(cases.end(), {bare, with_all_options(bare)});
    cases.push_back(bare);
    cases.back().deterministic = true;
  }
  return cases;
}

class AheadBackward80 : public Sm80Gradients {};

TEST_F(AheadBackward80, CompilesWhatTheBackwardCasesNeed) {
  std::vector<AttentionCase> cases = option_pairs();
  for (const auto& more : {edge_cases(), unmodified_cases(), slice_cases()})
    cases.insert(cases.end(), more.begin(), more.end());
  compile_ahead(kCompute, cases);
  for (const char* arch : kSmallerGpus) compile_ahead(kCompute, tile_cases(), max_smem_of(arch));
}

class Sm80BackwardTiles : public Sm80Gradients,
                          public testing::WithParamInterface<std::tuple<const char*, AttentionCase>> {};

/// On this GPU, runs the tiles that the library chooses for GPUs with less shared memory per block.
TEST_P(Sm80BackwardTiles, OfSmallerGpusComputeTheSame) {
  const auto& [arch, c] = GetParam();
  const cuda::Family& family = *cuda::find_family(kCompute);
  cuda::DeviceInfo smaller = cuda::device_info(0);
  smaller.max_smem_per_block = std::min(smaller.max_smem_per_block, max_smem_of(arch));
  const Inputs in = make_inputs(c);
  const Outputs want = run(in, kCompute), out = make_outputs(in);
  BackwardExtras extras;
  if (in.dlse) extras.dlse = in.dlse->view();
  if (out.dbias) extras.dbias = out.dbias->view();
  if (out.dsinks) extras.dsinks = out.dsinks->view();
  core::Problem p =
      core::make_backward_problem(in.dout.view(), in.q.view(), in.k.view(), in.v.view(), want.o.view(), want.lse.view(),
                                  out.dq.view(), out.dk.view(), out.dv.view(), in.params(kCompute), extras);
  p.q.device = {DeviceType::kCUDA, 0};
  const cuda::ContextGuard guard(0);
  const cuda::OwnStream stream;
  cuda::launch(family, p, family.choose(p, smaller), stream.get());
  cuda::synchronize(stream.get());
  const double tolerance = property_tolerance(c.dtype);
  expect_near("dq", out.dq.values(), want.dq.values(), tolerance);
  expect_near("dk", out.dk.values(), want.dk.values(), tolerance);
  expect_near("dv", out.dv.values(), want.dv.values(), tolerance);
  if (out.dbias) expect_near("dbias", out.dbias->values(), want.dbias->values(), tolerance);
  if (out.dsinks) expect_near("dsinks", out.dsinks->values(), want.dsinks->values(), tolerance);
}

INSTANTIATE_TEST_SUITE_P(Archs, Sm80BackwardTiles,
                         testing::Combine(testing::ValuesIn(kSmallerGpus), testing::ValuesIn(tile_cases())),
                         kIndexName);

TEST_F(Sm80Gradients, RepeatsAreBitEqual) {
  for (const std::int64_t head_dim : {64, 128, 200}) {
    AttentionCase bare = plain(DType::kBF16, 6, 2, 1000, 1100, head_dim, true);
    bare.deterministic = true;
    AttentionCase small = bare;
    small.seqlen_q = 300;
    for (const AttentionCase& c : {bare, with_all_options(small)}) {
      const Inputs in = make_inputs(c);
      const Outputs first = run(in, kCompute);
      for (int round = 0; round < 30; ++round) {
        const Outputs again = make_outputs(in);
        run_forward(in, again, kCompute);
        run_backward(in, again, kCompute);
        ASSERT_EQ(again.dq.bytes(), first.dq.bytes()) << round;
        ASSERT_EQ(again.dk.bytes(), first.dk.bytes()) << round;
        ASSERT_EQ(again.dv.bytes(), first.dv.bytes()) << round;
        if (first.dbias) {
          ASSERT_EQ(again.dbias->bytes(), first.dbias->bytes()) << round;
        }
        if (first.dsinks) {
          ASSERT_EQ(again.dsinks->bytes(), first.dsinks->bytes()) << round;
        }
      }
    }
  }
}

/// The gradients of a batch entry must not depend on the contents of the other entries.
TEST_F(Sm80Gradients, NeighboursThatHoldNaNReachNothing) {
  for (const std::int64_t head_dim : {57, 128, 256}) {
    for (const bool packed : {false, true}) {
      AttentionCase c = plain(DType::kBF16, 2, 2, 150, 150, head_dim, true);
      c.batch = 3;
      c.deterministic = true;
      if (packed) c.varlen_q = c.varlen_k = {150, 150, 150};
      const Inputs in = make_inputs(c);
      const Outputs want = run(in, kCompute);
      const std::int64_t first = packed ? 150 : 0;
      for (const TensorBuffer* t : {&in.q, &in.k, &in.v, &in.dout}) {
        t->generate([&](auto b, auto h, auto row, auto col) {
          const bool is_other = packed ? row < 150 || row >= 300 : b != 1;
          return is_other ? static_cast<double>(NAN) : t->at(b, h, row, col);
        });
      }
      const Outputs got = run(in, kCompute);
      const auto expect_same = [&](const char* name, const TensorBuffer& a, const TensorBuffer& b) {
        for (std::int64_t h = 0; h < 2; ++h) {
          for (std::int64_t row = first; row < first + 150; ++row) {
            for (std::int64_t col = 0; col < head_dim; ++col) {
              const std::int64_t batch = packed ? 0 : 1;
              ASSERT_EQ(a.at(batch, h, row, col), b.at(batch, h, row, col)) << name << " " << packed << " " << row;
            }
          }
        }
      };
      expect_same("dq", got.dq, want.dq);
      expect_same("dk", got.dk, want.dk);
      expect_same("dv", got.dv, want.dv);
    }
  }
}

/// Scores reach 1e30. Two scores of a row differ by more than the rounding error of lse. The key with the largest score
/// must have all the weight.
TEST_F(Sm80Gradients, LargeScoresStayFinite) {
  constexpr std::int64_t kLargest = 70;
  for (const double magnitude : {1e3, 1e9, 1e12, 1e15}) {
    AttentionCase c = plain(DType::kBF16, 1, 1, 20, 300, 64, false);
    c.scale = 1;
    const Inputs in = make_inputs(c);
    in.q.generate([&](auto, auto, auto, auto col) { return col == 0 ? magnitude : 0.0; });
    in.k.generate([&](auto b, auto h, auto j, auto col) {
      return col != 0 ? in.k.at(b, h, j, col) : j == kLargest ? magnitude : -magnitude;
    });
    const Outputs out = make_outputs(in), want = make_outputs(in);
    run_forward(in, out, "sm80_forward");
    run_backward(in, out, kCompute);
    run_forward(in, want, "reference");
    run_backward(in, want, "reference");
    expect_near("dv", out.dv.values(), want.dv.values(), property_tolerance(c.dtype));
    for (const TensorBuffer* t : {&out.dq, &out.dk}) {
      for (const double value : t->values()) ASSERT_TRUE(std::isfinite(value)) << magnitude;
    }
  }
}

}  // namespace
}  // namespace attend::test
