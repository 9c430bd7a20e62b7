// Runs forward and backward once and reports the peak memory of the process.
//
//   peak_memory SEQLEN [causal]
//
// The problem has batch 1, 2 heads and head_dim 64 in float32. The program prints one line of JSON. `tensors_mib` is
// the size of the caller's tensors: q, k, v, o, lse, dout and the three gradients. `peak_mib` is the largest
// resident set size of the process. `scratch_mib` is the difference between that peak and the resident set size
// before the calls.
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "attend/attention.hpp"

namespace {

constexpr double kMiB = 1024.0 * 1024.0;

double peak_mib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;  // Linux reports KiB
}

double resident_mib() {
  long total_pages = 0, resident_pages = 0;
  if (std::FILE* file = std::fopen("/proc/self/statm", "r")) {
    if (std::fscanf(file, "%ld %ld", &total_pages, &resident_pages) != 2) resident_pages = 0;
    std::fclose(file);
  }
  return static_cast<double>(resident_pages) * static_cast<double>(sysconf(_SC_PAGESIZE)) / kMiB;
}

}  // namespace

int main(int argc, char** argv) {
  const std::int64_t seqlen = argc > 1 ? std::atoll(argv[1]) : 0;
  if (seqlen < 1) {
    std::fprintf(stderr, "peak_memory: SEQLEN '%s', allowed 1 or more\n", argc > 1 ? argv[1] : "");
    return 2;
  }
  const attend::Params params = {.causal = argc > 2 && std::strcmp(argv[2], "causal") == 0};
  const attend::Shape shape = {1, 2, seqlen, 64};
  const attend::Shape row_shape = {1, 2, seqlen, 1};

  std::mt19937 random(std::random_device{}());
  std::normal_distribution<float> normal;
  // `in` contains q, k, v and dout. `out` contains o, dq, dk, dv and lse. All are written here, so that the system
  // allocates their memory before the measurement.
  std::vector<std::vector<float>> in(4), out(5);
  std::size_t floats = 0;
  for (auto& values : in) {
    values.resize(static_cast<std::size_t>(2 * seqlen * 64));
    for (float& value : values) value = normal(random);
    floats += values.size();
  }
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i].assign(static_cast<std::size_t>(2 * seqlen * (i == 4 ? 1 : 64)), 0.f);
    floats += out[i].size();
  }
  const auto view = [&](std::vector<float>& values) {
    return attend::Tensor::bhsd(values.data(), attend::DType::kF32, shape);
  };
  const attend::Tensor q = view(in[0]), k = view(in[1]), v = view(in[2]), dout = view(in[3]);
  const attend::Tensor o = view(out[0]), dq = view(out[1]), dk = view(out[2]), dv = view(out[3]);
  const attend::Tensor lse = attend::Tensor::bhsd(out[4].data(), attend::DType::kF32, row_shape);

  const double before = resident_mib();
  attend::forward(q, k, v, o, &lse, params);
  const double after_forward = peak_mib();
  attend::backward(dout, q, k, v, o, lse, dq, dk, dv, params);
  const double after_backward = peak_mib();
  std::printf(
      "{\"seqlen\": %lld, \"causal\": %s, \"threads\": %d, \"tensors_mib\": %.2f, \"peak_mib\": %.2f, "
      "\"forward_scratch_mib\": %.2f, \"scratch_mib\": %.2f}\n",
      static_cast<long long>(seqlen), params.causal ? "true" : "false", attend::cpu_threads(),
      static_cast<double>(floats) * 4 / kMiB, after_backward, after_forward - before, after_backward - before);
}
