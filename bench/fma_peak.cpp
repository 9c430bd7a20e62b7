// Measures the float32 fused multiply-add peak of this machine: what a kernel's speed is a share of.
//
//   fma_peak [threads ...]        one line of JSON; without arguments 1 thread and all of the machine's
//
// Every thread runs independent chains of FMAs on registers, no memory. The best of several short runs counts, since
// anything else on the machine can only lower a run.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/fma_peak.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// Enough chains to cover 4 cycles of latency on 2 ports, few enough that they and the operands fit in 16 registers.
constexpr int kChains = 12;

/// Runs `rounds` rounds of kChains FMAs; gives the number of flops. `sink` keeps the compiler from removing them.
double run_fmas(std::int64_t rounds, float* sink) {
  const hn::ScalableTag<float> d;
  const auto factor = hn::Set(d, *sink);
  const auto summand = hn::Set(d, 1e-6f);
  hn::Vec<decltype(d)> chain[kChains];
  for (int c = 0; c < kChains; ++c) chain[c] = hn::Set(d, *sink * static_cast<float>(c));
  for (std::int64_t r = 0; r < rounds; ++r) {
    for (int c = 0; c < kChains; ++c) chain[c] = hn::MulAdd(chain[c], factor, summand);
  }
  auto sum = chain[0];
  for (int c = 1; c < kChains; ++c) sum = hn::Add(sum, chain[c]);
  *sink = hn::GetLane(sum);
  return 2.0 * kChains * static_cast<double>(rounds) * static_cast<double>(hn::Lanes(d));
}

const char* target_name() { return hwy::TargetName(HWY_TARGET); }

}  // namespace
}  // namespace HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace {

HWY_EXPORT(run_fmas);
HWY_EXPORT(target_name);

constexpr std::int64_t kRounds = 8'000'000;  // about 40 ms
constexpr int kRuns = 15;

double gflops_of_one_run(int num_threads) {
  using Clock = std::chrono::steady_clock;
  std::atomic<int> ready{0};
  std::vector<double> flops(num_threads);
  std::vector<Clock::time_point> begin(num_threads), end(num_threads);
  std::vector<std::thread> threads;
  for (int t = 0; t < num_threads; ++t) {
    threads.emplace_back([&, t] {
      float sink = 0.999f;
      HWY_DYNAMIC_DISPATCH(run_fmas)(kRounds / 10, &sink);  // reach the vector clock of the core
      sink = 0.999f;
      ++ready;
      while (ready != num_threads) {
      }
      begin[t] = Clock::now();
      flops[t] = HWY_DYNAMIC_DISPATCH(run_fmas)(kRounds, &sink);
      end[t] = Clock::now();
      volatile float kept = sink;
      static_cast<void>(kept);
    });
  }
  for (std::thread& thread : threads) thread.join();
  double total = 0;
  Clock::time_point first = begin[0], last = end[0];
  for (int t = 0; t < num_threads; ++t) {
    total += flops[t];
    first = std::min(first, begin[t]);
    last = std::max(last, end[t]);
  }
  return total / std::chrono::duration<double>(last - first).count() * 1e-9;
}

double peak_gflops(int num_threads) {
  double best = 0;
  for (int run = 0; run < kRuns; ++run) best = std::max(best, gflops_of_one_run(num_threads));
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<int> counts = {1};
  if (const int all = static_cast<int>(std::thread::hardware_concurrency()); all > 1) counts.push_back(all);
  if (argc > 1) counts.clear();
  for (int i = 1; i < argc; ++i) {
    counts.push_back(std::atoi(argv[i]));
    if (counts.back() < 1 || counts.back() > 4096) {
      std::fprintf(stderr, "fma_peak: threads '%s', allowed 1 to 4096\n", argv[i]);
      return 2;
    }
  }
  std::printf("{\"simd_target\": \"%s\", \"f32_fma_peak_gflops\": {", HWY_DYNAMIC_DISPATCH(target_name)());
  for (std::size_t i = 0; i < counts.size(); ++i) {
    std::printf("%s\"%d\": %.1f", i == 0 ? "" : ", ", counts[i], peak_gflops(counts[i]));
  }
  std::puts("}}");
}
#endif
