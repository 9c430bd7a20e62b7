// A correct OpenMP program, for which ThreadSanitizer must report nothing. The next parallel region and the main thread
// read data that another thread wrote before the implicit barrier. Each thread has separate scratch memory.
#include <cstdio>
#include <vector>

int main() {
  constexpr int kSize = 100000;
  std::vector<double> x(kSize, 1.0), y(kSize);
  for (int round = 0; round < 20; ++round) {
#pragma omp parallel for schedule(dynamic, 16)
    for (int i = 0; i < kSize; ++i) y[i] = 2 * x[kSize - 1 - i] + round;
    double sum = 0;
    for (const double value : y) sum += value;
#pragma omp parallel
    {
      std::vector<double> scratch(64, sum / kSize);
#pragma omp for schedule(static)
      for (int i = 0; i < kSize; ++i) x[i] = y[kSize - 1 - i] - scratch[i % 64];
    }
  }
  std::printf("%g\n", x[7]);
}
