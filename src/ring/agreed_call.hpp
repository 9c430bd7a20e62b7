// First phase of every call: the ranks compare their arguments, and each makes the same plan.
#pragma once

#include <optional>

#include "ring/plan/call.hpp"
#include "ring/transport/transport.hpp"

namespace attend::ring {

/// A rank's arguments, by name.
struct Arguments {
  const char* function;  ///< name of the API function
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

/// Compares the arguments of all ranks, and returns when all ranks have called. Waits for `stream` if the offsets of
/// packed sequences are on a GPU.
/// @throws Error, the same on every rank, if a rank refuses its arguments or they differ.
[[nodiscard]] Call agree_on(Transport& transport, Arguments arguments, Stream stream);

}  // namespace attend::ring
