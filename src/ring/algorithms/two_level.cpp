#include "ring/algorithms/two_level.hpp"

#include "ring/algorithms/head_exchange.hpp"
#include "ring/plan/groups.hpp"

namespace attend::ring {
namespace {

using core::Problem;

/// Transport of the ring between groups. Its members are the ranks that have the same index within their groups. The
/// index of a member's group is its rank in this ring.
class GroupTransport : public Transport {
 public:
  GroupTransport(Transport& all, const Call& call) : all_(all), call_(call) { record_in(all.timeline()); }

  [[nodiscard]] int rank() const override { return call_.group_plan.rank(); }
  [[nodiscard]] int size() const override { return call_.group_plan.num_ranks(); }
  [[nodiscard]] std::unique_ptr<Pending> send(int to, Channel channel, std::span<const std::byte> bytes) override {
    return all_.send(rank_in_all(to), channel, bytes);
  }
  [[nodiscard]] std::unique_ptr<Pending> receive(int from, Channel channel, std::span<std::byte> bytes) override {
    return all_.receive(rank_in_all(from), channel, bytes);
  }
  [[nodiscard]] std::optional<std::string> allowed_instead(Device device) const override {
    return all_.allowed_instead(device);
  }
  void exchange(std::span<const DeviceMessage> sends, std::span<const DeviceMessage> receives) override {
    const auto in_all = [this](std::span<const DeviceMessage> messages) {
      std::vector<DeviceMessage> mapped(messages.begin(), messages.end());
      for (DeviceMessage& m : mapped) m.peer = rank_in_all(m.peer);
      return mapped;
    };
    all_.exchange(in_all(sends), in_all(receives));
  }
  [[nodiscard]] DeviceState& state(int device) override { return all_.state(device); }
  void fail(const std::string& why) override { all_.fail(why); }

 private:
  [[nodiscard]] int rank_in_all(int group) const {
    return call_.groups.rank_of(group, call_.groups.member(call_.plan.rank()));
  }

  Transport& all_;
  const Call& call_;
};

/// Runs the exchange between groups. With dropout, runs the exchange separately for each batch entry. The reason is
/// that the dropout pattern depends on the number of the sequence, and HeadShare::first_sequence can represent only one
/// number.
void run_between_groups(Transport& transport, const Call& call, const Problem& share, const ExchangePass& exchange) {
  GroupTransport groups(transport, call);
  Call inner = call_between_groups(call, share);
  if (share.dropout_p == 0 || share.varlen) return exchange(groups, inner);
  for (std::int64_t b = 0; b < share.num_sequences; ++b) {
    inner.problem = batch_entry(share, b);
    inner.heads.first_sequence = b;
    exchange(groups, inner);
  }
}

/// Calls engine.finish() after each exchange of heads. This releases the memory of messages, because the exchange
/// between groups uses the same memory.
void run(Transport& transport, Engine& engine, const Call& call, const Share& share, const ExchangePass& exchange) {
  HeadExchange(engine, HeadLayout(call), share.in, {}).to_heads();
  engine.finish();
  run_between_groups(transport, call, share.problem, exchange);
  HeadExchange(engine, HeadLayout(call), {}, share.out).to_rows();
  engine.finish();
}

}  // namespace

void two_level_forward(Transport& transport, Engine& engine, const Call& call, const Tensor& o, const Tensor* lse,
                       const ExchangePass& exchange) {
  const MakeTensor make = [&](DType dtype, const Shape& shape) { return engine.tensor(dtype, shape); };
  run(transport, engine, call, forward_share(call, make, o, lse), exchange);
}

void two_level_backward(Transport& transport, Engine& engine, const Call& call, const Tensor* deltas,
                        const ExchangePass& exchange) {
  const MakeTensor make = [&](DType dtype, const Shape& shape) { return engine.tensor(dtype, shape); };
  run(transport, engine, call, backward_share(call, make, deltas), exchange);
}

}  // namespace attend::ring
