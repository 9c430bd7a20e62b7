// The first thing of every call: the ranks compare their arguments, and each makes the same plan.
#pragma once

#include <optional>

#include "ring/plan/call.hpp"
#include "ring/transport/transport.hpp"

namespace attend::ring {

/// A rank's arguments, by name.
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

/// A rendezvous of all ranks. Waits for `stream` where packed sequences' offsets are on a GPU.
/// @throws Error, the same on every rank, where a rank refuses its arguments or they differ.
[[nodiscard]] Call agree_on(Transport& transport, Arguments arguments, Stream stream);

}  // namespace attend::ring
