// Helpers shared by the tests of rings on GPUs. The helpers make the test cases, and run each rank on a thread with a
// GPU.
#pragma once

#include <string_view>
#include <vector>

#include "attend/ring.hpp"
#include "ring/ring_run.hpp"
#include "support/covering_array.hpp"

namespace attend::test {

constexpr RingAlgorithm kRingAlgorithms[] = {RingAlgorithm::kExchange, RingAlgorithm::kAllGather,
                                             RingAlgorithm::kAllToAll, RingAlgorithm::kTwoLevel};

/// Returns cases for every algorithm. The cases cover every pair of values of sharding, mask, option and number of
/// ranks.
[[nodiscard]] std::vector<RingCase> gpu_ring_cases();

/// Returns the number of compatible pairs that no case contains. Must be 0.
[[nodiscard]] int uncovered_gpu_ring_pairs();

/// Returns a causal problem without other options. The problem has two heads, head_dim 128 and 1024 tokens.
[[nodiscard]] RingCase long_ring_case(DType dtype, Sharding sharding, int num_ranks);

/// Runs forward and backward of one rank and waits until both are done.
void run_rank(const RingContext& context, const RankTensors& tensors, const RingCase& c, int device,
              std::string_view compute);

/// Runs each rank on a thread. Rank r uses GPU devices[r]. An exception in any thread fails the test.
[[nodiscard]] Outputs run_on_gpus(const std::vector<RingContext>& ranks, const std::vector<int>& devices,
                                  const Inputs& whole, const RingCase& c, std::string_view compute = "auto");

/// Runs the ranks of a new thread ring. All of them share GPU 0.
[[nodiscard]] Outputs run_on_gpu(const Inputs& whole, const RingCase& c, std::string_view compute = "auto");

/// Compares the outputs with float64 under the error budgets of a single device, and prints one line.
void check_ring(const Inputs& in, const Outputs& out, const RingCase& c);

}  // namespace attend::test
