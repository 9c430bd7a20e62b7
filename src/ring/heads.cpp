#include "ring/heads.hpp"

#include <fmt/format.h>

#include <functional>
#include <limits>

#include "core/elements.hpp"

namespace attend::ring {
namespace {

using core::Problem;

/// A rank's share of a dimension that all ranks divide.
Tensor share_of_heads(const Tensor& t, int rank, int num_ranks) {
  Tensor view = t;
  view.shape[1] = t.shape[1] / num_ranks;
  if (t.numel() > 0) view.data = core::element(t, 0, rank * view.shape[1], 0);
  return view;
}

Tensor batch_entry(const Tensor& t, std::int64_t batch) {
  Tensor view = t;
  view.shape[0] = 1;
  if (t.numel() > 0) view.data = core::element(t, batch, 0, 0);
  return view;
}

/// A tensor as its rank has it, some rows of all heads, and all rows of this rank's heads.
struct Dealt {
  Tensor rows, heads;
  bool is_of_keys;
};

/// The two ways between them.
class HeadExchange {
  enum Way : std::size_t { kSendInputs, kReceiveInputs, kSendResults, kReceiveResults };

 public:
  /// @param in   from rows to heads
  /// @param out  from heads to rows
  HeadExchange(Engine& engine, const Plan& plan, std::vector<Dealt> in, std::vector<Dealt> out)
      : engine_(engine), plan_(plan), in_(std::move(in)), out_(std::move(out)) {
    std::vector<TensorSpecs> specs;
    const auto add = [&](const std::vector<Dealt>& all, bool of_peer) {
      for (int peer = 0; peer < plan_.num_ranks(); ++peer) {
        TensorSpecs spec;
        const int holder = of_peer ? peer : plan_.rank();  // of the rows
        for (const Dealt& d : all) {
          Shape shape = d.heads.shape;
          shape[2] = num_rows(runs(d, holder));
          if (peer != plan_.rank()) spec.emplace_back(d.heads.dtype, shape);
        }
        specs.push_back(spec);
      }
    };
    add(in_, false);  // in the order of Way
    add(in_, true);
    add(out_, true);
    add(out_, false);
    parcels_ = engine.parcels(specs);
  }

  void to_heads() {
    for_each_parcel(in_, kSendInputs, [&](const Dealt& d, int peer, const Tensor& parcel) {
      engine_.copy(parcel, share_of_heads(d.rows, peer, plan_.num_ranks()));
    });
    exchange(kSendInputs, kReceiveInputs);
    for_each_parcel(in_, kReceiveInputs, [&](const Dealt& d, int peer, const Tensor& parcel) {
      for_each_run(d, peer, [&](const Tensor& whole, const Run& run) {
        engine_.copy(whole, rows_of(parcel, run.local_begin, run.length));
      });
    });
    for (const Dealt& d : in_) {
      const Tensor own = share_of_heads(d.rows, plan_.rank(), plan_.num_ranks());
      for_each_run(d, plan_.rank(), [&](const Tensor& whole, const Run& run) {
        engine_.copy(whole, rows_of(own, run.local_begin, run.length));
      });
    }
  }

  void to_rows() {
    for_each_parcel(out_, kSendResults, [&](const Dealt& d, int peer, const Tensor& parcel) {
      for_each_run(d, peer, [&](const Tensor& whole, const Run& run) {
        engine_.copy(rows_of(parcel, run.local_begin, run.length), whole);
      });
    });
    exchange(kSendResults, kReceiveResults);
    for_each_parcel(out_, kReceiveResults, [&](const Dealt& d, int peer, const Tensor& parcel) {
      engine_.copy(share_of_heads(d.rows, peer, plan_.num_ranks()), parcel);
    });
    for (const Dealt& d : out_) {
      const Tensor own = share_of_heads(d.rows, plan_.rank(), plan_.num_ranks());
      for_each_run(d, plan_.rank(), [&](const Tensor& whole, const Run& run) {
        engine_.copy(rows_of(own, run.local_begin, run.length), whole);
      });
    }
  }

 private:
  [[nodiscard]] const std::vector<Run>& runs(const Dealt& d, int rank) const {
    return d.is_of_keys ? plan_.keys(rank) : plan_.rows(rank);
  }

  [[nodiscard]] const Parcel& parcel(Way way, int peer) const {
    return parcels_[way * static_cast<std::size_t>(plan_.num_ranks()) + static_cast<std::size_t>(peer)];
  }

  template <class Visit>
  void for_each_parcel(const std::vector<Dealt>& all, Way way, Visit visit) const {
    for (int peer = 0; peer < plan_.num_ranks(); ++peer) {
      if (peer == plan_.rank()) continue;
      for (std::size_t i = 0; i < all.size(); ++i) visit(all[i], peer, parcel(way, peer).tensors[i]);
    }
  }

  /// Calls visit(rows of d.heads that are those of a run of the rank's, the run).
  template <class Visit>
  void for_each_run(const Dealt& d, int rank, Visit visit) const {
    const std::vector<std::int64_t>& offsets = d.is_of_keys ? plan_.offsets_k() : plan_.offsets_q();
    for (const Run& run : runs(d, rank)) {
      Tensor whole = rows_of(d.heads, offsets[static_cast<std::size_t>(run.sequence)] + run.position, run.length);
      whole.stride[2] *= run.step;
      visit(whole, run);
    }
  }

  void exchange(Way sent, Way received) {
    std::vector<Delivery> sends, receives;
    for (int peer = 0; peer < plan_.num_ranks(); ++peer) {
      if (peer == plan_.rank()) continue;
      sends.push_back({peer, &parcel(sent, peer)});
      receives.push_back({peer, &parcel(received, peer)});
    }
    engine_.exchange(Channel::kHeads, sends, receives);
  }

  Engine& engine_;
  const Plan& plan_;
  std::vector<Dealt> in_, out_;
  std::vector<Parcel> parcels_;
};

/// Makes tensors of all rows or keys of this rank's heads.
using MakeTensor = std::function<Tensor(DType, const Shape&)>;

/// The call's problem with this rank's heads, and what of it travels.
struct Share {
  Problem problem;
  std::vector<Dealt> in, out;
};

class ShareMaker {
 public:
  ShareMaker(const Call& call, const MakeTensor& make) : call_(call), make_(make), p_(call.problem) {
    share_.problem = p_;
    share_.problem.num_heads_q /= ranks();
    share_.problem.num_heads_k /= ranks();
    if (!p_.varlen) {
      share_.problem.max_seqlen_q = call.plan.offsets_q().back();
      share_.problem.max_seqlen_k = call.plan.offsets_k().back();
    }
    if (call.varlen_of_caller) share_.problem.varlen = call.varlen_of_caller;
    share_.problem.workspace = {};
    share_.problem.q = in(p_.q, false);
    share_.problem.k = in(p_.k, true);
    share_.problem.v = in(p_.v, true);
    if (p_.alibi_slopes) share_.problem.alibi_slopes = share_of_heads(*p_.alibi_slopes, call.plan.rank(), ranks());
    if (p_.bias) share_.problem.bias = in(*p_.bias, false);
    if (p_.mask) share_.problem.mask = in(*p_.mask, false);
  }

  /// @param lse  of the call, in which dtype it is computed
  [[nodiscard]] Share forward(const Tensor& o, const Tensor* lse) && {
    const bool on_host = call_.backend != nullptr;
    share_.problem.o = out(o, false, on_host ? call_.partial_dtype : o.dtype);
    share_.problem.lse.reset();
    if (lse != nullptr) share_.problem.lse = out(*lse, false, on_host ? DType::kF64 : lse->dtype);
    return std::move(share_);
  }

  [[nodiscard]] Share backward(const Tensor* deltas) && {
    const auto dtype = [&](const Tensor& t) { return call_.backend != nullptr ? call_.partial_dtype : t.dtype; };
    Problem& p = share_.problem;
    p.dout = in(p_.dout, false);
    p.lse = in(*p_.lse, false);
    p.o = deltas != nullptr ? p.dout : in(p_.o, false);  // with deltas nobody reads it
    p.dlse.reset();
    if (deltas != nullptr) {
      p.delta = in(*deltas, false);
    } else if (p_.dlse) {
      p.dlse = in(*p_.dlse, false);
    }
    p.dq = out(p_.dq, false, dtype(p_.dq));
    p.dk = out(p_.dk, true, dtype(p_.dk));
    p.dv = out(p_.dv, true, dtype(p_.dv));
    return std::move(share_);
  }

 private:
  [[nodiscard]] int ranks() const { return call_.plan.num_ranks(); }

  [[nodiscard]] Tensor whole(const Tensor& rows, bool is_of_keys, DType dtype) const {
    Shape shape = rows.shape;
    shape[1] /= ranks();
    shape[2] = (is_of_keys ? call_.plan.offsets_k() : call_.plan.offsets_q()).back();
    return make_(dtype, shape);
  }
  Tensor in(const Tensor& rows, bool is_of_keys) {
    share_.in.push_back({rows, whole(rows, is_of_keys, rows.dtype), is_of_keys});
    return share_.in.back().heads;
  }
  Tensor out(const Tensor& rows, bool is_of_keys, DType dtype) {
    share_.out.push_back({rows, whole(rows, is_of_keys, dtype), is_of_keys});
    return share_.out.back().heads;
  }

  const Call& call_;
  const MakeTensor& make_;
  const Problem& p_;
  Share share_;
};

/// The problem as parts of one sequence each: dropout asks for the head's number in the whole, which is counted in
/// shares of heads where each sequence stands for as many of them as there are ranks.
std::vector<Problem> sequences_of(const Call& call, const Problem& share) {
  Call inner = {};
  std::vector<Problem> parts;
  const std::int64_t batch = share.varlen ? 1 : share.num_sequences;
  for (std::int64_t b = 0; b < batch; ++b) {
    inner.problem = share;
    if (!share.varlen) {
      Problem& p = inner.problem;
      p.num_sequences = 1;
      for (Tensor* t : {&p.q, &p.k, &p.v, &p.o}) *t = batch_entry(*t, b);
      if (p.is_backward) {
        for (Tensor* t : {&p.dout, &p.dq, &p.dk, &p.dv}) *t = batch_entry(*t, b);
      }
      for (std::optional<Tensor>* t : {&p.lse, &p.dlse, &p.delta, &p.bias, &p.mask, &p.alibi_slopes}) {
        if (*t) *t = batch_entry(**t, b);
      }
    }
    Parts of_inner(inner);
    for (const Piece& piece : call.heads_plan.pieces(0)) {
      Problem part = of_inner.whole_problem(piece);
      part.placement->sequence_begin = (piece.rows.sequence + b) * call.plan.num_ranks() + call.plan.rank();
      parts.push_back(part);
    }
  }
  return parts;
}

/// Where there are no rows or no keys, what the outputs are filled with is all there is to say.
std::vector<Problem> problems_of(const Call& call, const Problem& share) {
  if (share.q.numel() == 0 || share.k.numel() == 0) return {};
  if (share.dropout_p > 0) return sequences_of(call, share);
  return {share};
}

void run(Engine& engine, const Call& call, const Problem& share) {
  const TimedSpan span(engine.timeline(), Activity::kCompute, 1, engine.stream());
  for (const Problem& part : problems_of(call, share)) engine.run(part);
}

}  // namespace

std::optional<std::string> heads_lack(const Problem& p, int num_ranks) {
  for (const auto& [name, heads] : {std::pair{"q", p.num_heads_q}, {"k", p.num_heads_k}}) {
    if (heads % num_ranks != 0) {
      return fmt::format("{}: {} heads, allowed a multiple of the {} ranks with algorithm all_to_all", name, heads,
                         num_ranks);
    }
  }
  const bool on_host = p.q.device.type == DeviceType::kCPU;
  if (!on_host && (p.bias || p.mask)) {
    return fmt::format("{}: given with algorithm all_to_all on a GPU, allowed none", p.bias ? "bias" : "mask");
  }
  return std::nullopt;
}

std::vector<Problem> problems_of_heads(const Call& call) {
  const Problem& p = call.problem;
  const Device device = p.q.device;
  const MakeTensor nowhere = [&](DType dtype, const Shape& shape) {
    return Tensor::bhsd<void>(nullptr, dtype, shape, device);
  };
  ShareMaker maker(call, nowhere);
  const Share share =
      p.is_backward ? std::move(maker).backward(nullptr) : std::move(maker).forward(p.o, p.lse ? &*p.lse : nullptr);
  return problems_of(call, share.problem);
}

void heads_forward(Engine& engine, const Call& call, const Tensor& o, const Tensor* lse) {
  const MakeTensor make = [&](DType dtype, const Shape& shape) { return engine.tensor(dtype, shape); };
  const Share share = ShareMaker(call, make).forward(o, lse);
  HeadExchange exchange(engine, call.plan, share.in, share.out);
  exchange.to_heads();
  engine.fill(share.problem.o, 0);  // of rows that no part has
  if (share.problem.lse) engine.fill(*share.problem.lse, -std::numeric_limits<float>::infinity());
  run(engine, call, share.problem);
  exchange.to_rows();
  engine.finish();
}

void heads_backward(Engine& engine, const Call& call, const Tensor* deltas) {
  const MakeTensor make = [&](DType dtype, const Shape& shape) { return engine.tensor(dtype, shape); };
  const Share share = ShareMaker(call, make).backward(deltas);
  HeadExchange exchange(engine, call.plan, share.in, share.out);
  exchange.to_heads();
  for (const Dealt& gradient : share.out) engine.fill(gradient.heads, 0);  // of rows and keys that no part has
  run(engine, call, share.problem);
  exchange.to_rows();
  engine.finish();
}

}  // namespace attend::ring
