// The backward ring: keys and values go round as in the forward, and after them the sums of their gradients, one step
// behind, to which every rank adds its rows' share. The last rank that sees a block sends its sums home.
#include <cmath>
#include <list>

#include "core/elements.hpp"
#include "cpu/parallel.hpp"
#include "cuda/driver/device.hpp"
#include "ring/device_pass.hpp"
#include "ring/forward.hpp"

namespace attend {
namespace {

using ring::Block;
using ring::Call;
using ring::Channel;
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
  ring::forward_pass(transport, call).store(exact.first(), nullptr);
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

/// The piece's gradients, added to dq (all of the rank's rows) and to dk and dv (all of the owner's keys).
void add_gradients(const Call& call, const Piece& piece, core::Problem part, const Block& dq, const Block& sums) {
  const Block part_dq(call.partial_dtype, part.q.shape);
  const Block part_keys(ring::Pair::of(call.partial_dtype, part.k.shape, call.partial_dtype, part.v.shape));
  part.dq = part_dq.first();
  part.dk = part_keys.first();
  part.dv = part_keys.second();
  call.backend->backward(part, nullptr);
  ring::accumulate(ring::rows_of(dq.first(), piece.rows.local_begin, piece.rows.length), part.dq);
  ring::accumulate(ring::rows_of(sums.first(), piece.keys.local_begin, piece.keys.length), part.dk);
  ring::accumulate(ring::rows_of(sums.second(), piece.keys.local_begin, piece.keys.length), part.dv);
}

void run_backward(Transport& transport, const Call& call) {
  const core::Problem& p = call.problem;
  Block o;
  const bool coarse = is_16_bits(p.o.dtype) && p.dropout_p > 0;  // the same on every rank, or they would wait
  if (coarse) o = exact_o(transport, call);
  const Block deltas = deltas_of(call, coarse ? o.first() : p.o);
  const Block dq(DType::kF64, p.q.shape);
  dq.zero();
  ring::Parts parts(call);
  GradientRing gradients(transport, call);
  ring::for_each_step(transport, call, [&](int step, const Block* keys) {
    std::optional<Block> sums;
    if (keys != nullptr) {
      const int owner = call.plan.owner(step);
      sums.emplace(ring::gradient_pair(call, owner));
      sums->zero();
      for (const Piece& piece : call.plan.pieces(owner)) {
        core::Problem part = parts.problem(piece, keys->first(), keys->second());
        part.delta = ring::rows_of(deltas.first(), piece.rows.local_begin, piece.rows.length);
        add_gradients(call, piece, std::move(part), dq, *sums);
      }
    }
    gradients.pass_on(step, std::move(sums));
  });
  gradients.finish();
  ring::convert(p.dq, dq.first());
}

}  // namespace

void ring_backward(const RingContext& context, const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                   const Tensor& o, const Tensor& lse, const Tensor& dq, const Tensor& dk, const Tensor& dv,
                   const Params& params, Sharding sharding, Stream stream, const BackwardExtras& extras) {
  Transport& transport = context.transport();
  const ring::Arguments arguments = {"ring_backward", sharding, q, k, v, o, lse, params, {{dout, dq, dk, dv, extras}}};
  const Call call = ring::agree_on(transport, arguments, stream);
  ring::guarded(transport, [&] {
    if (q.device.type == DeviceType::kCPU) return run_backward(transport, call);
    const cuda::ContextGuard guard(q.device.index);
    ring::backward_on_device(transport, call, static_cast<cuda::StreamHandle>(stream));
  });
}

}  // namespace attend
