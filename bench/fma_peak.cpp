// Measures the peak rate of float32 fused multiply-adds on this machine. Benchmarks divide the speed of a kernel by it.
//
//   fma_peak [threads ...]
//
// Each argument is a number of threads. Without arguments, the program measures one thread and all threads of the
// machine. It prints one line of JSON. src/probe/cpu_peak.hpp describes the measurement.
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "attend/attention.hpp"
#include "attend/error.hpp"
#include "probe/cpu_peak.hpp"

int main(int argc, char** argv) try {
  std::vector<int> counts = {1};
  if (const int all = static_cast<int>(std::thread::hardware_concurrency()); all > 1) counts.push_back(all);
  if (argc > 1) counts.clear();
  for (int i = 1; i < argc; ++i) counts.push_back(std::atoi(argv[i]));
  std::printf("{\"simd_target\": \"%s\"", attend::cpu_simd_target().c_str());
  for (const char* dtype : {"f32", "bf16"}) {
    std::printf(", \"%s_fma_peak_gflops\": {", dtype);
    for (std::size_t i = 0; i < counts.size(); ++i) {
      const bool is_f32 = dtype[0] == 'f';
      const double peak = is_f32 ? attend::cpu::f32_peak_gflops(counts[i]) : attend::cpu::bf16_peak_gflops(counts[i]);
      std::printf("%s\"%d\": %.1f", i == 0 ? "" : ", ", counts[i], peak);
    }
    std::printf("}");
  }
  std::puts("}");
} catch (const attend::Error& error) {
  std::fprintf(stderr, "fma_peak: %s\n", error.what());
  return 2;
}
