// attend::decode on a GPU.
#pragma once

#include "core/decode_problem.hpp"
#include "cuda/serving/cache_args.hpp"

namespace attend::cuda {

/// Puts the problem on the stream. Its tensors and arrays lie on one GPU.
/// @param added     rows that an append before it on the stream writes: they count as keys
/// @param one_way   rows of all sequences are computed by the same kernels, however many a sequence has
/// @throws Error (kMissingHardware, kUnsupported) where the library cannot compute it; with ATTEND_CHECK=1
///         (kInvalidArgument) for entries at fault, which it waits for the stream for. Then nothing was written.
void decode(const core::DecodeProblem& p, const AddedKeys& added, bool one_way, Stream stream);

/// Throws what decode() would throw for the problem, and computes nothing.
void require_decode(const core::DecodeProblem& p, bool one_way, Stream stream);

}  // namespace attend::cuda
