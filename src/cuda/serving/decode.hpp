// attend::decode on a GPU.
#pragma once

#include <cstdint>

#include "core/decode_problem.hpp"
#include "cuda/serving/cache_args.hpp"

namespace attend::cuda {

/// The kernel for sequences with many rows.
enum class LongRows : std::uint8_t {
  kDecode,       ///< the kernel for few rows
  kSm90Forward,  ///< sm90_forward from 65 rows on, if it supports them (long_rows.hpp)
  kFaster,       ///< sm90_forward from the number of rows on at which it is faster
};

/// Launches decode on the stream. All tensors and arrays must be on one GPU.
/// @param added     rows that an earlier append on the stream writes; they count as keys
/// @throws Error (kMissingHardware, kUnsupported) if the library cannot compute the problem; (kInvalidArgument) for
///         invalid entries with ATTEND_CHECK=1, which waits for the stream. Nothing is written in these cases.
void decode(const core::DecodeProblem& p, const AddedKeys& added, LongRows by, Stream stream);

/// Throws the same errors as decode(), but computes nothing.
void require_decode(const core::DecodeProblem& p, LongRows by, Stream stream);

}  // namespace attend::cuda
