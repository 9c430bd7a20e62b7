// The GPU implementation of attend::decode, which computes attention over a key-value cache.
#pragma once

#include <cstdint>

#include "core/decode_problem.hpp"
#include "cuda/serving/cache_args.hpp"

namespace attend::cuda {

/// Selects the kernel for sequences with many query rows.
enum class LongRows : std::uint8_t {
  kDecode,  ///< the decode kernel, which is fast for few query rows
  /// sm90_forward for sequences with more than 64 query rows, if it supports the problem (long_rows.hpp).
  kSm90Forward,
  kFaster,  ///< sm90_forward for sequences with enough query rows that it is faster than the decode kernel
};

/// Launches the decode kernels on the stream. All tensors and index arrays must be on the same GPU.
/// @param added  keys that an earlier append on the same stream writes. The kernels include them in the lengths of the
///         sequences
/// @throws Error (kMissingHardware, kUnsupported) if the library does not support the GPU or the problem. Error
///         (kInvalidArgument) if ATTEND_CHECK=1 is set and an index array has invalid values; this check waits for the
///         stream. If an error is thrown, nothing is written.
void decode(const core::DecodeProblem& p, const AddedKeys& added, LongRows by, Stream stream);

/// Throws the same errors as decode(), but launches nothing.
void require_decode(const core::DecodeProblem& p, LongRows by, Stream stream);

}  // namespace attend::cuda
