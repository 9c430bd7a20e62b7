// The backward ring: keys and values go round as in the forward, and after them the sums of their gradients, one step
// behind, to which every rank adds its rows' share. The last rank that sees a block sends its sums home.
#include <cmath>
#include <list>

#include "core/elements.hpp"
#include "cpu/parallel.hpp"
#include "cuda/driver/device.hpp"
#include "ring/device_pass.hpp"
#include "ring/forward.hpp"
#include "ring/gather.hpp"
#include "ring/heads.hpp"
#include "ring/two_level.hpp"

namespace attend {
namespace {

using ring::Block;
using ring::Call;
using ring::Channel;
using ring::Engine;
using ring::Pending;
using ring::Piece;
using ring::Plan;
using ring::Transport;

bool is_16_bits(DType dtype) {
  return dtype == DType::kF16 || dtype == DType::kBF16;
}

/// Is a row of `rounded`, in 16 bits, within a rounding of the same row of `exact`? Twice a rounding is allowed, as the
/// sums of `exact` may be of another order.
bool rounds_to(const Tensor& exact, const Tensor& rounded, std::int64_t batch, std::int64_t head, std::int64_t row) {
  const double spacing = rounded.dtype == DType::kF16 ? 0x1p-10 : 0x1p-7;  // of neighbouring numbers
  constexpr double kSubnormal = 0x1p-24;
  for (std::int64_t c = 0; c < rounded.shape[3]; ++c) {
    const double o = core::load(rounded, batch, head, row, c);
    const double difference = std::abs(core::load(exact, batch, head, row, c) - o);
    if (!(difference <= spacing * std::abs(o) + kSubnormal)) return false;
  }
  return true;
}

/// With dropout, an o that was rounded to 16 bits may hide that a row's gradients cancel: here it is once more, not
/// rounded. Rows that differ by more than that, as of an o that was merged with more than the ring sees, are taken at
/// their word.
Block exact_o(Transport& transport, const Call& call) {
  const Tensor& given = call.problem.o;
  Block exact(call.partial_dtype, given.shape);
  Call forward = call;
  forward.problem.is_backward = false;
  ring::forward_on_host(transport, forward, exact.first(), nullptr);
  cpu::parallel_for(given.shape[0] * given.shape[1], cpu::max_threads(), [&](std::int64_t index) {
    const std::int64_t batch = index / given.shape[1];
    const std::int64_t head = index % given.shape[1];
    for (std::int64_t row = 0; row < given.shape[2]; ++row) {
      if (rounds_to(exact.first(), given, batch, head, row)) continue;
      for (std::int64_t c = 0; c < given.shape[3]; ++c) {
        core::store(exact.first(), batch, head, row, c, core::load(given, batch, head, row, c));
      }
    }
  });
  return exact;
}

/// <dout, o> - dlse of the rank's rows.
Block deltas_of(const Call& call, const Tensor& o) {
  const core::Problem& p = call.problem;
  const Shape& shape = o.shape;
  Block deltas(call.partial_dtype, {shape[0], shape[1], shape[2], 1});
  cpu::parallel_for(shape[0] * shape[1], cpu::max_threads(), [&](std::int64_t index) {
    const std::int64_t batch = index / shape[1];
    const std::int64_t head = index % shape[1];
    for (std::int64_t row = 0; row < shape[2]; ++row) {
      double delta = p.dlse ? -core::load(*p.dlse, batch, head, row, 0) : 0.0;
      for (std::int64_t c = 0; c < shape[3]; ++c) {
        delta += core::load(p.dout, batch, head, row, c) * core::load(o, batch, head, row, c);
      }
      core::store(deltas.first(), batch, head, row, 0, delta);
    }
  });
  return deltas;
}

/// The sums of dk and dv on their way round.
///
/// No rank waits in a circle: in a step each first takes its previous rank's sums, sent in the step before; sends its
/// own; takes what comes home to it, sent in this step; and only then waits for what it sent in the step before.
class GradientRing {
 public:
  GradientRing(Transport& transport, const Call& call) : transport_(transport), call_(call), plan_(call.plan) {}

  /// Passes on the sums of the keys held in a step, with this rank's share `mine` (null: it holds none).
  void pass_on(int step, std::optional<Block> mine) {
    const ring::TimedSpan span(transport_.timeline(), ring::Activity::kExchange, step);
    std::list<InFlight> sent_before = std::move(in_flight_);
    in_flight_.clear();
    const int owner = plan_.owner(step);
    if (mine && step > 0) {
      const Block others(ring::gradient_pair(call_, owner));
      transport_.receive(plan_.previous(), Channel::kKeyGradients, others.bytes())->wait();
      ring::accumulate(mine->first(), others.first());
      ring::accumulate(mine->second(), others.second());
    }
    if (mine && step < plan_.last_step(owner)) {
      send(plan_.next(), *std::move(mine));
    } else if (mine && owner != plan_.rank()) {
      send(owner, *std::move(mine));
    } else if (mine) {
      store(*mine);
    }
    if (step > 0 && step == plan_.last_step(plan_.rank())) {
      const Block home(ring::gradient_pair(call_, plan_.rank()));
      const int last = (plan_.rank() + step) % plan_.num_ranks();
      transport_.receive(last, Channel::kKeyGradients, home.bytes())->wait();
      store(home);
    }
    for (const InFlight& sent : sent_before) sent.pending->wait();
  }

  /// To be called after the last step.
  void finish() {
    for (const InFlight& sent : in_flight_) sent.pending->wait();
    in_flight_.clear();
  }

 private:
  struct InFlight {
    Block block;
    std::unique_ptr<Pending> pending;  // gone before the block is
  };

  void send(int to, Block block) {
    in_flight_.push_back({std::move(block), nullptr});
    in_flight_.back().pending = transport_.send(to, Channel::kKeyGradients, in_flight_.back().block.bytes());
  }

  void store(const Block& sums) const {
    ring::convert(call_.problem.dk, sums.first());
    ring::convert(call_.problem.dv, sums.second());
  }

  Transport& transport_;
  const Call& call_;
  const Plan& plan_;
  std::list<InFlight> in_flight_;
};

void exchange_backward(Transport& transport, const Call& call, Engine& engine) {
  ring::Parts parts(call);
  GradientRing gradients(transport, call);
  engine.begin_dq();
  ring::for_each_step(transport, call, [&](int step, const Block* keys) {
    std::optional<Block> sums;
    if (keys != nullptr) {
      const int owner = call.plan.owner(step);
      sums.emplace(ring::gradient_pair(call, owner));
      sums->zero();
      const ring::TimedSpan span(transport.timeline(), ring::Activity::kCompute, step);
      for (const Piece& piece : call.plan.pieces(owner)) {
        engine.add_backward(piece, parts.problem(piece, keys->first(), keys->second()), sums->first(), sums->second());
      }
    }
    gradients.pass_on(step, std::move(sums));
  });
  gradients.finish();
  engine.store_dq(call.problem.dq);
}

void run_backward(Transport& transport, const Call& call) {
  const core::Problem& p = call.problem;
  Block o;
  const bool coarse = is_16_bits(p.o.dtype) && p.dropout_p > 0;  // the same on every rank, or they would wait
  if (coarse) o = exact_o(transport, call);
  const Block deltas = deltas_of(call, coarse ? o.first() : p.o);
  const std::unique_ptr<Engine> engine = ring::make_host_engine(transport, call, &deltas.first());
  switch (call.algorithm) {
    case RingAlgorithm::kAllGather:
      return ring::gather_backward(*engine, call);
    case RingAlgorithm::kAllToAll:
      return ring::heads_backward(*engine, call, &deltas.first());
    case RingAlgorithm::kTwoLevel:
      return ring::two_level_backward(
          transport, *engine, call, &deltas.first(), [](Transport& groups, const Call& inner) {
            exchange_backward(groups, inner, *ring::make_host_engine(groups, inner, &*inner.problem.delta));
          });
    default:
      return exchange_backward(transport, call, *engine);
  }
}

}  // namespace

void ring_backward(const RingContext& context, const ConstTensor& dout, const ConstTensor& q, const ConstTensor& k,
                   const ConstTensor& v, const ConstTensor& o, const ConstTensor& lse, const Tensor& dq,
                   const Tensor& dk, const Tensor& dv, const Params& params, const RingParams& ring_params,
                   Stream stream, const BackwardExtras& extras) {
  Transport& transport = context.transport();
  const ring::Arguments arguments = {"ring_backward",
                                     ring_params,
                                     core::input_view(q),
                                     core::input_view(k),
                                     core::input_view(v),
                                     core::input_view(o),
                                     core::input_view(lse),
                                     params,
                                     {{core::input_view(dout), dq, dk, dv, extras}}};
  const Call call = ring::agree_on(transport, arguments, stream);
  ring::guarded(transport, [&] {
    if (q.device.type == DeviceType::kCPU) return run_backward(transport, call);
    const cuda::ContextGuard guard(q.device.index);
    ring::backward_on_device(transport, call, static_cast<cuda::StreamHandle>(stream));
  });
}

}  // namespace attend
