#include "ring/algorithms/head_exchange.hpp"

#include <utility>

#include "ring/engine/block.hpp"

namespace attend::ring {

HeadExchange::HeadExchange(Engine& engine, HeadLayout layout, std::vector<Dealt> in, std::vector<Dealt> out)
    : engine_(engine), layout_(layout), in_(std::move(in)), out_(std::move(out)) {
  std::vector<TensorSpecs> specs;
  const auto add = [&](const std::vector<Dealt>& all, bool of_peer) {
    for (int peer = 0; peer < layout_.size(); ++peer) {
      TensorSpecs spec;
      const int holder = of_peer ? peer : layout_.mine();  // the member of the group that holds the rows
      for (const Dealt& d : all) {
        Shape shape = d.heads.shape;
        shape[2] = num_rows(layout_.runs(d.is_of_keys, holder));
        if (peer != layout_.mine()) spec.emplace_back(d.heads.dtype, shape);
      }
      specs.push_back(spec);
    }
  };
  add(in_, false);  // the order must be that of the enumerators of Way
  add(in_, true);
  add(out_, true);
  add(out_, false);
  parcels_ = engine.parcels(specs);
}

void HeadExchange::to_heads() {
  for_each_parcel(in_, kSendInputs, [&](const Dealt& d, int peer, const Tensor& parcel) {
    engine_.copy(parcel, share_of_heads(d.rows, peer, layout_.size()));
  });
  exchange(kSendInputs, kReceiveInputs);
  for_each_parcel(in_, kReceiveInputs, [&](const Dealt& d, int peer, const Tensor& parcel) {
    for_each_run(d, peer, [&](const Tensor& whole, const Run& run) {
      engine_.copy(whole, rows_of(parcel, run.local_begin, run.length));
    });
  });
  for (const Dealt& d : in_) {
    const Tensor own = share_of_heads(d.rows, layout_.mine(), layout_.size());
    for_each_run(d, layout_.mine(), [&](const Tensor& whole, const Run& run) {
      engine_.copy(whole, rows_of(own, run.local_begin, run.length));
    });
  }
}

void HeadExchange::to_rows() {
  for_each_parcel(out_, kSendResults, [&](const Dealt& d, int peer, const Tensor& parcel) {
    for_each_run(d, peer, [&](const Tensor& whole, const Run& run) {
      engine_.copy(rows_of(parcel, run.local_begin, run.length), whole);
    });
  });
  exchange(kSendResults, kReceiveResults);
  for_each_parcel(out_, kReceiveResults, [&](const Dealt& d, int peer, const Tensor& parcel) {
    engine_.copy(share_of_heads(d.rows, peer, layout_.size()), parcel);
  });
  for (const Dealt& d : out_) {
    const Tensor own = share_of_heads(d.rows, layout_.mine(), layout_.size());
    for_each_run(d, layout_.mine(), [&](const Tensor& whole, const Run& run) {
      engine_.copy(rows_of(own, run.local_begin, run.length), whole);
    });
  }
}

template <class Visit>
void HeadExchange::for_each_parcel(const std::vector<Dealt>& all, Way way, Visit visit) const {
  for (int peer = 0; peer < layout_.size(); ++peer) {
    if (peer == layout_.mine()) continue;
    for (std::size_t i = 0; i < all.size(); ++i) visit(all[i], peer, parcel(way, peer).tensors[i]);
  }
}

/// Calls visit() for each run of the member. The arguments of visit() are the run and the same rows in d.heads.
template <class Visit>
void HeadExchange::for_each_run(const Dealt& d, int member, Visit visit) const {
  for (const Run& run : layout_.runs(d.is_of_keys, member)) {
    const HeadLayout::Place place = layout_.placed(d.is_of_keys, run);
    Tensor whole = rows_of(d.heads, place.begin, run.length);
    whole.stride[2] *= place.step;
    visit(whole, run);
  }
}

void HeadExchange::exchange(Way sent, Way received) {
  std::vector<Delivery> sends, receives;
  for (int peer = 0; peer < layout_.size(); ++peer) {
    if (peer == layout_.mine()) continue;
    sends.push_back({layout_.rank(peer), &parcel(sent, peer)});
    receives.push_back({layout_.rank(peer), &parcel(received, peer)});
  }
  engine_.exchange(Channel::kHeads, sends, receives);
}

}  // namespace attend::ring
