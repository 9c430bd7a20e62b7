// Runs a full problem on a ring of threads: splits it over the ranks, computes, and gathers the outputs.
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

/// One rank's tensors.
struct RankTensors {
  Inputs in;  // k, v, bias, mask and offsets as ring_forward expects them
  Outputs out;
};

/// Returns a rank's share of the inputs, and poisoned outputs.
[[nodiscard]] RankTensors rank_tensors(const Inputs& whole, const RingCase& c, int rank);

/// Device on which a rank computes. A GPU needs memory that it can access (set_tensor_memory), and its calls are not
/// waited for.
struct RankPlace {
  Device device = {};
  Stream stream = nullptr;
};

void ring_forward_of(const RingContext& context, const RankTensors& t, const RingCase& c, std::string_view compute,
                     RankPlace place = {});
void ring_backward_of(const RingContext& context, const RankTensors& t, const RingCase& c, std::string_view compute,
                      RankPlace place = {});

/// Runs work(rank) on one thread per rank. Returns the text of the Error that each threw, or "".
[[nodiscard]] std::vector<std::string> on_threads(int num_ranks, const std::function<void(int)>& work);

/// cut() returns every rank's tensors. put_together() gathers their outputs after the calls.
[[nodiscard]] std::vector<RankTensors> cut(const Inputs& whole, const RingCase& c);
[[nodiscard]] Outputs put_together(const std::vector<RankTensors>& ranks, const Inputs& whole, const RingCase& c);

/// Runs forward and backward on `ranks` and returns the gathered outputs. An exception fails the test.
[[nodiscard]] Outputs run_on_ring(const std::vector<RingContext>& ranks, const Inputs& whole, const RingCase& c,
                                  std::string_view compute = "auto");

/// Does the same on a new ring of threads.
[[nodiscard]] Outputs run_on_ring(const Inputs& whole, const RingCase& c, std::string_view compute = "auto");

}  // namespace attend::test
