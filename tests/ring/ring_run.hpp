// Runs a problem on a ring of threads. Divides the inputs among the ranks, runs each rank, and gathers the outputs.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "attend/ring.hpp"
#include "support/attention_case.hpp"

namespace attend::test {

struct RingCase {
  AttentionCase problem;
  Sharding sharding = Sharding::kZigzag;
  int num_ranks = 2;
  RingAlgorithm algorithm = RingAlgorithm::kExchange;

  [[nodiscard]] RingParams ring_params() const { return {sharding, algorithm}; }
};

[[nodiscard]] std::string describe(const RingCase& c);

inline void PrintTo(const RingCase& c, std::ostream* out) {
  *out << describe(c);
}

/// Tensors of one rank.
struct RankTensors {
  Inputs in;  // k, v, bias, mask and offsets have the shapes that ring_forward expects
  Outputs out;
};

/// Returns one rank's part of the inputs, and outputs whose bytes are all 0xFF (NaN).
[[nodiscard]] RankTensors rank_tensors(const Inputs& whole, const RingCase& c, int rank);

/// Device and stream on which a rank runs. A GPU needs tensors in memory that it can access (see set_tensor_memory),
/// and calls on it return before they are done.
struct RankPlace {
  Device device = {};
  Stream stream = nullptr;
};

void ring_forward_of(const RingContext& context, const RankTensors& t, const RingCase& c, std::string_view compute,
                     RankPlace place = {});
void ring_backward_of(const RingContext& context, const RankTensors& t, const RingCase& c, std::string_view compute,
                      RankPlace place = {});

/// Runs work(rank) on one thread per rank. Returns one string per rank: the message of the Error that it threw, or "".
[[nodiscard]] std::vector<std::string> on_threads(int num_ranks, const std::function<void(int)>& work);

/// cut() divides the inputs and returns the tensors of every rank. put_together() gathers the ranks' outputs after the
/// calls.
[[nodiscard]] std::vector<RankTensors> cut(const Inputs& whole, const RingCase& c);
[[nodiscard]] Outputs put_together(const std::vector<RankTensors>& ranks, const Inputs& whole, const RingCase& c);

/// Runs forward and backward on the given ranks and returns the gathered outputs. An exception fails the test.
[[nodiscard]] Outputs run_on_ring(const std::vector<RingContext>& ranks, const Inputs& whole, const RingCase& c,
                                  std::string_view compute = "auto");

/// Runs forward and backward on a new ring of threads and returns the gathered outputs.
[[nodiscard]] Outputs run_on_ring(const Inputs& whole, const RingCase& c, std::string_view compute = "auto");

}  // namespace attend::test
