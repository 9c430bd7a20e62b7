// Messages that redistribute tensors among ranks. Before the exchange, a rank has some rows of all heads. After it, the
// rank has all rows of some heads. The reverse direction is also supported.
#pragma once

#include <vector>

#include "ring/engine/engine.hpp"
#include "ring/plan/head_share.hpp"

namespace attend::ring {

/// Redistributes tensors by means of an Engine. Each direction needs one exchange.
class HeadExchange {
 public:
  /// @param in   tensors that to_heads() converts from some rows of all heads to all rows of some heads
  /// @param out  tensors that to_rows() converts from all rows of some heads to some rows of all heads
  HeadExchange(Engine& engine, HeadLayout layout, std::vector<Dealt> in, std::vector<Dealt> out);

  void to_heads();
  void to_rows();

 private:
  enum Way : std::size_t { kSendInputs, kReceiveInputs, kSendResults, kReceiveResults };

  [[nodiscard]] const Parcel& parcel(Way way, int peer) const {
    return parcels_[way * static_cast<std::size_t>(layout_.size()) + static_cast<std::size_t>(peer)];
  }
  template <class Visit>
  void for_each_parcel(const std::vector<Dealt>& all, Way way, Visit visit) const;
  template <class Visit>
  void for_each_run(const Dealt& d, int member, Visit visit) const;
  void exchange(Way sent, Way received);

  Engine& engine_;
  HeadLayout layout_;
  std::vector<Dealt> in_, out_;
  std::vector<Parcel> parcels_;
};

}  // namespace attend::ring
