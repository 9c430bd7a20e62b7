#include "ring/algorithms/gather.hpp"

#include "ring/engine/parts.hpp"

namespace attend::ring {
namespace {

TensorSpecs specs_of(const Pair& pair) {
  return {{pair.first.dtype, pair.first.shape}, {pair.second.dtype, pair.second.shape}};
}

/// Keys and values of all ranks, or their gradients.
struct KeyTensors {
  Tensor k, v;
};

/// The messages of a pass. Each message contains one rank's keys and values, or their gradients. In forward, this rank
/// sends its keys to every rank that sees them, and receives all keys that its rows see. In backward, it also sends the
/// gradients of the received keys to the owners, and receives the other ranks' gradients for its own keys.
class Gather {
 public:
  Gather(Engine& engine, const Call& call)
      : engine_(engine), call_(call), plan_(call.plan), has_gradients_(call.problem.is_backward) {
    for (int peer = 0; peer < plan_.num_ranks(); ++peer) {
      if (peer == plan_.rank()) continue;
      if (plan_.sees(peer, plan_.rank())) seen_by_.push_back(peer);
      if (plan_.sees(plan_.rank(), peer)) sees_.push_back(peer);
    }
    std::vector<TensorSpecs> specs = {specs_of(key_pair(call, plan_.rank()))};
    for (const int peer : sees_) specs.push_back(specs_of(key_pair(call, peer)));
    if (has_gradients_) {
      for (const int peer : sees_) specs.push_back(specs_of(gradient_pair(call, peer)));
      for (std::size_t i = 0; i < seen_by_.size(); ++i) specs.push_back(specs_of(gradient_pair(call, plan_.rank())));
    }
    parcels_ = engine.parcels(specs);
  }

  /// Exchanges the keys and values. Returns tensors for the keys of all ranks. Keys that this rank does not see stay
  /// uninitialised.
  [[nodiscard]] KeyTensors gather() {
    const Parcel& own = parcels_[0];
    engine_.copy(own.tensors[0], call_.problem.k);
    engine_.copy(own.tensors[1], call_.problem.v);
    std::vector<Delivery> sends, receives;
    for (const int peer : seen_by_) sends.push_back({peer, &own});
    for (std::size_t i = 0; i < sees_.size(); ++i) receives.push_back({sees_[i], &parcels_[1 + i]});
    engine_.exchange(Channel::kKeysValues, sends, receives);
    const KeyTensors all = all_keys(own.tensors[0].dtype, own.tensors[1].dtype);
    for_each_run(all, plan_.rank(), own, [&](const Tensor& to, const Tensor& from) { engine_.copy(to, from); });
    for (const Delivery& d : receives) {
      for_each_run(all, d.peer, *d.parcel, [&](const Tensor& to, const Tensor& from) { engine_.copy(to, from); });
    }
    return all;
  }

  /// Returns gradient tensors for the keys of all ranks. They are in partial_dtype and filled with zeros.
  [[nodiscard]] KeyTensors gradients() {
    const KeyTensors all = all_keys(call_.partial_dtype, call_.partial_dtype);
    engine_.fill(all.k, 0);
    engine_.fill(all.v, 0);
    return all;
  }

  /// Sends each owner the sums for its keys. Adds the other ranks' sums for this rank's keys, in the order of ranks,
  /// and stores dk and dv.
  void scatter(const KeyTensors& sums) {
    std::vector<Delivery> sends, receives;
    const std::size_t outgoing = 1 + sees_.size(), incoming = outgoing + sees_.size();
    for (std::size_t i = 0; i < sees_.size(); ++i) {
      const Parcel& parcel = parcels_[outgoing + i];
      for_each_run(sums, sees_[i], parcel, [&](const Tensor& from, const Tensor& to) { engine_.copy(to, from); });
      sends.push_back({sees_[i], &parcel});
    }
    for (std::size_t i = 0; i < seen_by_.size(); ++i) receives.push_back({seen_by_[i], &parcels_[incoming + i]});
    engine_.exchange(Channel::kKeyGradients, sends, receives);
    for (const Delivery& d : receives) {
      for_each_run(sums, plan_.rank(), *d.parcel, [&](const Tensor& to, const Tensor& from) { engine_.add(to, from); });
    }
    Parcel own;
    own.tensors = {call_.problem.dk, call_.problem.dv};
    for_each_run(sums, plan_.rank(), own, [&](const Tensor& from, const Tensor& to) { engine_.copy(to, from); });
  }

 private:
  [[nodiscard]] KeyTensors all_keys(DType k_dtype, DType v_dtype) {
    Shape k = call_.problem.k.shape, v = call_.problem.v.shape;
    k[2] = v[2] = plan_.offsets_k().back();
    return {engine_.tensor(k_dtype, k), engine_.tensor(v_dtype, v)};
  }

  /// Calls visit() for each run of the owner's keys, and again for each run of the values. The two arguments of visit()
  /// are the run's rows in `all` and the same rows in the owner's tensors.
  template <class Visit>
  void for_each_run(const KeyTensors& all, int owner, const Parcel& own, Visit visit) const {
    const std::vector<Run>& local = plan_.keys(owner);
    const std::vector<Run> placed = plan_.gathered_keys(owner);
    for (std::size_t n = 0; n < local.size(); ++n) {
      const std::int64_t at = placed[n].local_begin, begin = local[n].local_begin, length = local[n].length;
      visit(rows_of(all.k, at, length), rows_of(own.tensors[0], begin, length));
      visit(rows_of(all.v, at, length), rows_of(own.tensors[1], begin, length));
    }
  }

  Engine& engine_;
  const Call& call_;
  const Plan& plan_;
  bool has_gradients_;
  std::vector<int> seen_by_, sees_;
  std::vector<Parcel> parcels_;
};

}  // namespace

void gather_forward(Engine& engine, const Call& call, const Tensor& o, const Tensor* lse) {
  Gather gather(engine, call);
  const KeyTensors keys = gather.gather();
  Parts parts(call);
  engine.begin_rows();
  {
    const TimedSpan span(engine.timeline(), Activity::kCompute, 1, engine.stream());
    for (const Piece& piece : call.plan.gathered_pieces(call.plan.rank())) {
      engine.add_forward(piece, parts.problem(piece, keys.k, keys.v));
    }
  }
  engine.store_rows(o, lse);
  engine.finish();
}

void gather_backward(Engine& engine, const Call& call) {
  Gather gather(engine, call);
  const KeyTensors keys = gather.gather();
  const KeyTensors sums = gather.gradients();
  Parts parts(call);
  engine.begin_dq();
  {
    const TimedSpan span(engine.timeline(), Activity::kCompute, 1, engine.stream());
    for (const Piece& piece : call.plan.gathered_pieces(call.plan.rank())) {
      engine.add_backward(piece, parts.problem(piece, keys.k, keys.v), sums.k, sums.v);
    }
  }
  engine.store_dq(call.problem.dq);
  gather.scatter(sums);
  engine.finish();
}

}  // namespace attend::ring
