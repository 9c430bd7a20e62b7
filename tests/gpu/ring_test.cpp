// Compares the results of rings with float64. Each rank is a thread, and all ranks share GPU 0. A pairwise covering
// array combines shardings, masks, options and numbers of ranks. The error budgets are those of a single device.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>

#include "cuda/driver/memory_pool.hpp"
#include "gpu/forward_checks.hpp"
#include "gpu/gpu.hpp"
#include "gpu/gpu_ring.hpp"
#include "support/expect.hpp"

namespace attend::test {
namespace {

class GpuRing : public GpuTest {};
class EveryGpuRingPair : public GpuTest, public testing::WithParamInterface<RingCase> {};

TEST_P(EveryGpuRingPair, StaysInBudget) {
  const RingCase& c = GetParam();
  const Inputs in = make_inputs(c.problem);
  check_ring(in, run_on_gpu(in, c), c);
}

INSTANTIATE_TEST_SUITE_P(CoveringArray, EveryGpuRingPair, testing::ValuesIn(gpu_ring_cases()),
                         [](const auto& test) { return std::to_string(test.index); });

/// Returns one case for each algorithm, with a bias or packed sequences. The sanitizers run these cases to check the
/// kernels in kernels/ring/.
std::vector<RingCase> slice_cases() {
  AttentionCase c = plain(DType::kBF16, 2, 2, 130, 130, 64, true);
  c.seed = 51;
  AttentionCase packed = c, single = c;
  packed.varlen_q = packed.varlen_k = {70, 3, 90};
  single.dtype = DType::kF32;
  single.bias = Broadcast{true, false, true};
  return {{single, Sharding::kContiguous, 2, RingAlgorithm::kExchange},
          {packed, Sharding::kZigzag, 2, RingAlgorithm::kAllGather},
          {c, Sharding::kStriped, 2, RingAlgorithm::kAllToAll}};
}

INSTANTIATE_TEST_SUITE_P(Slice, EveryGpuRingPair, testing::ValuesIn(slice_cases()), kIndexName);

TEST(GpuRingCases, MissNoCompatiblePair) {
  EXPECT_EQ(uncovered_gpu_ring_pairs(), 0);
}

struct Errors {
  double mean_square, largest;
};

Errors errors_of(const std::vector<double>& result, const std::vector<double>& truth) {
  Errors errors = {};
  for (std::size_t i = 0; i < truth.size(); ++i) {
    const double error = std::abs(result[i] - truth[i]);
    errors.mean_square += error * error / static_cast<double>(truth.size());
    errors.largest = std::max(errors.largest, error);
  }
  return errors;
}

/// Partial results stay in float32. Only the final result is rounded to 16 bits. The test compares root mean square
/// errors, because the largest error depends on each rounding inside the kernels, and their tiles differ from those of
/// a single device.
TEST_F(GpuRing, ErrorDoesNotGrowWithRanks) {
  const RingCase eight = long_ring_case(DType::kBF16, Sharding::kZigzag, 8);
  const Inputs in = make_inputs(eight.problem);
  const Outputs truth = run(as_f64(in), "reference");
  // sm90_backward and sm80_backward run a forward too.
  const Outputs alone = run(in, supports("sm90_forward", in) ? "sm90_backward" : "sm80_backward");
  const Outputs ring = run_on_gpu(in, eight);
  RingCase gathered = eight;
  gathered.algorithm = RingAlgorithm::kAllGather;
  const Outputs ring_of_gathered = run_on_gpu(in, gathered);
  for (TensorBuffer Outputs::*tensor : {&Outputs::o, &Outputs::dq, &Outputs::dk, &Outputs::dv}) {
    const std::vector<double> want = (truth.*tensor).values();
    const Errors of_one = errors_of((alone.*tensor).values(), want), of_ring = errors_of((ring.*tensor).values(), want);
    std::printf("one GPU: rms %.3e max %.3e, a ring of 8: %.3e %.3e\n", std::sqrt(of_one.mean_square), of_one.largest,
                std::sqrt(of_ring.mean_square), of_ring.largest);
    EXPECT_LE(std::sqrt(of_ring.mean_square), 1.05 * std::sqrt(of_one.mean_square));
    const Errors of_gathered = errors_of((ring_of_gathered.*tensor).values(), want);
    EXPECT_LE(std::sqrt(of_gathered.mean_square), 1.05 * std::sqrt(of_one.mean_square));
  }
}

TEST_F(GpuRing, IsRepeatableWhereItIsAskedToBe) {
  RingCase c = long_ring_case(DType::kF16, Sharding::kZigzag, 4);
  c.problem.deterministic = true;
  c.problem.heads_q = c.problem.heads_k = 4;
  const Inputs in = make_inputs(c.problem);
  Outputs first;
  for (std::size_t round = 0; round < std::size(kRingAlgorithms) * 5; ++round) {
    c.algorithm = kRingAlgorithms[round / 5];
    Outputs again = run_on_gpu(in, c);
    if (round % 5 == 0) {
      first = std::move(again);
      continue;
    }
    EXPECT_EQ(again.o.bytes(), first.o.bytes());
    EXPECT_EQ(again.lse.bytes(), first.lse.bytes());
    EXPECT_EQ(again.dq.bytes(), first.dq.bytes());
    EXPECT_EQ(again.dk.bytes(), first.dk.bytes());
    EXPECT_EQ(again.dv.bytes(), first.dv.bytes());
  }
}

/// Makes hundreds of calls on one ring. The lengths alternate, and nothing outside the calls synchronizes. Each call
/// must give the bits of the first one and reuse its memory.
TEST_F(GpuRing, HundredsOfCallsOnOneRingGiveTheSameBitsInTheSameMemory) {
  constexpr int kRounds = 60;  // each round runs all three lengths
  std::vector<RingCase> cases;
  for (const std::int64_t seqlen : {256, 1024, 128}) {
    cases.push_back(long_ring_case(DType::kBF16, Sharding::kZigzag, 2));
    cases.back().problem.seqlen_q = cases.back().problem.seqlen_k = seqlen;
    cases.back().problem.deterministic = true;
    cases.back().algorithm = kRingAlgorithms[cases.size() - 1];
    cases.back().problem.heads_k = 2;
  }
  const std::vector<RingContext> ranks = make_thread_ring(2);
  std::vector<Inputs> ins;
  std::vector<std::vector<RankTensors>> tensors;
  std::vector<Outputs> first;
  for (const RingCase& c : cases) {
    ins.push_back(make_inputs(c.problem));
    tensors.push_back(cut(ins.back(), c));
  }
  const auto call_all = [&](int rounds) {
    return on_threads(2, [&](int rank) {
      const auto at = static_cast<std::size_t>(rank);
      for (int round = 0; round < rounds; ++round) {
        for (std::size_t n = 0; n < cases.size(); ++n) run_rank(ranks[at], tensors[n][at], cases[n], 0, "auto");
      }
    });
  };
  for (const std::string& text : call_all(1)) ASSERT_EQ(text, "");
  for (std::size_t n = 0; n < cases.size(); ++n) {
    first.push_back(put_together(tensors[n], ins[n], cases[n]));
    check_ring(ins[n], first[n], cases[n]);
  }
  const std::uint64_t used = cuda::memory_pool_usage(0).used;
  for (const std::string& text : call_all(kRounds)) ASSERT_EQ(text, "");
  EXPECT_EQ(cuda::memory_pool_usage(0).used, used) << "bytes of the pool that calls keep";
  for (std::size_t n = 0; n < cases.size(); ++n) {
    expect_same_bits(put_together(tensors[n], ins[n], cases[n]), first[n]);
  }
}

/// The ring must drop the same entries as a single device. v is the identity matrix, so o shows the kept entries.
TEST_F(GpuRing, DropsTheVeryEntriesOfOneDevice) {
  for (const Sharding sharding : {Sharding::kContiguous, Sharding::kZigzag, Sharding::kStriped}) {
    for (const std::int64_t seqlen : {64, 61}) {
      RingCase c = {{.dtype = DType::kBF16,
                     .batch = 2,
                     .heads_q = 4,
                     .heads_k = 4,
                     .seqlen_q = seqlen,
                     .seqlen_k = seqlen,
                     .head_dim = 64,
                     .head_dim_v = 64,
                     .dropout_p = 0.5,
                     .seed = 11},
                    sharding,
                    4};
      const Inputs in = make_inputs(c.problem);
      in.v.generate([](auto, auto, std::int64_t row, std::int64_t col) { return row == col ? 1.0 : 0.0; });
      const std::vector<double> want = run(in, "auto").o.values();
      for (const RingAlgorithm algorithm : kRingAlgorithms) {
        c.algorithm = algorithm;
        const std::vector<double> got = run_on_gpu(in, c).o.values();
        for (std::size_t i = 0; i < want.size(); ++i) ASSERT_EQ(got[i] == 0, want[i] == 0) << i << " " << describe(c);
      }
    }
  }
}

TEST_F(GpuRing, RefusesOnEveryRankWhatOneRankLacks) {
  RingCase c = long_ring_case(DType::kBF16, Sharding::kStriped, 3);
  c.problem.seqlen_q = c.problem.seqlen_k = 64;
  c.problem.bias = Broadcast{true, true, true};
  const Inputs in = make_inputs(c.problem);
  const std::vector<RankTensors> tensors = cut(in, c);
  const std::vector<RingContext> ranks = make_thread_ring(3);
  const std::vector<std::string> thrown = on_threads(3, [&](int rank) {
    const auto at = static_cast<std::size_t>(rank);
    run_rank(ranks[at], tensors[at], c, 0, "auto");
  });
  for (const std::string& text : thrown) {
    EXPECT_EQ(text, "bias: given with striped sharding on a GPU, allowed none (rank 0)");
  }
}

}  // namespace
}  // namespace attend::test
