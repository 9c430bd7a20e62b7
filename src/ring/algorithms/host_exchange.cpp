#include "ring/algorithms/host_exchange.hpp"

#include <list>
#include <utility>

#include "ring/engine/parts.hpp"

namespace attend::ring {
namespace {

/// Calls visit(step, block) in every step. `block` contains the keys (first) and values (second) that this rank holds
/// in the step. It is null if the rank holds no keys. The next block is transferred while visit() runs.
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
    if (receive) receive->wait();  // afterwards the keys of the next step may be read
    if (send) send->wait();        // afterwards this step's keys may be overwritten
    span.end();
    held = std::move(coming);
  }
}

/// The sums of dk and dv, which travel around the ring.
///
/// Ranks cannot deadlock. In each step, a rank first receives the sums that the previous rank sent in the step before.
/// It then sends its own sums, and receives the sums for its own keys if they arrive in this step. Only after that does
/// the rank wait until its send of the step before has finished.
class GradientRing {
 public:
  GradientRing(Transport& transport, const Call& call) : transport_(transport), call_(call), plan_(call.plan) {}

  /// Adds this rank's contribution `mine` to the sums for the keys held in a step, and passes the sums on. `mine` is
  /// null if the rank holds no keys in the step.
  void pass_on(int step, std::optional<Block> mine) {
    const TimedSpan span(transport_.timeline(), Activity::kExchange, step);
    std::list<InFlight> sent_before = std::move(in_flight_);
    in_flight_.clear();
    const int owner = plan_.owner(step);
    if (mine && step > 0) {
      const Block others(gradient_pair(call_, owner));
      transport_.receive(plan_.previous(), Channel::kKeyGradients, others.bytes())->wait();
      accumulate(mine->first(), others.first());
      accumulate(mine->second(), others.second());
    }
    if (mine && step < plan_.last_step(owner)) {
      send(plan_.next(), *std::move(mine));
    } else if (mine && owner != plan_.rank()) {
      send(owner, *std::move(mine));
    } else if (mine) {
      store(*mine);
    }
    if (step > 0 && step == plan_.last_step(plan_.rank())) {
      const Block home(gradient_pair(call_, plan_.rank()));
      const int last = (plan_.rank() + step) % plan_.num_ranks();
      transport_.receive(last, Channel::kKeyGradients, home.bytes())->wait();
      store(home);
    }
    for (const InFlight& sent : sent_before) sent.pending->wait();
  }

  /// Waits for the last sends. Must be called after the last step.
  void finish() {
    for (const InFlight& sent : in_flight_) sent.pending->wait();
    in_flight_.clear();
  }

 private:
  struct InFlight {
    Block block;
    std::unique_ptr<Pending> pending;  // declared last, so that it is destroyed before the block that it sends
  };

  void send(int to, Block block) {
    in_flight_.push_back({std::move(block), nullptr});
    in_flight_.back().pending = transport_.send(to, Channel::kKeyGradients, in_flight_.back().block.bytes());
  }

  void store(const Block& sums) const {
    convert(call_.problem.dk, sums.first());
    convert(call_.problem.dv, sums.second());
  }

  Transport& transport_;
  const Call& call_;
  const Plan& plan_;
  std::list<InFlight> in_flight_;
};

}  // namespace

void exchange_forward(Transport& transport, const Call& call, Engine& engine) {
  Parts parts(call);
  engine.begin_rows();
  for_each_step(transport, call, [&](int step, const Block* keys) {
    if (keys == nullptr) return;
    const TimedSpan span(transport.timeline(), Activity::kCompute, step);
    for (const Piece& piece : call.plan.pieces(call.plan.owner(step))) {
      engine.add_forward(piece, parts.problem(piece, keys->first(), keys->second()));
    }
  });
}

void exchange_backward(Transport& transport, const Call& call, Engine& engine) {
  Parts parts(call);
  GradientRing gradients(transport, call);
  engine.begin_dq();
  for_each_step(transport, call, [&](int step, const Block* keys) {
    std::optional<Block> sums;
    if (keys != nullptr) {
      const int owner = call.plan.owner(step);
      sums.emplace(gradient_pair(call, owner));
      sums->zero();
      const TimedSpan span(transport.timeline(), Activity::kCompute, step);
      for (const Piece& piece : call.plan.pieces(owner)) {
        engine.add_backward(piece, parts.problem(piece, keys->first(), keys->second()), sums->first(), sums->second());
      }
    }
    gradients.pass_on(step, std::move(sums));
  });
  gradients.finish();
  engine.store_dq(call.problem.dq);
}

}  // namespace attend::ring
