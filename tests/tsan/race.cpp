// A data race that ThreadSanitizer must report: the threads of a parallel loop add to one variable.
#include <cstdio>

int main() {
  long sum = 0;
#pragma omp parallel for
  for (int i = 0; i < 100000; ++i) sum += i;
  std::printf("%ld\n", sum);
}
