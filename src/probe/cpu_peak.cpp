#include "probe/cpu_peak.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "probe/cpu_peak.cpp"
#include <hwy/foreach_target.h>  // compiles this file once per SIMD target
#include <hwy/highway.h>

#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace attend::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// Number of independent chains of multiply-adds. It is large enough to hide a latency of 4 cycles on 2 ports, and small
// enough that chains and operands fit into 16 registers.
constexpr int kFmaChains = 12;

/// Runs `rounds` rounds of kFmaChains multiply-adds. Returns the number of operations. Writing `sink` prevents the
/// compiler from removing the multiply-adds.
double run_fmas(std::int64_t rounds, float* sink) {
  const hn::ScalableTag<float> d;
  const auto factor = hn::Set(d, *sink);
  const auto summand = hn::Set(d, 1e-6f);
  hn::Vec<decltype(d)> chain[kFmaChains];
  for (int c = 0; c < kFmaChains; ++c) chain[c] = hn::Set(d, *sink * static_cast<float>(c));
  for (std::int64_t r = 0; r < rounds; ++r) {
    for (int c = 0; c < kFmaChains; ++c) chain[c] = hn::MulAdd(chain[c], factor, summand);
  }
  auto sum = chain[0];
  for (int c = 1; c < kFmaChains; ++c) sum = hn::Add(sum, chain[c]);
  *sink = hn::GetLane(sum);
  return 2.0 * kFmaChains * static_cast<double>(rounds) * static_cast<double>(hn::Lanes(d));
}

}  // namespace
}  // namespace attend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "attend/error.hpp"
#include "cpu/bf16_dot.hpp"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace attend::cpu {
namespace {

HWY_EXPORT(run_fmas);

using Clock = std::chrono::steady_clock;
using Run = double (*)(std::int64_t rounds, float* sink);  ///< a function that runs operations and returns their number

constexpr double kRunSeconds = 0.02;
constexpr int kRuns = 15;
constexpr int kMaxThreads = 4096;

double run_f32(std::int64_t rounds, float* sink) {
  return HWY_DYNAMIC_DISPATCH(run_fmas)(rounds, sink);
}

#if defined(__x86_64__)
/// Runs multiply-adds of pairs in 24 independent chains, more than are needed to hide a latency of 6 cycles on 2 ports.
__attribute__((target("avx512f,avx512bw,avx512bf16"))) double run_dot(std::int64_t rounds, float* sink) {
  constexpr int kChains = 24;
  constexpr double kOperations = 16 * 2 * 2;  // the factors are lanes, pairs, and 2 operations (multiply and add)
  const __m512 number = _mm512_set1_ps(0x1p-7f);
  const __m512bh operand = _mm512_cvtne2ps_pbh(number, number);
  __m512 chain[kChains];
#pragma GCC unroll 24
  for (int c = 0; c < kChains; ++c) chain[c] = _mm512_set1_ps(*sink * static_cast<float>(c));
  for (std::int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 24
    for (int c = 0; c < kChains; ++c) chain[c] = _mm512_dpbf16_ps(chain[c], operand, operand);
  }
  __m512 sum = chain[0];
#pragma GCC unroll 24
  for (int c = 1; c < kChains; ++c) sum = _mm512_add_ps(sum, chain[c]);
  *sink = _mm512_cvtss_f32(sum);
  return kOperations * kChains * static_cast<double>(rounds);
}

/// Multiplies two tiles and adds the product to six other tiles. All numbers are zero, because the time does not depend
/// on them.
double run_amx(std::int64_t rounds, float* /*sink*/) {
  // The factors are tiles, rows, columns, depth, and 2 operations (multiply and add).
  constexpr double kOperations = 6.0 * 16 * 16 * 32 * 2;
  const Bf16Registers registers;
  asm volatile(
      "tilezero %%tmm0\n tilezero %%tmm1\n tilezero %%tmm2\n tilezero %%tmm3\n"
      "tilezero %%tmm4\n tilezero %%tmm5\n tilezero %%tmm6\n tilezero %%tmm7" ::);
  for (std::int64_t r = 0; r < rounds; ++r) {
    asm volatile(
        "tdpbf16ps %%tmm7, %%tmm6, %%tmm0\n tdpbf16ps %%tmm7, %%tmm6, %%tmm1\n"
        "tdpbf16ps %%tmm7, %%tmm6, %%tmm2\n tdpbf16ps %%tmm7, %%tmm6, %%tmm3\n"
        "tdpbf16ps %%tmm7, %%tmm6, %%tmm4\n tdpbf16ps %%tmm7, %%tmm6, %%tmm5" ::);
  }
  return kOperations * static_cast<double>(rounds);
}
#endif

/// Runs the operations and returns their number. The volatile read prevents the compiler from removing them.
double operations_of(Run run, std::int64_t rounds) {
  float sink = 0.999f;
  const double operations = run(rounds, &sink);
  const volatile float kept = sink;
  static_cast<void>(kept);
  return operations;
}

/// Returns the number of rounds that takes about kRunSeconds on one thread.
std::int64_t rounds_of(Run run) {
  std::int64_t rounds = 1000;
  for (;; rounds *= 4) {
    const auto begin = Clock::now();
    operations_of(run, rounds);
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    if (seconds > kRunSeconds / 4)
      return static_cast<std::int64_t>(static_cast<double>(rounds) * kRunSeconds / seconds);
  }
}

/// Measures the rate of one run. Each thread first does a tenth of the work, so that its core reaches the clock rate of
/// wide vectors. Then all threads begin the measured work at the same time.
double gflops_of_one_run(Run run, std::int64_t rounds, int num_threads) {
  std::atomic<int> ready{0};
  std::vector<double> flops(num_threads);
  std::vector<Clock::time_point> begin(num_threads), end(num_threads);
  std::vector<std::thread> threads;
  for (int t = 0; t < num_threads; ++t) {
    threads.emplace_back([&, t] {
      operations_of(run, std::max<std::int64_t>(rounds / 10, 1));
      ++ready;
      while (ready != num_threads) std::this_thread::yield();
      begin[t] = Clock::now();
      flops[t] = operations_of(run, rounds);
      end[t] = Clock::now();
    });
  }
  for (std::thread& thread : threads) thread.join();
  double total = 0;
  for (const double one : flops) total += one;
  const auto first = *std::min_element(begin.begin(), begin.end());
  const auto last = *std::max_element(end.begin(), end.end());
  return total / std::chrono::duration<double>(last - first).count() * 1e-9;
}

double peak_gflops(Run run, int threads) {
  if (threads < 1 || threads > kMaxThreads) {
    throw Error(ErrorCode::kInvalidArgument, "threads: " + std::to_string(threads) + ", allowed 1 to 4096");
  }
  const std::int64_t rounds = rounds_of(run);
  double best = 0;
  for (int i = 0; i < kRuns; ++i) best = std::max(best, gflops_of_one_run(run, rounds, threads));
  return best;
}

}  // namespace

double f32_peak_gflops(int threads) {
  return peak_gflops(run_f32, threads);
}

double bf16_peak_gflops(int threads) {
#if defined(__x86_64__)
  if (bf16_unit() == Bf16Unit::kAmx) return peak_gflops(run_amx, threads);
  if (bf16_unit() == Bf16Unit::kDot) return peak_gflops(run_dot, threads);
#endif
  static_cast<void>(threads);
  return 0;
}

}  // namespace attend::cpu
#endif
