// attend::decode on a GPU.
#pragma once

#include <cstdint>

#include "core/decode_problem.hpp"
#include "cuda/serving/cache_args.hpp"

namespace attend::cuda {

/// Who computes sequences with many rows.
enum class LongRows : std::uint8_t {
  kDecode,       ///< the kernel for few rows
  kSm90Forward,  ///< that of training, from 65 rows on, where it takes them (long_rows.hpp)
  kFaster,       ///< that of training from where it is faster
};

/// Puts the problem on the stream. Its tensors and arrays lie on one GPU.
/// @param added     rows that an append before it on the stream writes: they count as keys
/// @throws Error (kMissingHardware, kUnsupported) where the library cannot compute it; with ATTEND_CHECK=1
///         (kInvalidArgument) for entries at fault, which it waits for the stream for. Then nothing was written.
void decode(const core::DecodeProblem& p, const AddedKeys& added, LongRows by, Stream stream);

/// Throws what decode() would throw for the problem, and computes nothing.
void require_decode(const core::DecodeProblem& p, LongRows by, Stream stream);

}  // namespace attend::cuda
