#include "gpu/gpu_ring.hpp"

#include <gtest/gtest.h>

#include <cstdio>

#include "cuda/driver/device.hpp"
#include "cuda/driver/stream.hpp"
#include "support/compare.hpp"

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

/// Bias and mask require contiguous sharding and unpacked sequences. ALiBi must not be combined with rows that are far
/// from all keys. In these rows p would fall below the smallest normal number, and the error budgets do not cover such
/// numbers.
bool is_compatible(int f, int a, int g, int b) {
  const auto reads_scores = [](int options) { return options == kBias || options == kBoolMask; };
  if (f == kShardingKind && g == kOptions) return kShardings[a] != Sharding::kStriped || !reads_scores(b);
  if (f == kOptions && g == kBatching) return b == 0 || !reads_scores(a);
  if (f == kLengths && g == kOptions)
    return kLengthPairs[a].a == kLengthPairs[a].b || (b != kAlibi && b != kAlibiDropout);
  return true;
}

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
    // Distance of the last sequence's three rows from their keys; see is_compatible().
    constexpr std::int64_t kNear = 8;
    c.varlen_k = {c.seqlen_k, 4, 0, c.alibi ? kNear : c.seqlen_k / 3 + 1};
  }
  const bool by_heads = algorithm == RingAlgorithm::kAllToAll || algorithm == RingAlgorithm::kTwoLevel;
  const int num_ranks = algorithm == RingAlgorithm::kTwoLevel ? 4 : kNumRanks[at(kRanks)];
  if (by_heads) {  // these algorithms divide the heads, so every rank gets the same number of heads
    c.heads_k = num_ranks;
    c.heads_q = (v[kHeads] == 0 ? 1 : 2) * num_ranks;
    c.bias.reset();  // these algorithms do not support bias and mask
    c.mask.reset();
  }
  return {c, kShardings[at(kShardingKind)], num_ranks, algorithm};
}

/// Returns a choice of factor values with other numbers of ranks, heads and rows than in `v`. Almost all of the kernels
/// for the new choice are already compiled.
Choice shifted(Choice v, int by) {
  const auto shift = [&](Factor f) { v[f] = (v[f] + by) % kNumValues[f]; };
  for (const Factor f : {kRanks, kHeads, kDlse, kLayout, kLengths}) shift(f);
  while (!is_compatible(kLengths, v[kLengths], kOptions, v[kOptions]))
    v[kLengths] = (v[kLengths] + 1) % kNumValues[kLengths];
  return v;
}

constexpr std::uint64_t kArraySeed = 20261122;
constexpr int kShifts = 3;

}  // namespace

std::vector<RingCase> gpu_ring_cases() {
  std::vector<RingCase> all;
  for (const Choice& v : covering_array(kNumValues, is_compatible, kArraySeed)) {
    for (int by = 0; by < kShifts; ++by) {
      const Choice other = shifted(v, by);
      for (const RingAlgorithm algorithm : kRingAlgorithms) all.push_back(to_case(other, algorithm, 1000 + all.size()));
    }
  }
  return all;
}

void run_rank(const RingContext& context, const RankTensors& tensors, const RingCase& c, int device,
              std::string_view compute) {
  const cuda::ContextGuard guard(device);
  const cuda::OwnStream stream;
  const RankPlace place = {{DeviceType::kCUDA, device}, stream.get()};
  ring_forward_of(context, tensors, c, compute, place);
  ring_backward_of(context, tensors, c, compute, place);
  cuda::synchronize(stream.get());
}

Outputs run_on_gpus(const std::vector<RingContext>& ranks, const std::vector<int>& devices, const Inputs& whole,
                    const RingCase& c, std::string_view compute) {
  const std::vector<RankTensors> tensors = cut(whole, c);
  const std::vector<std::string> thrown = on_threads(c.num_ranks, [&](int rank) {
    const auto at = static_cast<std::size_t>(rank);
    run_rank(ranks[at], tensors[at], c, devices[at], compute);
  });
  for (const std::string& text : thrown) EXPECT_EQ(text, "") << describe(c);
  return put_together(tensors, whole, c);
}

Outputs run_on_gpu(const Inputs& whole, const RingCase& c, std::string_view compute) {
  return run_on_gpus(make_thread_ring(c.num_ranks), std::vector<int>(static_cast<std::size_t>(c.num_ranks), 0), whole,
                     c, compute);
}

void check_ring(const Inputs& in, const Outputs& out, const RingCase& c) {
  const bool rounds_p = c.problem.dtype != DType::kF32;
  std::string line = describe(c);
  for (const TensorCheck& check : compare_outputs(in, out, rounds_p ? KeptP::kRounded : KeptP::kFloat)) {
    char text[64];
    std::snprintf(text, sizeof(text), "  %s %.2e of %.2e", check.name.c_str(), check.comparison.block_error,
                  check.comparison.budget);
    line += text;
  }
  std::puts(line.c_str());
  std::fflush(stdout);  // if the process hangs and is killed, the log still shows the current case
}

int uncovered_gpu_ring_pairs() {
  return uncovered_pairs(kNumValues, is_compatible, covering_array(kNumValues, is_compatible, kArraySeed));
}

RingCase long_ring_case(DType dtype, Sharding sharding, int num_ranks) {
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

}  // namespace attend::test
