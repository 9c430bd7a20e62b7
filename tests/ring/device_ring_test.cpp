// Tests the ring's passes with GPU tensors on a machine without a GPU. A fake driver runs simt's kernels on the host as
// soon as they are submitted to a stream (tests/cuda/fake_gpu.cpp). tests/gpu/ring_test.cpp tests that work on several
// streams is ordered correctly.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "attend/ring_nccl.hpp"
#include "ring/ring_run.hpp"
#include "support/compare.hpp"
#include "support/covering_array.hpp"

namespace attend::test {
namespace {

constexpr RankPlace kGpu = {{DeviceType::kCUDA, 0}, nullptr};

/// Must run before the first use of the driver, because the library keeps the driver that it has loaded.
const bool kHasFakes = [] {
  ::setenv("ATTEND_LIBCUDA_PATH", ATTEND_FAKE_GPU, 1);
  ::setenv("ATTEND_NVRTC_PATH", ATTEND_FAKE_GPU, 1);
  ::setenv("ATTEND_NCCL_PATH", "/nowhere/libnccl.so.2", 1);
  ::setenv("ATTEND_CACHE_DIR", (testing::TempDir() + "/attend_device_ring").c_str(), 1);
  return true;
}();

std::vector<std::string> run_ranks(const std::vector<RingContext>& ranks, const std::vector<RankTensors>& tensors,
                                   const RingCase& c) {
  return on_threads(c.num_ranks, [&](int rank) {
    const auto at = static_cast<std::size_t>(rank);
    // all_to_all calls the kernels for a single device. The fake driver only supports those of simt.
    const char* const compute = c.algorithm == RingAlgorithm::kAllToAll ? "simt" : "auto";
    ring_forward_of(ranks[at], tensors[at], c, compute, kGpu);
    ring_backward_of(ranks[at], tensors[at], c, compute, kGpu);
  });
}

struct Pair {
  std::int64_t a, b;
};
struct Mask {
  bool causal;
  std::int64_t left, right;
};
constexpr Pair kLengths[] = {{64, 64}, {0, 5}, {5, 0}, {3, 2}, {41, 70}, {70, 41}};
constexpr Pair kHeads[] = {{1, 1}, {4, 2}, {3, 1}};
constexpr Pair kHeadDims[] = {{8, 8}, {17, 20}};
constexpr Mask kMasks[] = {{false, -1, -1}, {true, -1, -1}, {false, 9, -1},
                           {false, -1, 4},  {true, 20, -1}, {false, 6, 3}};
const std::vector<int> kNumValues = {
    3, 4, std::size(kLengths), std::size(kHeads), std::size(kHeadDims), std::size(kMasks), 2, 2, 2, 2, 2, 2};

RingCase to_case(const Choice& v, RingAlgorithm algorithm, std::uint64_t seed) {
  const auto at = [&](std::size_t factor) { return static_cast<std::size_t>(v[factor]); };
  AttentionCase c = {.batch = 2,
                     .heads_q = kHeads[at(3)].a,
                     .heads_k = kHeads[at(3)].b,
                     .seqlen_q = kLengths[at(2)].a,
                     .seqlen_k = kLengths[at(2)].b,
                     .head_dim = kHeadDims[at(4)].a,
                     .head_dim_v = kHeadDims[at(4)].b,
                     .causal = kMasks[at(5)].causal,
                     .window_left = kMasks[at(5)].left,
                     .window_right = kMasks[at(5)].right};
  c.softcap = v[6] == 0 ? 0 : 5;
  c.alibi = v[7] == 1;
  c.dropout_p = v[8] == 0 ? 0 : 0.3;
  c.dlse = v[9] == 1;
  c.layout = v[10] == 0 ? CaseLayout::kBSHD : CaseLayout::kPadded;
  if (v[11] == 1) {
    c.varlen_q = {c.seqlen_q, 0, c.seqlen_q / 2, 3};
    c.varlen_k = {c.seqlen_k, 4, 0, c.seqlen_k / 3 + 1};
  }
  c.seed = seed;
  // This algorithm divides the heads, so every rank gets the same number of heads.
  if (algorithm == RingAlgorithm::kAllToAll) {
    c.heads_k = v[1] + 1;
    c.heads_q = (v[3] == 0 ? 1 : 2) * c.heads_k;
  }
  int num_ranks = v[1] + 1;
  if (algorithm == RingAlgorithm::kTwoLevel) {
    num_ranks = v[1] % 2 == 0 ? 4 : 6;
    c.heads_k = num_ranks / 2;
    c.heads_q = (v[3] == 0 ? 1 : 2) * c.heads_k;
  }
  return {c, static_cast<Sharding>(v[0]), num_ranks, algorithm};
}

class DeviceRingPair : public testing::TestWithParam<RingCase> {};

TEST_P(DeviceRingPair, StaysInBudget) {
  ASSERT_TRUE(kHasFakes);
  const RingCase& c = GetParam();
  const Inputs in = make_inputs(c.problem);
  const std::vector<RankTensors> tensors = cut(in, c);
  for (const std::string& text : run_ranks(make_thread_ring(c.num_ranks), tensors, c)) ASSERT_EQ(text, "");
  std::string line = describe(c);
  for (const TensorCheck& check : compare_outputs(in, put_together(tensors, in, c))) {
    char text[64];
    std::snprintf(text, sizeof(text), "  %s %.2e of %.2e", check.name.c_str(), check.comparison.block_error,
                  check.comparison.budget);
    line += text;
  }
  std::puts(line.c_str());
}

std::vector<RingCase> cases() {
  std::vector<RingCase> all;
  for (const Choice& v : covering_array(
           kNumValues, [](int, int, int, int) { return true; }, 7)) {
    for (const RingAlgorithm algorithm :
         {RingAlgorithm::kExchange, RingAlgorithm::kAllGather, RingAlgorithm::kAllToAll, RingAlgorithm::kTwoLevel}) {
      all.push_back(to_case(v, algorithm, 300 + all.size()));
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(CoveringArray, DeviceRingPair, testing::ValuesIn(cases()),
                         [](const auto& test) { return std::to_string(test.index); });

TEST(DeviceRing, RefusesTheSameOnEveryRank) {
  const RingCase c = {{.seqlen_q = 12, .seqlen_k = 12, .bias = Broadcast{true, true, true}}, Sharding::kStriped, 3};
  const Inputs in = make_inputs(c.problem);
  for (const std::string& text : run_ranks(make_thread_ring(3), cut(in, c), c)) {
    EXPECT_EQ(text, "bias: given with striped sharding on a GPU, allowed none (rank 0)");
  }
  RingCase heads = {{.heads_q = 4, .heads_k = 2, .seqlen_q = 12, .seqlen_k = 12}, Sharding::kZigzag, 4};
  heads.algorithm = RingAlgorithm::kAllToAll;
  const auto line = [&] {
    const Inputs of_heads = make_inputs(heads.problem);
    const auto thrown = run_ranks(make_thread_ring(heads.num_ranks), cut(of_heads, heads), heads);
    for (const std::string& text : thrown) EXPECT_EQ(text, thrown[0]);
    return thrown[0];
  };
  EXPECT_EQ(line(), "k: 2 heads, allowed a multiple of the 4 ranks with algorithm all_to_all (rank 0)");
  heads.num_ranks = 2;
  heads.problem.mask = Broadcast{true, true, true};
  EXPECT_EQ(line(), "mask: given with algorithm all_to_all on a GPU, allowed none (rank 0)");
  const RingCase wide = {{.seqlen_q = 12, .seqlen_k = 12, .head_dim = 16, .head_dim_v = 300}, Sharding::kZigzag, 2};
  const Inputs wide_in = make_inputs(wide.problem);
  for (const std::string& text : run_ranks(make_thread_ring(2), cut(wide_in, wide), wide)) {
    EXPECT_EQ(text, "v: head_dim 300, compute 'simt' allows 1 to 256 in a ring (rank 0)");
  }
}

TEST(DeviceRing, KeepsItsMemoryFromCallToCall) {
  const RingCase c = {{.seqlen_q = 40, .seqlen_k = 40, .causal = true}, Sharding::kZigzag, 2};
  const std::vector<RingContext> ranks = make_thread_ring(2);
  for (const std::int64_t seqlen : {40, 20, 80}) {  // each call needs less memory or more memory than the previous one
    RingCase next = c;
    next.algorithm = seqlen == 20 ? RingAlgorithm::kAllGather : RingAlgorithm::kAllToAll;
    next.problem.heads_q = next.problem.heads_k = 2;
    next.problem.seqlen_q = next.problem.seqlen_k = seqlen;
    const Inputs in = make_inputs(next.problem);
    const std::vector<RankTensors> tensors = cut(in, next);
    for (const std::string& text : run_ranks(ranks, tensors, next)) ASSERT_EQ(text, "");
    (void)compare_outputs(in, put_together(tensors, in, next));
  }
}

TEST(NcclRing, WithoutALibraryIsRefusedInOneLine) {
  try {
    (void)make_nccl_id();
    FAIL() << "a library from nowhere";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kMissingHardware);
    EXPECT_THAT(error.what(), testing::HasSubstr("libnccl (NVIDIA's collective communication): not found; searched "
                                                 "/nowhere/libnccl.so.2; install NCCL"));
  }
  EXPECT_THROW((void)make_nccl_ring(nullptr), Error);
  EXPECT_THROW((void)make_nccl_ring({}, 2, 2, 0), Error);
}

}  // namespace
}  // namespace attend::test
