// Helpers shared by the tests of rings on GPUs: their cases, and ranks that are threads, each with a GPU.
#pragma once

#include <string_view>
#include <vector>

#include "attend/ring.hpp"
#include "ring/ring_run.hpp"
#include "support/covering_array.hpp"

namespace attend::test {

constexpr RingAlgorithm kRingAlgorithms[] = {RingAlgorithm::kExchange, RingAlgorithm::kAllGather,
                                             RingAlgorithm::kAllToAll, RingAlgorithm::kTwoLevel};

/// Returns cases that cover every pair of sharding, mask, option and number of ranks, for every algorithm.
[[nodiscard]] std::vector<RingCase> gpu_ring_cases();

/// Returns the number of compatible pairs that no case contains. Must be 0.
[[nodiscard]] int uncovered_gpu_ring_pairs();

/// A causal problem without other options: two heads of 128 columns and 1024 tokens.
[[nodiscard]] RingCase long_ring_case(DType dtype, Sharding sharding, int num_ranks);

/// Runs forward and backward of one rank and waits for them.
void run_rank(const RingContext& context, const RankTensors& tensors, const RingCase& c, int device,
              std::string_view compute);

/// Runs the ranks on threads, rank r on GPU devices[r]. An exception in any thread fails the test.
[[nodiscard]] Outputs run_on_gpus(const std::vector<RingContext>& ranks, const std::vector<int>& devices,
                                  const Inputs& whole, const RingCase& c, std::string_view compute = "auto");

/// Does the same on a new thread ring whose ranks share GPU 0.
[[nodiscard]] Outputs run_on_gpu(const Inputs& whole, const RingCase& c, std::string_view compute = "auto");

/// Compares with float64 under the error budgets of one device, and prints a line.
void check_ring(const Inputs& in, const Outputs& out, const RingCase& c);

}  // namespace attend::test
