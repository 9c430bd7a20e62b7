// Tests that scratch memory grows at most linearly with the sequence length, and only up to a bound. Therefore neither
// forward nor backward has a seqlen x seqlen buffer. The contents of scratch memory before a call must have no effect.
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

#include "cpu/scratch.hpp"
#include "support/expect.hpp"
#include "support/option_cases.hpp"

namespace attend::test {
namespace {

/// Returns a value of /proc/self/status in bytes. "VmHWM" is the peak resident size, and "VmRSS" is the current
/// resident size.
std::int64_t status_bytes(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(name + ":", 0) == 0) return std::stoll(line.substr(name.size() + 1)) * 1024;
  }
  return -1;
}

/// Resets VmHWM to VmRSS. Returns false if the system does not permit it.
bool reset_peak() {
  std::ofstream clear("/proc/self/clear_refs");
  clear << "5" << std::flush;
  return clear.good();
}

/// Returns by how many bytes the resident size rises while `work` runs.
template <class Work>
std::int64_t peak_growth(Work work) {
  malloc_trim(0);  // returns freed memory to the system, because reusing it would hide later allocations
  if (!reset_peak()) return -1;
  const std::int64_t before = status_bytes("VmRSS");
  work();
  return status_bytes("VmHWM") - before;
}

bool sanitized() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return true;
#elif defined(__has_feature)
  return __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
  return false;
#endif
}

class Memory : public testing::TestWithParam<DType> {};

INSTANTIATE_TEST_SUITE_P(Cpu, Memory, testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& test) { return std::string(dtype_name(test.param)); });

constexpr std::int64_t kShort = 2048, kLong = 16384;
constexpr std::int64_t kHeadDim = 16;
// Allowance for the granularity of allocator and pages, and for memory that does not depend on the length (tiles of
// each thread).
constexpr std::int64_t kConstantBytes = 4 << 20;
// Allowed bytes per token: f32 copies or accumulators of a few rows of head_dim. A buffer with one bit per score would
// need 16384 / 8 bytes per token.
constexpr std::int64_t kBytesPerToken = 8 * kHeadDim * 4;
static_assert(kBytesPerToken * kLong + kConstantBytes < kLong * kLong / 8, "one bit per score would be caught");

TEST_P(Memory, GrowsLinearlyWithTheLength) {
  if (sanitized()) GTEST_SKIP() << "a sanitizer's own memory would be measured";
  for (const std::int64_t length : {kShort, 2 * kShort, 4 * kShort, kLong}) {
    const AttentionCase c = {.dtype = GetParam(),
                             .seqlen_q = length,
                             .seqlen_k = length,
                             .head_dim = kHeadDim,
                             .head_dim_v = kHeadDim,
                             .seed = 91};
    const Inputs in = make_inputs(c);
    const Outputs out = make_outputs(in);
    const std::int64_t forward_bytes = peak_growth([&] { run_forward(in, out, "cpu"); });
    const std::int64_t backward_bytes = peak_growth([&] { run_backward(in, out, "cpu"); });
    if (forward_bytes < 0) GTEST_SKIP() << "no /proc/self/clear_refs here";
    const std::int64_t allowed = kConstantBytes + kBytesPerToken * length;
    std::printf("seqlen %5lld: forward %lld KiB, backward %lld KiB, allowed %lld KiB\n", static_cast<long long>(length),
                static_cast<long long>(forward_bytes / 1024), static_cast<long long>(backward_bytes / 1024),
                static_cast<long long>(allowed / 1024));
    EXPECT_LE(forward_bytes, allowed);
    EXPECT_LE(backward_bytes, allowed);
  }
}

// The float32 sums for all keys of a head would need 128 MiB here. Above a bound, backward must not hold all of them at
// the same time.
TEST(MemoryOfBackward, IsBoundedWhateverTheNumberOfKeys) {
  if (sanitized()) GTEST_SKIP() << "a sanitizer's own memory would be measured";
  constexpr std::int64_t kKeys = 1 << 17, kColumns = 128;
  const Inputs in = make_inputs({.seqlen_q = 16, .seqlen_k = 1, .head_dim = kColumns, .head_dim_v = kColumns});
  Tensor k = in.k.view(), v = in.v.view();
  for (Tensor* t : {&k, &v}) t->shape[2] = kKeys, t->stride[2] = 0;  // all positions share one key
  const Outputs out = make_outputs(in);
  forward(in.q.view(), k, v, out.o.view(), &out.lse.view(), {.compute = "cpu"});
  const TensorBuffer dk(DType::kF32, {1, 1, kKeys, kColumns}), dv(DType::kF32, {1, 1, kKeys, kColumns});
  set_cpu_threads(1);
  const std::int64_t growth = peak_growth([&] {
    backward(in.dout.view(), in.q.view(), k, v, out.o.view(), out.lse.view(), out.dq.view(), dk.view(), dv.view(),
             {.compute = "cpu"});
  });
  set_cpu_threads(0);
  if (growth < 0) GTEST_SKIP() << "no /proc/self/clear_refs here";
  std::printf("%lld KiB\n", static_cast<long long>(growth / 1024));
  EXPECT_LE(growth, 16 << 20);
}

// Tests peak_growth(), with which the other tests measure memory. peak_growth() must detect a buffer of one byte per
// score.
TEST(MemoryMeasurement, SeesAScoreMatrix) {
  if (sanitized()) GTEST_SKIP() << "a sanitizer's own memory would be measured";
  const std::int64_t growth = peak_growth([] {
    const std::vector<char> scores(static_cast<std::size_t>(kLong * kLong), 1);
    EXPECT_EQ(scores[12345], 1);
  });
  if (growth < 0) GTEST_SKIP() << "no /proc/self/clear_refs here";
  EXPECT_GE(growth, kLong * kLong * 9 / 10);
}

// Makes hundreds of calls, which must not leak memory.
TEST(MemoryOverTime, DoesNotGrow) {
  if (sanitized()) GTEST_SKIP() << "a sanitizer's own memory would be measured";
  const AttentionCase c = {
      .heads_q = 2, .heads_k = 1, .seqlen_q = 70, .seqlen_k = 90, .head_dim = 24, .head_dim_v = 24};
  const Inputs in = make_inputs(c);
  const Outputs out = make_outputs(in);
  const auto calls = [&](int count) {
    for (int n = 0; n < count; ++n) {
      run_forward(in, out, "cpu");
      run_backward(in, out, "cpu");
    }
  };
  calls(50);  // allocates the scratch memory that is kept between calls
  const std::int64_t growth = peak_growth([&] { calls(500); });
  if (growth < 0) GTEST_SKIP() << "no /proc/self/clear_refs here";
  EXPECT_LE(growth, 1 << 20);
}

// A thread keeps its scratch memory between calls. Data left by an earlier call must have no effect.
TEST(Scratch, WhatAnEarlierCallLeftReachesNothing) {
  set_cpu_threads(1);  // all work runs on this thread
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    std::vector<AttentionCase> cases = option_cases(dtype);
    const std::size_t num_options = cases.size();
    for (std::size_t n = 0; n < num_options; ++n) {
      cases.push_back(cases[n]);
      cases[n].seqlen_q += 70, cases[n].seqlen_k += 130;          // lengths with more than one tile, and partial tiles
      cases.back().seqlen_q += 200, cases.back().seqlen_k += 70;  // some full row tiles see no key
    }
    for (AttentionCase& c : cases) {
      c.head_dim = 37;
      const Inputs in = make_inputs(c);
      SCOPED_TRACE(describe(c));
      std::optional<Outputs> first;
      for (const float left : {0.0F, std::numeric_limits<float>::quiet_NaN(), 1e3F}) {
        constexpr std::int64_t kFloats = (8 << 20) / 4;  // the largest scratch memory that a thread keeps
        cpu::Scratch& scratch = cpu::Scratch::of_this_thread();
        scratch.reserve(kFloats);
        std::fill_n(scratch.take(kFloats), kFloats, left);
        const Outputs out = run(in, "cpu");
        if (!first) first = out;
        expect_same_bits(out, *first);
      }
      if (HasFailure()) break;
    }
  }
  set_cpu_threads(0);
}

}  // namespace
}  // namespace attend::test
