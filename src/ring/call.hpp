// A call of the ring that all ranks have agreed on, and its cut into problems for a backend.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/backend.hpp"
#include "cpu/parallel.hpp"
#include "ring/block.hpp"
#include "ring/plan.hpp"
#include "ring/transport.hpp"

namespace attend::ring {

/// What a rank passed, by name.
struct Arguments {
  const char* function;  ///< of the API
  RingParams ring;
  Tensor q, k, v, o;
  std::optional<Tensor> lse;
  Params params;

  struct Backward {
    Tensor dout, dq, dk, dv;
    BackwardExtras extras;
  };
  std::optional<Backward> backward = {};
};

/// Which share of the whole's heads a call's tensors have, for dropout, which asks for a head's number in the whole.
struct HeadShare {
  int count = 1, index = 0;
  std::int64_t first_sequence = 0;  ///< of the tensors, in the whole
};

/// Nothing of it is checked again.
struct Call {
  core::Problem problem;  ///< with the rank's tensors; cu_seqlens in the host's memory
  Plan plan;
  RingAlgorithm algorithm = RingAlgorithm::kExchange;  ///< never kAutomatic
  Plan heads_plan;                                     ///< of kAllToAll: one rank that holds everything
  Groups groups;                                       ///< of kTwoLevel,
  Plan group_plan;                                     ///< and a ring of them
  HeadShare heads;
  const core::Backend* backend = nullptr;  ///< of all pieces; null on a GPU, where each has the best one for it
  std::string compute;                     ///< as the caller said
  DType partial_dtype = {};                ///< of parts of results: f32, or f64 for the backend that computes in it
  std::vector<std::int32_t> cu_seqlens_q, cu_seqlens_k;  ///< where those of the caller are on a GPU
  std::optional<Varlen> varlen_of_caller;                ///< likewise: these
};

/// A rendezvous of all ranks. Waits for `stream` where packed sequences' offsets are on a GPU.
/// @throws Error, the same on every rank, where a rank refuses its arguments or they differ.
[[nodiscard]] Call agree_on(Transport& transport, Arguments arguments, Stream stream);

/// Makes problems of pieces of a call.
class Parts {
 public:
  explicit Parts(const Call& call) : call_(call) {}

  /// The rank's rows of the piece against its keys, in a block of keys and values that starts with the owner's key 0.
  /// Outputs (o and lse, or dq, dk and dv) are for the caller to set. Valid until the next call: a gathered bias lives
  /// here.
  [[nodiscard]] core::Problem problem(const Piece& piece, const Tensor& k, const Tensor& v);

  /// The same of a call whose tensors hold all rows and keys, outputs too.
  [[nodiscard]] core::Problem whole_problem(const Piece& piece);

 private:
  [[nodiscard]] Tensor columns(const Tensor& t, const Piece& piece, Block& gathered) const;

  const Call& call_;
  Block bias_, mask_;
};

/// Calls visit(step, block) in every step with the keys (first) and values (second) that this rank holds in it, or
/// null. The next step's are on their way meanwhile.
template <class Visit>
void for_each_step(Transport& transport, const Call& call, Visit visit);

/// The keys and values that `owner` owns, in their dtypes; and their gradients, in partial_dtype. Without memory.
[[nodiscard]] Pair key_pair(const Call& call, int owner);
[[nodiscard]] Pair gradient_pair(const Call& call, int owner);

/// Calls run(). An error of it is told to the other ranks too, who would wait for ever.
template <class Run>
void guarded(Transport& transport, Run run) {
  try {
    run();
  } catch (const std::exception& error) {
    transport.fail(error.what());
    throw;
  } catch (const cpu::Interrupted&) {
    transport.fail(kInterrupted);
    throw;
  } catch (...) {
    transport.fail("the call was ended");
    throw;
  }
}

template <class Visit>
void for_each_step(Transport& transport, const Call& call, Visit visit) {
  const Plan& plan = call.plan;
  Block held(key_pair(call, plan.rank()));
  convert(held.first(), call.problem.k);
  convert(held.second(), call.problem.v);
  for (int step = 0; step < plan.num_ranks(); ++step) {
    Block coming;
    std::unique_ptr<Pending> send, receive;
    const bool travels = plan.sends(step) || plan.holds(step + 1);
    TimedSpan span(travels ? transport.timeline() : nullptr, Activity::kExchange, step);
    if (plan.sends(step)) send = transport.send(plan.next(), Channel::kKeysValues, held.bytes());
    if (plan.holds(step + 1)) {
      coming = Block(key_pair(call, plan.owner(step + 1)));
      receive = transport.receive(plan.previous(), Channel::kKeysValues, coming.bytes());
    }
    visit(step, plan.holds(step) ? &held : nullptr);
    if (receive) receive->wait();  // the next step's keys are here
    if (send) send->wait();        // and this step's may go
    span.end();
    held = std::move(coming);
  }
}

}  // namespace attend::ring
