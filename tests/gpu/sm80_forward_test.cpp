// Compares sm80_forward with float64. Covers each pair of options, layouts, offsets and head_dims, the tiles of smaller
// GPUs, shapes that exercise tile edges and masks, repeats, neighbours that hold NaN, and large scores.
#include <gtest/gtest.h>

#include <algorithm>

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

constexpr const char* kCompute = "sm80_forward";

class Sm80 : public AmpereTest {};

class Sm80Forward : public Sm80, public testing::WithParamInterface<AttentionCase> {};

TEST_P(Sm80Forward, StaysInBudget) {
  const Inputs in = make_inputs(GetParam());
  ASSERT_TRUE(supports(kCompute, in)) << describe(GetParam());
  check_backend(kCompute, in);
}

/// Returns the cases of the option covering array in half precision. Float32 cases are converted to the two half types
/// alternately.
std::vector<AttentionCase> option_pairs() {
  std::vector<AttentionCase> cases = option_pair_cases();
  for (std::size_t n = 0; n < cases.size(); ++n) {
    if (cases[n].dtype == DType::kF32) cases[n].dtype = n % 2 == 0 ? DType::kBF16 : DType::kF16;
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(OptionPairs, Sm80Forward, testing::ValuesIn(option_pairs()), kIndexName);

TEST(Sm80ForwardCases, AreEnough) {
  EXPECT_GE(option_pairs().size() * ATTEND_TEST_STRIDE, 300U);
  EXPECT_EQ(uncovered_option_pairs(), 0);
}

/// Returns cases with lengths on both sides of every tile edge, with length 0 and with more rows than keys. The
/// head_dims lie on both sides of each step at which columns are padded or divided. Some addresses and rows are
/// unaligned.
std::vector<AttentionCase> edge_cases() {
  constexpr std::int64_t kLengths[] = {0, 1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 192, 257};
  std::vector<AttentionCase> cases;
  const auto add = [&](AttentionCase c) {
    c.seed = cases.size() + 1;
    cases.push_back(std::move(c));
  };
  for (const std::int64_t head_dim : {64, 128, 256}) {
    for (const std::int64_t q : kLengths) {
      for (const std::int64_t k : {q, q / 2 + 3, 2 * q}) {
        AttentionCase c = plain(DType::kBF16, 2, 1, q, k, head_dim, cases.size() % 3 != 0);
        c.batch = 2;
        c.sinks = cases.size() % 4 == 1;
        c.sinks_per_sequence = cases.size() % 8 == 1;
        add(c);
      }
    }
  }
  for (const std::int64_t head_dim : {1, 15, 16, 17, 63, 65, 127, 129, 191, 193, 255, 257, 320, 511, 512}) {
    AttentionCase c = plain(DType::kF16, 2, 2, 140, 150, head_dim, true);
    add(c);
    c.head_dim_v = head_dim % 2 == 0 ? 300 : 40;
    c.layout = CaseLayout::kPadded;
    add(c);
    c.base_offset = 1;
    c.sinks = true;
    add(c);
  }
  add(plain(DType::kBF16, 2, 2, 300, 0, 128, false));
  add(plain(DType::kF16, 12, 4, 1500, 1700, 128, true));  // enough work for several blocks per SM
  add(plain(DType::kBF16, 24, 8, 1500, 1700, 64, true));
  add(plain(DType::kBF16, 16, 4, 1, 3000, 128, false));  // one query row, which uses tiles with few rows
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Edges, Sm80Forward, testing::ValuesIn(edge_cases()), kIndexName);

AttentionCase with_all_options(AttentionCase c) {
  c.bias = Broadcast{false, true, true};
  c.mask = Broadcast{true, false, true};
  c.sinks = true;
  c.dropout_p = 0.3;
  c.softcap = 2;
  c.alibi = true;
  c.window_left = 80;
  return c;
}

/// Returns one small case for each kernel variant. The sanitizers run these.
std::vector<AttentionCase> slice_cases() {
  std::vector<AttentionCase> cases = {plain(DType::kBF16, 2, 1, 200, 300, 128, true),
                                      plain(DType::kF16, 2, 2, 193, 257, 64, false),
                                      plain(DType::kBF16, 1, 1, 130, 200, 256, false),
                                      plain(DType::kBF16, 2, 1, 3, 300, 128, false),
                                      plain(DType::kF16, 1, 1, 70, 90, 512, true),
                                      plain(DType::kBF16, 2, 1, 70, 90, 50, true),
                                      plain(DType::kF16, 1, 1, 70, 90, 33, false),
                                      with_all_options(plain(DType::kBF16, 2, 1, 140, 150, 72, true)),
                                      with_all_options(plain(DType::kF16, 2, 1, 140, 150, 129, false))};
  AttentionCase packed = plain(DType::kBF16, 2, 1, 0, 0, 128, true);
  packed.varlen_q = {130, 0, 3};
  packed.varlen_k = {65, 4, 200};
  cases.push_back(packed);
  packed.sinks = packed.sinks_per_sequence = true;
  cases.push_back(packed);
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Slice, Sm80Forward, testing::ValuesIn(slice_cases()), kIndexName);

constexpr const char* kSmallerGpus[] = {"sm_80", "sm_86"};  // GPUs whose blocks have less shared memory than Hopper's

int max_smem_of(const char* arch) {
  return cuda::find_arch(arch).max_smem_per_block;
}

/// Returns one case for each tile that smaller GPUs may use.
std::vector<AttentionCase> tile_cases() {
  std::vector<AttentionCase> cases;
  for (const std::int64_t head_dim : {64, 128, 192, 256, 512}) {
    const AttentionCase bare = plain(DType::kBF16, 8, 4, 500, 515, head_dim, true);
    cases.insert(cases.end(), {bare, with_all_options(bare), plain(DType::kBF16, 8, 4, 3, 515, head_dim, true)});
  }
  return cases;
}

class AheadForward80 : public Sm80 {};

TEST_F(AheadForward80, CompilesWhatTheForwardCasesNeed) {
  std::vector<AttentionCase> cases = option_pairs();
  for (const auto& more : {edge_cases(), slice_cases()}) cases.insert(cases.end(), more.begin(), more.end());
  compile_ahead(kCompute, cases);
  for (const char* arch : kSmallerGpus) compile_ahead(kCompute, tile_cases(), max_smem_of(arch));
}

/// On this GPU, runs the kernel variant that the library would choose for `device`. Expects the result of the variant
/// that this GPU uses.
void expect_the_same(const AttentionCase& c, const cuda::DeviceInfo& device) {
  const cuda::Family& family = *cuda::find_family(kCompute);
  const Inputs in = make_inputs(c);
  const Outputs out = make_outputs(in), want = make_outputs(in);
  run_forward(in, want, kCompute);
  core::Problem p = core::make_forward_problem(in.q.view(), in.k.view(), in.v.view(), out.o.view(), &out.lse.view(),
                                               in.params(kCompute));
  p.q.device = {DeviceType::kCUDA, 0};
  const cuda::ContextGuard guard(0);
  const cuda::OwnStream stream;
  cuda::launch(family, p, family.choose(p, device), stream.get());
  cuda::synchronize(stream.get());
  expect_near("o", out.o.values(), want.o.values(), property_tolerance(c.dtype));
  expect_near("lse", out.lse.values(), want.lse.values(), property_tolerance(DType::kF32));
}

/// Runs the tiles of large problems on small problems, which have many remainders and masks. Large scores test the
/// tiles that cannot keep the previous row maximum. The problem with 520 keys is short and causal, which selects
/// separate tiles.
TEST_F(Sm80, TilesOfLargeProblemsComputeTheSame) {
  cuda::DeviceInfo device = cuda::device_info(0);
  device.num_multiprocessors = 1;
  for (const std::int64_t head_dim : {64, 128, 256}) {
    for (const Fill fill : {Fill::kNormal, Fill::kLarge, Fill::kOutlier}) {
      for (const std::int64_t seqlen_q : {1, 130, 515}) {
        for (const std::int64_t seqlen_k : {520, 840}) {
          for (const bool causal : {false, true}) {
            AttentionCase c = plain(DType::kBF16, 2, 1, seqlen_q, seqlen_k, head_dim, causal);
            c.fill = fill;
            SCOPED_TRACE(describe(c));
            expect_the_same(c, device);
          }
        }
      }
    }
  }
}

/// On this GPU, runs the tiles that the library chooses for GPUs with less shared memory per block.
TEST_F(Sm80, TilesOfSmallerGpusComputeTheSame) {
  for (const char* arch : kSmallerGpus) {
    cuda::DeviceInfo smaller = cuda::device_info(0);
    smaller.max_smem_per_block = std::min(smaller.max_smem_per_block, max_smem_of(arch));
    for (const AttentionCase& c : tile_cases()) {
      SCOPED_TRACE(std::string(arch) + " " + describe(c));
      expect_the_same(c, smaller);
    }
  }
}

/// The rows see more and more keys. Truncation in tensor cores must not accumulate with the number of keys.
TEST_F(Sm80, LongRowsKeepTheirAccuracy) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    for (const std::int64_t seqlen_k : {65536, 262144}) {
      AttentionCase c = plain(dtype, 1, 1, 3, seqlen_k, 64, false);
      check_backend(kCompute, make_inputs(c));
      c.fill = Fill::kNearUniform;
      check_backend(kCompute, make_inputs(c));
    }
  }
}

TEST_F(Sm80, AHundredRepeatsAreBitEqual) {
  for (const std::int64_t head_dim : {64, 128, 200}) {
    check_repeats(kCompute, plain(DType::kBF16, 6, 2, 1000, 1100, head_dim, true), 100);
    check_repeats(kCompute, with_all_options(plain(DType::kF16, 6, 2, 300, 1100, head_dim, false)), 100);
  }
}

TEST_F(Sm80, AFiniteBiasIsNotMinusInfinity) {
  for (const std::int64_t head_dim : {64, 128, 256}) check_finite_bias(kCompute, head_dim);
}

TEST_F(Sm80, NeighboursThatHoldNaNReachNothing) {
  for (const std::int64_t head_dim : {57, 128, 256}) {
    for (const bool packed : {false, true}) check_neighbours(kCompute, head_dim, packed);
  }
}

TEST_F(Sm80, LargeScoresStayFinite) {
  for (const std::int64_t head_dim : {64, 128, 256}) check_large_scores(kCompute, head_dim);
}

/// If a tensor has a single row, its row stride has no meaning and may even be unaligned.
TEST_F(Sm80, ASingleRowMayHaveAnyStride) {
  const Inputs in = make_inputs(plain(DType::kBF16, 3, 3, 1, 1, 64, false));
  const Outputs want = run(in, kCompute), out = make_outputs(in);
  Tensor q = on_gpu(in.q), k = on_gpu(in.k), v = on_gpu(in.v);
  for (Tensor* t : {&q, &k, &v}) t->stride[2] = 67;
  const cuda::ContextGuard guard(0);
  const cuda::OwnStream stream;
  const Tensor lse = on_gpu(out.lse);
  forward(q, k, v, on_gpu(out.o), &lse, in.params(kCompute), stream.get());
  cuda::synchronize(stream.get());
  expect_same_bits("o", out.o, want.o);
  expect_same_bits("lse", out.lse, want.lse);
}

}  // namespace
}  // namespace attend::test
