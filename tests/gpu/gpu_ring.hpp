// What the tests of rings on GPUs share: their cases, and ranks on threads, each on a GPU.
#pragma once

#include <string_view>
#include <vector>

#include "attend/ring.hpp"
#include "ring/ring_run.hpp"
#include "support/covering_array.hpp"

namespace attend::test {

constexpr RingAlgorithm kRingAlgorithms[] = {RingAlgorithm::kExchange, RingAlgorithm::kAllGather,
                                             RingAlgorithm::kAllToAll, RingAlgorithm::kTwoLevel};

/// Shardings, masks, options and numbers of ranks, each pair of which some case has, by every algorithm.
[[nodiscard]] std::vector<RingCase> gpu_ring_cases();

/// Compatible pairs that no case has: none.
[[nodiscard]] int uncovered_gpu_ring_pairs();

/// A plain causal problem of two heads of 128 and 1024 tokens.
[[nodiscard]] RingCase long_ring_case(DType dtype, Sharding sharding, int num_ranks);

/// Forward and backward of one rank, waited for.
void run_rank(const RingContext& context, const RankTensors& tensors, const RingCase& c, int device,
              std::string_view compute);

/// On threads; rank r on GPU devices[r]. Anything thrown is a failure of the test.
[[nodiscard]] Outputs run_on_gpus(const std::vector<RingContext>& ranks, const std::vector<int>& devices,
                                  const Inputs& whole, const RingCase& c, std::string_view compute = "auto");

/// The same on a new ring of threads that share GPU 0.
[[nodiscard]] Outputs run_on_gpu(const Inputs& whole, const RingCase& c, std::string_view compute = "auto");

/// Compares with float64, by the budgets of one device, and prints a line.
void check_ring(const Inputs& in, const Outputs& out, const RingCase& c);

}  // namespace attend::test
