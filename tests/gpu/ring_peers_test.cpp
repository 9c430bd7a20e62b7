// Tests rings in which each rank has a GPU. Ranks are threads of one process, with or without NCCL, or processes with
// NCCL. NCCL transfers data by copy engines or by NCCL's kernels.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>

#include "attend/ring_nccl.hpp"
#include "cuda/driver/device.hpp"
#include "gpu/gpu.hpp"
#include "gpu/gpu_ring.hpp"
#include "ring/transport/nccl.hpp"
#include "ring/transport/transport.hpp"

namespace attend::test {
namespace {

/// Assigns GPUs to ranks in a cycle. Every rank has a separate GPU if there are enough GPUs.
std::vector<int> gpus_of_ranks(int num_ranks) {
  std::vector<int> devices;
  for (int rank = 0; rank < num_ranks; ++rank) devices.push_back(rank % cuda::device_count());
  return devices;
}

/// Returns cases with blocks of megabytes, which are transferred while kernels run. The memory of the ring grows from
/// call to call. The results must have the same bits as on a ring whose ranks share one GPU. A copy that is too early
/// or too late would change them.
std::vector<RingCase> cases_of_long_blocks(int num_ranks) {
  std::vector<RingCase> all;
  for (const std::int64_t seqlen : {2048, 8192, 4096}) {
    for (const RingAlgorithm algorithm : kRingAlgorithms) {
      if (algorithm == RingAlgorithm::kTwoLevel && num_ranks < 4) continue;
      RingCase c = long_ring_case(DType::kBF16, Sharding::kZigzag, num_ranks);
      c.algorithm = algorithm;
      c.problem.heads_q = c.problem.heads_k = 12;
      c.problem.seqlen_q = c.problem.seqlen_k = seqlen;
      c.problem.deterministic = true;
      all.push_back(c);
    }
  }
  return all;
}

void expect_same_bits(const Outputs& got, const Outputs& want, const RingCase& c) {
  for (TensorBuffer Outputs::*tensor : {&Outputs::o, &Outputs::lse, &Outputs::dq, &Outputs::dk, &Outputs::dv}) {
    EXPECT_EQ((got.*tensor).bytes(), (want.*tensor).bytes()) << describe(c);
  }
}

void expect_bits_of_one_gpu(const std::vector<RingContext>& ranks, int num_ranks) {
  for (const RingCase& c : cases_of_long_blocks(num_ranks)) {
    const Inputs in = make_inputs(c.problem);
    const Outputs got = run_on_gpus(ranks, gpus_of_ranks(num_ranks), in, c);
    ASSERT_FALSE(testing::Test::HasFailure()) << "on GPUs of their own: " << describe(c);
    expect_same_bits(got, run_on_gpu(in, c), c);
    // Stops at the first failure, because the process is unreliable after a fault.
    ASSERT_FALSE(testing::Test::HasFailure()) << describe(c);
  }
}

/// Tests of rings whose ranks are threads. Each rank has a GPU.
class GpuRingOfSeveral : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (!IsSkipped() && cuda::device_count() < 2) GTEST_SKIP() << "one GPU, wanted one for each of two ranks";
  }
};

TEST_F(GpuRingOfSeveral, MovesLongBlocksWhileItComputes) {
  const int num_ranks = std::min(4, cuda::device_count());
  expect_bits_of_one_gpu(make_thread_ring(num_ranks), num_ranks);
}

/// Tests of rings over NCCL. Each rank has a separate GPU.
class NcclRing : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    if (cuda::device_count() < 2) GTEST_SKIP() << "one GPU, NCCL wants one for each of two ranks";
    try {
      (void)make_nccl_id();
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
  }

  static std::vector<RingContext> make_ring(int num_ranks = 2, const NcclRingOptions& options = kOptions) {
    const NcclId id = make_nccl_id();
    std::vector<std::optional<RingContext>> made(static_cast<std::size_t>(num_ranks));
    const std::vector<std::string> thrown = on_threads(num_ranks, [&](int rank) {
      made[static_cast<std::size_t>(rank)] = make_nccl_ring(id, rank, num_ranks, rank, options);
    });
    for (const std::string& text : thrown) EXPECT_EQ(text, "");
    std::vector<RingContext> ranks;
    for (const std::optional<RingContext>& rank : made) ranks.push_back(*rank);
    return ranks;
  }

  /// The first message of a communicator sets up its connections. The setup takes seconds if other processes also use
  /// the host.
  static constexpr NcclRingOptions kOptions = {.timeout = std::chrono::minutes(1)};
};

TEST_F(NcclRing, MovesLongBlocksWhileItComputes) {
  const int num_ranks = std::min(4, cuda::device_count());
  for (const bool copy_engines : {true, false}) {
    expect_bits_of_one_gpu(make_ring(num_ranks, {.timeout = std::chrono::minutes(1), .copy_engines = copy_engines}),
                           num_ranks);
  }
}

/// The transport of data between ranks.
enum class Way { kThreads, kNccl, kNcclWithoutCopyEngines };

struct WayCase {
  Way way;
  RingCase ring;
};

void PrintTo(const WayCase& c, std::ostream* out) {
  *out << static_cast<int>(c.way) << " " << describe(c.ring);
}

/// Returns the complete covering array for ranks that are threads. Several ranks may share a GPU.
std::vector<WayCase> cases_of_threads() {
  std::vector<WayCase> all;
  for (const RingCase& c : gpu_ring_cases()) {
    if (c.num_ranks > 1) all.push_back({Way::kThreads, c});
  }
  return all;
}

/// Returns every fourth case of the array. The thread tests run all cases, and only the transport differs here.
std::vector<WayCase> cases_over_nccl(int num_ranks) {
  std::vector<WayCase> all;
  for (const Way way : {Way::kNccl, Way::kNcclWithoutCopyEngines}) {
    int number = 0;
    for (const RingCase& c : gpu_ring_cases()) {
      if (c.num_ranks == num_ranks && number++ % 4 == 0) all.push_back({way, c});
    }
  }
  return all;
}

class EveryWayOfMessages : public NcclRing, public testing::WithParamInterface<WayCase> {
 protected:
  void SetUp() override {
    if (GetParam().way != Way::kThreads) return NcclRing::SetUp();
    GpuTest::SetUp();
    if (!IsSkipped() && cuda::device_count() < 2) GTEST_SKIP() << "one GPU, wanted two";
  }

  static void TearDownTestSuite() { rings().clear(); }

  /// Returns the ring that all cases share, because connecting the ranks takes longer than running a case.
  static const std::vector<RingContext>& ring_of(Way way, int num_ranks) {
    std::vector<RingContext>& ring = rings()[{way, num_ranks}];
    if (!ring.empty()) return ring;
    if (way == Way::kThreads) return ring = make_thread_ring(num_ranks);
    return ring = make_ring(num_ranks, {.timeout = std::chrono::minutes(1), .copy_engines = way == Way::kNccl});
  }

 private:
  static std::map<std::pair<Way, int>, std::vector<RingContext>>& rings() {
    static std::map<std::pair<Way, int>, std::vector<RingContext>> all;
    return all;
  }
};

TEST_P(EveryWayOfMessages, StaysInBudget) {
  const auto& [way, c] = GetParam();
  if (way != Way::kThreads && c.num_ranks > cuda::device_count()) {
    GTEST_SKIP() << cuda::device_count() << " GPUs, wanted " << c.num_ranks;
  }
  const Inputs in = make_inputs(c.problem);
  check_ring(in, run_on_gpus(ring_of(way, c.num_ranks), gpus_of_ranks(c.num_ranks), in, c), c);
}

INSTANTIATE_TEST_SUITE_P(Threads, EveryWayOfMessages, testing::ValuesIn(cases_of_threads()), kIndexName);
INSTANTIATE_TEST_SUITE_P(TwoGpus, EveryWayOfMessages, testing::ValuesIn(cases_over_nccl(2)), kIndexName);
INSTANTIATE_TEST_SUITE_P(ThreeGpus, EveryWayOfMessages, testing::ValuesIn(cases_over_nccl(3)), kIndexName);
INSTANTIATE_TEST_SUITE_P(FourGpus, EveryWayOfMessages, testing::ValuesIn(cases_over_nccl(4)), kIndexName);

/// Returns the error messages of two ranks. The first rank makes the call `first`, and the second rank makes the call
/// `second`.
std::vector<std::string> thrown_where_ranks_differ(const std::vector<RingContext>& ranks,
                                                   const std::vector<RankTensors>& tensors, const RingCase& first,
                                                   const RingCase& second) {
  return on_threads(2, [&](int rank) {
    const auto at = static_cast<std::size_t>(rank);
    run_rank(ranks[at], tensors[at], rank == 0 ? first : second, rank, "auto");
  });
}

/// Ranks with different algorithms must get an error. Otherwise they would wait for each other's messages.
TEST_F(NcclRing, TellsRanksOfDifferentAlgorithms) {
  const RingCase c = long_ring_case(DType::kBF16, Sharding::kZigzag, 2);
  RingCase other = c;
  other.algorithm = RingAlgorithm::kAllGather;
  for (const std::string& text : thrown_where_ranks_differ(make_ring(), cut(make_inputs(c.problem), c), c, other)) {
    EXPECT_EQ(text, "algorithm: all_gather on rank 1, allowed exchange as on rank 0");
  }
}

TEST_F(NcclRing, TakesACommunicatorOfTheCallers) {
  const NcclId id = make_nccl_id();
  const RingCase c = long_ring_case(DType::kBF16, Sharding::kZigzag, 2);
  const Inputs in = make_inputs(c.problem);
  const std::vector<RankTensors> tensors = cut(in, c);
  const std::vector<std::string> thrown = on_threads(2, [&](int rank) {
    const cuda::ContextGuard guard(rank);
    ring::NcclComm comm = nullptr;
    ring::check_nccl(ring::nccl().comm_init_rank(&comm, 2, id, rank), "ncclCommInitRank");
    run_rank(make_nccl_ring(comm), tensors[static_cast<std::size_t>(rank)], c, rank, "auto");
    // Succeeds, because the ring context must not destroy the caller's communicator.
    ring::check_nccl(ring::nccl().comm_destroy(comm), "ncclCommDestroy");
  });
  for (const std::string& text : thrown) EXPECT_EQ(text, "");
  check_ring(in, put_together(tensors, in, c), c);
}

TEST_F(NcclRing, TellsRanksThatDiffer) {
  const std::vector<RingContext> ranks = make_ring();
  const RingCase c = long_ring_case(DType::kBF16, Sharding::kZigzag, 2);
  const Inputs in = make_inputs(c.problem);
  RingCase other = c;
  other.sharding = Sharding::kStriped;
  for (const std::string& text : thrown_where_ranks_differ(ranks, cut(in, c), c, other)) {
    EXPECT_EQ(text, "sharding: striped on rank 1, allowed zigzag as on rank 0");
  }
  check_ring(in, run_on_gpus(ranks, {0, 1}, in, c), c);  // the ring must work again after the error
}

/// Runs alone in a separate process, because a fault here may hang. make_ring() has already set up the connections.
/// Otherwise NCCL would wait forever for a missing rank.
class LastNcclRing : public NcclRing {};

TEST_F(LastNcclRing, DoesNotWaitForEverForARankThatIsGone) {
  const std::vector<RingContext> ranks = make_ring(2, {.timeout = std::chrono::milliseconds(3000)});
  const RingCase c = long_ring_case(DType::kBF16, Sharding::kZigzag, 2);
  const Inputs in = make_inputs(c.problem);
  const std::vector<RankTensors> tensors = cut(in, c);
  const std::vector<std::string> thrown =
      on_threads(1, [&](int rank) { run_rank(ranks[0], tensors[0], c, rank, "auto"); });
  EXPECT_EQ(thrown[0], "ring: rank 0 has waited 3000 ms for the others to begin the call");
}

/// Tests a missing rank between two calls, when the ranks of one machine wait in host memory.
TEST_F(LastNcclRing, SaysWhoHasNotComeToALaterCall) {
  const std::vector<RingContext> ranks = make_ring(2, {.timeout = std::chrono::milliseconds(20000)});
  const RingCase c = long_ring_case(DType::kBF16, Sharding::kZigzag, 2);
  const Inputs in = make_inputs(c.problem);
  check_ring(in, run_on_gpus(ranks, gpus_of_ranks(2), in, c), c);
  const std::vector<RankTensors> tensors = cut(in, c);
  const auto start = std::chrono::steady_clock::now();
  const std::vector<std::string> thrown = on_threads(2, [&](int rank) {
    if (rank == 0) return run_rank(ranks[0], tensors[0], c, rank, "auto");
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    ranks[1].transport().fail("out of luck");
  });
  EXPECT_EQ(thrown[0], "ring: rank 1 failed: out of luck");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

constexpr const char* kRankVariable = "ATTEND_TEST_RANK";
constexpr const char* kIdFileVariable = "ATTEND_TEST_ID_FILE";

/// RingProcesses starts this test once for each rank. An ordinary run skips it.
TEST_F(NcclRing, DISABLED_IsARankOfRingProcesses) {
  const char* const rank_text = std::getenv(kRankVariable);
  ASSERT_NE(rank_text, nullptr);
  const int rank = std::atoi(rank_text), num_ranks = std::min(4, cuda::device_count());
  const std::filesystem::path file = std::getenv(kIdFileVariable);
  NcclId id = {};
  if (rank == 0) {
    id = make_nccl_id();
    std::ofstream(file.string() + ".part", std::ios::binary).write(reinterpret_cast<const char*>(&id), sizeof(id));
    std::filesystem::rename(file.string() + ".part", file);
  }
  while (!std::filesystem::exists(file)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::ifstream(file, std::ios::binary).read(reinterpret_cast<char*>(&id), sizeof(id));
  const RingContext ring = make_nccl_ring(id, rank, num_ranks, rank, kOptions);
  for (const RingCase& c : cases_of_long_blocks(num_ranks)) {
    const Inputs in = make_inputs(c.problem);
    const std::vector<RankTensors> got = cut(in, c), want = cut(in, c);
    run_rank(ring, got[static_cast<std::size_t>(rank)], c, rank, "auto");
    const std::vector<RingContext> threads = make_thread_ring(num_ranks);
    const std::vector<std::string> thrown = on_threads(num_ranks, [&](int thread) {
      const auto at = static_cast<std::size_t>(thread);
      run_rank(threads[at], want[at], c, rank, "auto");
    });
    for (const std::string& text : thrown) EXPECT_EQ(text, "");
    const auto at = static_cast<std::size_t>(rank);
    expect_same_bits(got[at].out, want[at].out, c);
  }
  std::ofstream(file.string() + rank_text) << "compared";  // proves that the process ran the test
}

/// Each rank is a process with a GPU.
TEST(RingProcesses, MoveLongBlocksWhileTheyCompute) {
  const std::filesystem::path file = std::filesystem::path(testing::TempDir()) / fmt::format("ring_{}", ::getpid());
  const int num_ranks = std::min(4, missing_gpu().empty() ? cuda::device_count() : 0);
  if (num_ranks < 2) GTEST_SKIP() << "fewer than two GPUs";
  std::vector<int> statuses(static_cast<std::size_t>(num_ranks), -1);
  (void)on_threads(num_ranks, [&](int rank) {
    const std::string program = std::filesystem::read_symlink("/proc/self/exe");
    // This process may be one of several that share the tests, and it may write a report. The child processes must do
    // neither, so these variables are removed.
    const std::string command = fmt::format(
        "env -u GTEST_TOTAL_SHARDS -u GTEST_SHARD_INDEX -u ATTEND_GPU_REPORT {}={} {}='{}' '{}' "
        "--gtest_also_run_disabled_tests --gtest_filter=NcclRing.DISABLED_IsARankOfRingProcesses",
        kRankVariable, rank, kIdFileVariable, file.string(), program);
    statuses[static_cast<std::size_t>(rank)] = std::system(command.c_str());
  });
  std::filesystem::remove(file);
  for (const int status : statuses) EXPECT_EQ(status, 0);
  for (int rank = 0; rank < num_ranks; ++rank) {
    EXPECT_TRUE(std::filesystem::remove(file.string() + std::to_string(rank))) << "rank " << rank << " ran no test";
  }
}

}  // namespace
}  // namespace attend::test
