// The one place with threads: a parallel loop over independent tasks.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <exception>

namespace attend::cpu {

/// Threads that the next parallel_for of this thread may use.
[[nodiscard]] inline int max_threads() {
  return omp_in_parallel() != 0 ? 1 : omp_get_max_threads();
}

/// Calls body(task) for every task in [0, num_tasks), on up to `most_threads` threads, each next task to the first
/// thread that is free. Tasks must not depend on each other. The first exception of a task is thrown again here.
template <class Body>
void parallel_for(std::int64_t num_tasks, int most_threads, Body body) {
  const int threads = static_cast<int>(std::min<std::int64_t>(num_tasks, most_threads));
  std::exception_ptr failure;
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads) if (threads > 1)
  for (std::int64_t task = 0; task < num_tasks; ++task) {
    try {
      body(task);
    } catch (...) {
#pragma omp critical(attend_parallel_for)
      if (!failure) failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace attend::cpu
