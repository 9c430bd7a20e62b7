// A whole problem on a ring of threads: cut over the ranks, computed, put together again.
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
  Inputs in;  // k, v, bias, mask and offsets as ring_forward wants them
  Outputs out;
};

/// A rank's share of the inputs, and poisoned outputs.
[[nodiscard]] RankTensors rank_tensors(const Inputs& whole, const RingCase& c, int rank);

/// Where a rank computes; a GPU needs memory that it sees (set_tensor_memory), and its calls are not waited for.
struct RankPlace {
  Device device = {};
  Stream stream = nullptr;
};

void ring_forward_of(const RingContext& context, const RankTensors& t, const RingCase& c, std::string_view compute,
                     RankPlace place = {});
void ring_backward_of(const RingContext& context, const RankTensors& t, const RingCase& c, std::string_view compute,
                      RankPlace place = {});

/// Runs work(rank) on a thread a rank, and returns what each threw: the text of an Error, or "".
[[nodiscard]] std::vector<std::string> on_threads(int num_ranks, const std::function<void(int)>& work);

/// Every rank's tensors, and, after the calls, their outputs put together.
[[nodiscard]] std::vector<RankTensors> cut(const Inputs& whole, const RingCase& c);
[[nodiscard]] Outputs put_together(const std::vector<RankTensors>& ranks, const Inputs& whole, const RingCase& c);

/// Forward and backward on `ranks`, the outputs put together. Anything thrown is a failure of the test.
[[nodiscard]] Outputs run_on_ring(const std::vector<RingContext>& ranks, const Inputs& whole, const RingCase& c,
                                  std::string_view compute = "auto");

/// The same on a new ring of threads.
[[nodiscard]] Outputs run_on_ring(const Inputs& whole, const RingCase& c, std::string_view compute = "auto");

}  // namespace attend::test
