// Rings of GPU ranks against float64: shardings, masks, options and numbers of ranks in a pairwise covering array, with
// the budgets of one device. Ranks that are threads share GPU 0; NCCL wants a GPU for each.
#include "attend/ring.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <thread>

#include "attend/ring_nccl.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/driver/stream.hpp"
#include "gpu/gpu.hpp"
#include "ring/nccl.hpp"
#include "ring/ring_run.hpp"
#include "ring/transport.hpp"
#include "support/compare.hpp"
#include "support/covering_array.hpp"

namespace attend::test {
namespace {

enum Factor { kDtype, kShardingKind, kRanks, kLengths, kHeads, kHeadDims, kMask, kOptions, kDlse, kBatching, kLayout };

struct Pair {
  std::int64_t a, b;
};
struct Mask {
  bool causal;
  std::int64_t left, right;
};
enum Options { kPlain, kAlibi, kDropout, kSoftcap, kAlibiDropout, kBias, kBoolMask, kNumOptions };
constexpr DType kDtypes[] = {DType::kBF16, DType::kF16, DType::kF32};
constexpr Sharding kShardings[] = {Sharding::kContiguous, Sharding::kZigzag, Sharding::kStriped};
constexpr int kNumRanks[] = {2, 1, 3, 4};
constexpr Pair kLengthPairs[] = {{512, 512}, {200, 430}, {300, 130}, {5, 3}, {576, 576}, {0, 40}};
constexpr Pair kHeadPairs[] = {{2, 2}, {4, 1}, {6, 2}};
constexpr Pair kHeadDimPairs[] = {{64, 64}, {128, 128}};
constexpr Mask kMasks[] = {{true, -1, -1}, {false, -1, -1}, {true, 100, -1}, {false, 60, 20}};
const std::vector<int> kNumValues = {std::size(kDtypes),
                                     std::size(kShardings),
                                     std::size(kNumRanks),
                                     std::size(kLengthPairs),
                                     std::size(kHeadPairs),
                                     std::size(kHeadDimPairs),
                                     std::size(kMasks),
                                     kNumOptions,
                                     2,
                                     2,
                                     2};

/// Bias and mask want rows that are neighbours, and no packed sequences; far from every row ALiBi takes p below the
/// smallest normal number, where no error is bounded.
bool is_compatible(int f, int a, int g, int b) {
  const auto reads_scores = [](int options) { return options == kBias || options == kBoolMask; };
  if (f == kShardingKind && g == kOptions) return kShardings[a] != Sharding::kStriped || !reads_scores(b);
  if (f == kOptions && g == kBatching) return b == 0 || !reads_scores(a);
  if (f == kLengths && g == kOptions)
    return kLengthPairs[a].a == kLengthPairs[a].b || (b != kAlibi && b != kAlibiDropout);
  return true;
}

constexpr RingAlgorithm kAlgorithms[] = {RingAlgorithm::kExchange, RingAlgorithm::kAllGather, RingAlgorithm::kAllToAll};

RingCase to_case(const Choice& v, RingAlgorithm algorithm, std::uint64_t seed) {
  const auto at = [&](Factor f) { return static_cast<std::size_t>(v[f]); };
  const Mask& mask = kMasks[at(kMask)];
  AttentionCase c = {.dtype = kDtypes[at(kDtype)],
                     .batch = 2,
                     .heads_q = kHeadPairs[at(kHeads)].a,
                     .heads_k = kHeadPairs[at(kHeads)].b,
                     .seqlen_q = kLengthPairs[at(kLengths)].a,
                     .seqlen_k = kLengthPairs[at(kLengths)].b,
                     .head_dim = kHeadDimPairs[at(kHeadDims)].a,
                     .head_dim_v = kHeadDimPairs[at(kHeadDims)].b,
                     .causal = mask.causal,
                     .window_left = mask.left,
                     .window_right = mask.right};
  c.alibi = v[kOptions] == kAlibi || v[kOptions] == kAlibiDropout;
  if (v[kOptions] == kDropout || v[kOptions] == kAlibiDropout) c.dropout_p = 0.2;
  if (v[kOptions] == kSoftcap) c.softcap = 20;
  if (v[kOptions] == kBias) c.bias = Broadcast{true, false, true};
  if (v[kOptions] == kBoolMask) c.mask = Broadcast{false, true, true};
  c.dlse = v[kDlse] == 1;
  c.layout = v[kLayout] == 0 ? CaseLayout::kBSHD : CaseLayout::kPadded;
  c.seed = seed;
  if (v[kBatching] == 1) {
    c.varlen_q = {c.seqlen_q, 0, c.seqlen_q / 2, 3};
    c.varlen_k = {c.seqlen_k, 4, 0, c.seqlen_k / 3 + 1};
  }
  const int num_ranks = kNumRanks[at(kRanks)];
  if (algorithm == RingAlgorithm::kAllToAll) {  // every rank has its share
    c.heads_k = num_ranks;
    c.heads_q = (v[kHeads] == 0 ? 1 : 2) * num_ranks;
    c.bias.reset();  // refused
    c.mask.reset();
  }
  return {c, kShardings[at(kShardingKind)], num_ranks, algorithm};
}

constexpr std::uint64_t kArraySeed = 20261122;

std::vector<RingCase> cases() {
  std::vector<RingCase> all;
  for (const Choice& v : covering_array(kNumValues, is_compatible, kArraySeed)) {
    for (const RingAlgorithm algorithm : kAlgorithms) all.push_back(to_case(v, algorithm, 1000 + all.size()));
  }
  return all;
}

/// Forward and backward of one rank, waited for.
void run_rank(const RingContext& context, const RankTensors& tensors, const RingCase& c, int device,
              std::string_view compute) {
  const cuda::ContextGuard guard(device);
  const cuda::OwnStream stream;
  const RankPlace place = {{DeviceType::kCUDA, device}, stream.get()};
  ring_forward_of(context, tensors, c, compute, place);
  ring_backward_of(context, tensors, c, compute, place);
  cuda::synchronize(stream.get());
}

/// On threads; rank r on GPU devices[r].
Outputs run_on_gpus(const std::vector<RingContext>& ranks, const std::vector<int>& devices, const Inputs& whole,
                    const RingCase& c, std::string_view compute = "auto") {
  const std::vector<RankTensors> tensors = cut(whole, c);
  const std::vector<std::string> thrown = on_threads(c.num_ranks, [&](int rank) {
    const auto at = static_cast<std::size_t>(rank);
    run_rank(ranks[at], tensors[at], c, devices[at], compute);
  });
  for (const std::string& text : thrown) EXPECT_EQ(text, "") << describe(c);
  return put_together(tensors, whole, c);
}

Outputs run_on_gpu(const Inputs& whole, const RingCase& c, std::string_view compute = "auto") {
  return run_on_gpus(make_thread_ring(c.num_ranks), std::vector<int>(static_cast<std::size_t>(c.num_ranks), 0), whole,
                     c, compute);
}

void check(const Inputs& in, const Outputs& out, const RingCase& c) {
  const bool rounds_p = c.problem.dtype != DType::kF32;
  std::string line = describe(c);
  for (const TensorCheck& check : compare_outputs(in, out, rounds_p ? KeptP::kRounded : KeptP::kFloat)) {
    char text[64];
    std::snprintf(text, sizeof(text), "  %s %.2e of %.2e", check.name.c_str(), check.comparison.block_error,
                  check.comparison.budget);
    line += text;
  }
  std::puts(line.c_str());
  std::fflush(stdout);  // a process that hangs is ended, and what it was at should be known
}

class GpuRing : public GpuTest {};
class EveryGpuRingPair : public GpuTest, public testing::WithParamInterface<RingCase> {};

TEST_P(EveryGpuRingPair, StaysInBudget) {
  const RingCase& c = GetParam();
  const Inputs in = make_inputs(c.problem);
  check(in, run_on_gpu(in, c), c);
}

INSTANTIATE_TEST_SUITE_P(CoveringArray, EveryGpuRingPair, testing::ValuesIn(cases()),
                         [](const auto& test) { return std::to_string(test.index); });

TEST(GpuRingCases, MissNoCompatiblePair) {
  EXPECT_EQ(uncovered_pairs(kNumValues, is_compatible, covering_array(kNumValues, is_compatible, kArraySeed)), 0);
}

RingCase long_case(DType dtype, Sharding sharding, int num_ranks) {
  return {{.dtype = dtype,
           .heads_q = 2,
           .heads_k = 1,
           .seqlen_q = 1024,
           .seqlen_k = 1024,
           .head_dim = 128,
           .head_dim_v = 128,
           .causal = true,
           .seed = 7},
          sharding,
          num_ranks};
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

/// Parts stay in float32: what is rounded to 16 bits is the end alone. Root mean squares: which entry is worst, and how
/// bad, changes with each rounding inside of the kernels, whose tiles are not those of one device.
TEST_F(GpuRing, ErrorDoesNotGrowWithRanks) {
  const RingCase eight = long_case(DType::kBF16, Sharding::kZigzag, 8);
  const Inputs in = make_inputs(eight.problem);
  const Outputs truth = run(as_f64(in), "reference");
  const Outputs alone = run(in, supports("sm90_forward", in) ? "sm90_backward" : "sm80_backward");  // after its forward
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
  RingCase c = long_case(DType::kF16, Sharding::kZigzag, 4);
  c.problem.deterministic = true;
  c.problem.heads_q = c.problem.heads_k = 4;
  const Inputs in = make_inputs(c.problem);
  Outputs first;
  for (int round = 0; round < 3 * 5; ++round) {
    c.algorithm = kAlgorithms[round / 5];
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

/// The same entries are dropped as on one device: what is kept of v = identity shows in o.
TEST_F(GpuRing, DropsTheVeryEntriesOfOneDevice) {
  for (const Sharding sharding : {Sharding::kContiguous, Sharding::kZigzag, Sharding::kStriped}) {
    for (const std::int64_t seqlen : {64, 61}) {
      RingCase c = {{.dtype = DType::kBF16,
                     .batch = 2,
                     .heads_q = 3,
                     .heads_k = 3,
                     .seqlen_q = seqlen,
                     .seqlen_k = seqlen,
                     .head_dim = 64,
                     .head_dim_v = 64,
                     .dropout_p = 0.5,
                     .seed = 11},
                    sharding,
                    3};
      const Inputs in = make_inputs(c.problem);
      in.v.generate([](auto, auto, std::int64_t row, std::int64_t col) { return row == col ? 1.0 : 0.0; });
      const std::vector<double> want = run(in, "auto").o.values();
      for (const RingAlgorithm algorithm : kAlgorithms) {
        c.algorithm = algorithm;
        const std::vector<double> got = run_on_gpu(in, c).o.values();
        for (std::size_t i = 0; i < want.size(); ++i) ASSERT_EQ(got[i] == 0, want[i] == 0) << i << " " << describe(c);
      }
    }
  }
}

TEST_F(GpuRing, RefusesOnEveryRankWhatOneRankLacks) {
  RingCase c = long_case(DType::kBF16, Sharding::kStriped, 3);
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

std::vector<int> gpus_of_their_own(int num_ranks) {
  std::vector<int> devices(static_cast<std::size_t>(num_ranks));
  std::iota(devices.begin(), devices.end(), 0);
  return devices;
}

/// Blocks of megabytes, which are under way while kernels run, in memory that grows from call to call. Ranks that share
/// a GPU have the same bits: a copy that comes too early or too late changes them.
std::vector<RingCase> cases_of_long_blocks(int num_ranks) {
  std::vector<RingCase> all;
  for (const std::int64_t seqlen : {2048, 8192, 4096}) {
    for (const RingAlgorithm algorithm : kAlgorithms) {
      RingCase c = long_case(DType::kBF16, Sharding::kZigzag, num_ranks);
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
    expect_same_bits(run_on_gpus(ranks, gpus_of_their_own(num_ranks), in, c), run_on_gpu(in, c), c);
  }
}

/// Ranks that are threads with a GPU each.
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

/// Ranks on GPUs of their own, over NCCL.
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

  /// The first message of a communicator sets up its connections, which takes seconds where others use the host too.
  static constexpr NcclRingOptions kOptions = {.timeout = std::chrono::minutes(1)};
};

TEST_F(NcclRing, MovesLongBlocksWhileItComputes) {
  const int num_ranks = std::min(4, cuda::device_count());
  for (const bool copy_engines : {true, false}) {
    expect_bits_of_one_gpu(make_ring(num_ranks, {.timeout = std::chrono::minutes(1), .copy_engines = copy_engines}),
                           num_ranks);
  }
}

/// How ranks with a GPU each pass on their messages.
enum class Way { kThreads, kNccl, kNcclWithoutCopyEngines };

struct WayCase {
  Way way;
  RingCase ring;
};

void PrintTo(const WayCase& c, std::ostream* out) {
  *out << static_cast<int>(c.way) << " " << describe(c.ring);
}

/// Every fourth case of the array: beside threads on one GPU, which have all cases, only the way of messages is another.
std::vector<WayCase> cases_of_ways() {
  std::vector<WayCase> all;
  for (const Way way : {Way::kThreads, Way::kNccl, Way::kNcclWithoutCopyEngines}) {
    for (const int num_ranks : {2, 3, 4}) {
      int number = 0;
      for (const RingCase& c : cases()) {
        if (c.num_ranks == num_ranks && number++ % 4 == 0) all.push_back({way, c});
      }
    }
  }
  return all;
}

class EveryWayOfMessages : public NcclRing, public testing::WithParamInterface<WayCase> {
 protected:
  static void TearDownTestSuite() { rings().clear(); }

  /// One for all cases: connecting takes longer than a case.
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
  if (c.num_ranks > cuda::device_count()) GTEST_SKIP() << cuda::device_count() << " GPUs, wanted " << c.num_ranks;
  const Inputs in = make_inputs(c.problem);
  check(in, run_on_gpus(ring_of(way, c.num_ranks), gpus_of_their_own(c.num_ranks), in, c), c);
}

INSTANTIATE_TEST_SUITE_P(CoveringArray, EveryWayOfMessages, testing::ValuesIn(cases_of_ways()), kIndexName);

/// Ranks that ask for different algorithms would wait for each other's messages.
TEST_F(NcclRing, TellsRanksOfDifferentAlgorithms) {
  const std::vector<RingContext> ranks = make_ring();
  const RingCase c = long_case(DType::kBF16, Sharding::kZigzag, 2);
  const Inputs in = make_inputs(c.problem);
  const std::vector<RankTensors> tensors = cut(in, c);
  const std::vector<std::string> thrown = on_threads(2, [&](int rank) {
    const auto at = static_cast<std::size_t>(rank);
    RingCase mine = c;
    if (rank == 1) mine.algorithm = RingAlgorithm::kAllGather;
    run_rank(ranks[at], tensors[at], mine, rank, "auto");
  });
  for (const std::string& text : thrown) {
    EXPECT_EQ(text, "algorithm: all_gather on rank 1, allowed exchange as on rank 0");
  }
}

TEST_F(NcclRing, TakesACommunicatorOfTheCallers) {
  const NcclId id = make_nccl_id();
  const RingCase c = long_case(DType::kBF16, Sharding::kZigzag, 2);
  const Inputs in = make_inputs(c.problem);
  const std::vector<RankTensors> tensors = cut(in, c);
  const std::vector<std::string> thrown = on_threads(2, [&](int rank) {
    const cuda::ContextGuard guard(rank);
    ring::NcclComm comm = nullptr;
    ring::check_nccl(ring::nccl().comm_init_rank(&comm, 2, id, rank), "ncclCommInitRank");
    run_rank(make_nccl_ring(comm), tensors[static_cast<std::size_t>(rank)], c, rank, "auto");
    ring::check_nccl(ring::nccl().comm_destroy(comm), "ncclCommDestroy");  // the context has left it alone
  });
  for (const std::string& text : thrown) EXPECT_EQ(text, "");
  check(in, put_together(tensors, in, c), c);
}

TEST_F(NcclRing, TellsRanksThatDiffer) {
  const std::vector<RingContext> ranks = make_ring();
  const RingCase c = long_case(DType::kBF16, Sharding::kZigzag, 2);
  const Inputs in = make_inputs(c.problem);
  const std::vector<RankTensors> tensors = cut(in, c);
  const std::vector<std::string> thrown = on_threads(2, [&](int rank) {
    const auto at = static_cast<std::size_t>(rank);
    RingCase mine = c;
    if (rank == 1) mine.sharding = Sharding::kStriped;
    run_rank(ranks[at], tensors[at], mine, rank, "auto");
  });
  for (const std::string& text : thrown) EXPECT_EQ(text, "sharding: striped on rank 1, allowed zigzag as on rank 0");
  check(in, run_on_gpus(ranks, {0, 1}, in, c), c);  // the ring is as good as new
}

/// By itself, in a process of its own: what goes wrong here may hang.
class LastNcclRing : public NcclRing {};

TEST_F(LastNcclRing, DoesNotWaitForEverForARankThatIsGone) {
  const std::vector<RingContext> ranks = make_ring(2, {.timeout = std::chrono::milliseconds(3000)});
  const RingCase c = long_case(DType::kBF16, Sharding::kZigzag, 2);
  const Inputs in = make_inputs(c.problem);
  const std::vector<RankTensors> tensors = cut(in, c);
  const std::vector<std::string> thrown =
      on_threads(1, [&](int rank) { run_rank(ranks[0], tensors[0], c, rank, "auto"); });
  EXPECT_EQ(thrown[0], "ring: rank 0 has waited 3000 ms for the others to begin the call");
}

/// The same between two calls, where ranks of one machine wait in memory of the host.
TEST_F(LastNcclRing, SaysWhoHasNotComeToALaterCall) {
  const std::vector<RingContext> ranks = make_ring(2, {.timeout = std::chrono::milliseconds(20000)});
  const RingCase c = long_case(DType::kBF16, Sharding::kZigzag, 2);
  const Inputs in = make_inputs(c.problem);
  check(in, run_on_gpus(ranks, gpus_of_their_own(2), in, c), c);
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

/// What RingProcesses starts once for each rank, and nobody else.
TEST_F(NcclRing, IsARankOfRingProcesses) {
  const char* const rank_text = std::getenv(kRankVariable);
  if (rank_text == nullptr) GTEST_SKIP() << "for processes that another test starts";
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
}

/// Processes with a GPU each.
TEST(RingProcesses, MoveLongBlocksWhileTheyCompute) {
  const std::filesystem::path file = std::filesystem::path(testing::TempDir()) / fmt::format("ring_{}", ::getpid());
  const int num_ranks = std::min(4, missing_gpu().empty() ? cuda::device_count() : 0);
  if (num_ranks < 2) GTEST_SKIP() << "fewer than two GPUs";
  std::vector<int> statuses(static_cast<std::size_t>(num_ranks), -1);
  (void)on_threads(num_ranks, [&](int rank) {
    const std::string program = std::filesystem::read_symlink("/proc/self/exe");
    const std::string command = fmt::format("{}={} {}='{}' '{}' --gtest_filter=NcclRing.IsARankOfRingProcesses",
                                            kRankVariable, rank, kIdFileVariable, file.string(), program);
    statuses[static_cast<std::size_t>(rank)] = std::system(command.c_str());
  });
  std::filesystem::remove(file);
  for (const int status : statuses) EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace attend::test
