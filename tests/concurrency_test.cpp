// Tests that neither the number of threads nor concurrent calls from several threads change any bit of a result.
#include <gtest/gtest.h>

#include <thread>

#include "support/expect.hpp"

namespace attend::test {
namespace {

/// Resets the number of threads in its destructor.
class ThreadCount {
 public:
  ThreadCount() = default;
  ~ThreadCount() { set_cpu_threads(0); }
  ThreadCount(const ThreadCount&) = delete;
  ThreadCount& operator=(const ThreadCount&) = delete;
};

/// Returns cases with few and many heads, long and short rows, and packed sequences. For each case, the backend divides
/// the work among threads in a different way.
std::vector<AttentionCase> work_shapes(DType dtype) {
  const AttentionCase few_heads = {.dtype = dtype,
                                   .heads_q = 1,
                                   .heads_k = 1,
                                   .seqlen_q = 300,
                                   .seqlen_k = 411,
                                   .head_dim = 40,
                                   .head_dim_v = 24,
                                   .causal = true,
                                   .bias = Broadcast{},
                                   .dlse = true,
                                   .seed = 81};
  const AttentionCase many_heads = {.dtype = dtype,
                                    .batch = 3,
                                    .heads_q = 8,
                                    .heads_k = 4,
                                    .seqlen_q = 65,
                                    .seqlen_k = 130,
                                    .head_dim = 64,
                                    .head_dim_v = 64,
                                    .bias = Broadcast{false, false, false},
                                    .dropout_p = 0.1,
                                    .seed = 82};
  const AttentionCase one_group = {.dtype = dtype,
                                   .heads_q = 7,
                                   .heads_k = 1,
                                   .seqlen_q = 129,
                                   .seqlen_k = 257,
                                   .head_dim = 32,
                                   .head_dim_v = 32,
                                   .window_left = 60,
                                   .seed = 83};
  AttentionCase packed = {
      .dtype = dtype, .heads_q = 2, .heads_k = 1, .head_dim = 17, .head_dim_v = 17, .causal = true, .seed = 84};
  packed.varlen_q = {100, 1, 0, 64, 200};
  packed.varlen_k = {100, 300, 5, 64, 190};
  return {few_heads, many_heads, one_group, packed};
}

class Threads : public testing::TestWithParam<DType> {};

INSTANTIATE_TEST_SUITE_P(Cpu, Threads, testing::Values(DType::kF32, DType::kF16, DType::kBF16),
                         [](const auto& test) { return std::string(dtype_name(test.param)); });

TEST_P(Threads, AnyNumberGivesTheSameBits) {
  const ThreadCount restore;
  for (const AttentionCase& c : work_shapes(GetParam())) {
    SCOPED_TRACE(describe(c));
    const Inputs in = make_inputs(c);
    set_cpu_threads(1);
    ASSERT_EQ(cpu_threads(), 1);
    const Outputs want = run(in, "cpu");
    for (const int threads : {2, 3, 8}) {
      SCOPED_TRACE(threads);
      set_cpu_threads(threads);
      ASSERT_EQ(cpu_threads(), threads);
      expect_same_bits(run(in, "cpu"), want);
    }
  }
}

TEST_P(Threads, ConcurrentCallsDoNotMeet) {
  constexpr int kCallers = 8;
  constexpr int kRounds = 3;
  const std::vector<AttentionCase> cases = work_shapes(GetParam());
  std::vector<Inputs> inputs;
  std::vector<Outputs> want;
  for (const AttentionCase& c : cases) inputs.push_back(make_inputs(c));
  for (const Inputs& in : inputs) want.push_back(run(in, "cpu"));
  std::vector<Outputs> got(kCallers * kRounds);
  std::vector<std::thread> callers;
  for (int caller = 0; caller < kCallers; ++caller) {
    // All callers read the same inputs, and neighbouring callers run different shapes.
    callers.emplace_back([&, caller] {
      for (int round = 0; round < kRounds; ++round) {
        got[caller * kRounds + round] = run(inputs[(caller + round) % inputs.size()], "cpu");
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (int caller = 0; caller < kCallers; ++caller) {
    for (int round = 0; round < kRounds; ++round) {
      expect_same_bits(got[caller * kRounds + round], want[(caller + round) % inputs.size()]);
    }
  }
}

TEST(ThreadsFirstCall, MayComeFromAFreshThread) {
  const Inputs in = make_inputs(work_shapes(DType::kF32).front());
  Outputs first, second;
  std::thread([&] { first = run(in, "cpu"); }).join();
  std::thread([&] { second = run(in, "cpu"); }).join();
  expect_same_bits(first, second);
}

}  // namespace
}  // namespace attend::test
