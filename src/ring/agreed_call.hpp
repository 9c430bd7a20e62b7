// First phase of every call: the ranks compare their arguments, and each rank makes the same plan.
#pragma once

#include <optional>

#include "ring/plan/call.hpp"
#include "ring/transport/transport.hpp"

namespace attend::ring {

/// The arguments of one rank. The fields have the names of the API's arguments.
struct Arguments {
  const char* function;  ///< name of the API function that the rank has called
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

/// Compares the arguments of all ranks. Returns when all ranks have called. If the offsets of packed sequences are on a
/// GPU, waits for `stream`.
/// @throws Error if a rank refuses its arguments or the arguments differ. All ranks throw the same error.
[[nodiscard]] Call agree_on(Transport& transport, Arguments arguments, Stream stream);

}  // namespace attend::ring
