#include "ring/two_level.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "ring/head_share.hpp"
#include "ring/heads.hpp"

namespace attend::ring {
namespace {

using core::Problem;

/// The ring of the ranks that have the same number in their groups: a rank of it is a group.
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

Call between_groups(const Call& call, const Problem& share) {
  Call inner = call;
  inner.problem = share;
  inner.plan = call.group_plan;
  inner.algorithm = RingAlgorithm::kExchange;
  inner.heads = {call.groups.members, call.groups.member(call.plan.rank()), 0};
  return inner;
}

/// With dropout each batch entry by itself: it asks for heads' numbers in the whole.
void run_between_groups(Transport& transport, const Call& call, const Problem& share, const ExchangePass& exchange) {
  GroupTransport groups(transport, call);
  Call inner = between_groups(call, share);
  if (share.dropout_p == 0 || share.varlen) return exchange(groups, inner);
  for (std::int64_t b = 0; b < share.num_sequences; ++b) {
    inner.problem = batch_entry(share, b);
    inner.heads.first_sequence = b;
    exchange(groups, inner);
  }
}

/// The engine's memory of messages is given back in between: the exchange takes it too.
void run(Transport& transport, Engine& engine, const Call& call, const Share& share, const ExchangePass& exchange) {
  HeadExchange(engine, HeadLayout(call), share.in, {}).to_heads();
  engine.finish();
  run_between_groups(transport, call, share.problem, exchange);
  HeadExchange(engine, HeadLayout(call), {}, share.out).to_rows();
  engine.finish();
}

}  // namespace

std::vector<int> group_sizes(const Problem& p, int num_ranks) {
  std::vector<int> sizes;
  for (int members = 2; members < num_ranks; ++members) {
    if (num_ranks % members == 0 && p.num_heads_q % members == 0 && p.num_heads_k % members == 0) {
      sizes.push_back(members);
    }
  }
  return sizes;
}

std::optional<std::string> two_level_lack(const Problem& p, int num_ranks) {
  if (group_sizes(p, num_ranks).empty()) {
    return fmt::format(
        "num_ranks: {} with {} heads of q and {} of k, allowed with algorithm two_level a multiple, above it, of a "
        "number above 1 that divides both",
        num_ranks, p.num_heads_q, p.num_heads_k);
  }
  return scores_lack(p, RingAlgorithm::kTwoLevel);
}

Call in_groups(const Call& call, int members) {
  Call grouped = call;
  grouped.algorithm = RingAlgorithm::kTwoLevel;
  grouped.groups = {members, call.plan.num_ranks() / members, call.plan.sharding() == Sharding::kStriped};
  grouped.group_plan = call.plan.of_groups(grouped.groups);
  return grouped;
}

Call call_between_groups(const Call& call) {
  return between_groups(call, share_without_memory(call).problem);
}

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
