// Computes sequences with many query rows over a cache on Hopper's tensor cores. The kernel sm90_forward computes these
// sequences of a decode() call, and the decode kernel skips them.
//
// Only two things determine which kernel computes a sequence: the number of query rows of the sequence, and properties
// of the complete call. A sequence therefore has bit-identical results in any batch. The host does not read the number
// of query rows, which is in GPU memory. Therefore both kernels are always launched, and each of them skips the
// sequences of the other.
#pragma once

#include <optional>
#include <vector>

#include "core/decode_problem.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/launch/sm90_forward_variant.hpp"
#include "cuda/serving/cache_args.hpp"
#include "cuda/serving/decode.hpp"
#include "kernels/sm90/sm90_cached_args.cuh"

namespace attend::cuda {

/// Returns the largest number of query rows of a sequence that the decode kernel computes. It is at least 64, the row
/// limit of a tree mask. It is the largest integer if the decode kernel computes all sequences. A block of sm90_forward
/// processes 128 rows of one head and reads all keys. With few heads there are few blocks, so sm90_forward is faster
/// only for more rows, and the limit is higher.
[[nodiscard]] std::int64_t most_decode_rows(LongRows by, std::int64_t num_heads_q);

/// Returns the variant of sm90_forward for sequences with more than `most_rows` query rows. Returns nothing if
/// sm90_forward does not support the problem. Then the decode kernel computes all sequences.
[[nodiscard]] std::optional<Sm90ForwardVariant> long_rows_variant(const core::DecodeProblem& p, const Arch& arch,
                                                                  std::int64_t most_rows);

[[nodiscard]] KernelSpec long_rows_spec(const Sm90ForwardVariant& variant, const char* arch);

/// Returns the number of blocks in the grid.
[[nodiscard]] std::uint32_t long_rows_blocks(const core::DecodeProblem& p, const Sm90ForwardVariant& variant,
                                             int num_multiprocessors);

/// Returns the size in bytes of the scratch memory for `blocks` blocks.
[[nodiscard]] std::size_t long_rows_scratch_bytes(const Sm90ForwardVariant& variant, std::uint32_t blocks);

/// Returns the kernel arguments.
/// @param most_rows  the kernel computes sequences with more query rows than this
/// @param counters   two counters in GPU memory that are 0 before and after each launch
///         (kernels/serving/decode_args.cuh)
/// @param scratch    GPU memory of long_rows_scratch_bytes() bytes
[[nodiscard]] Sm90CachedArgs long_rows_args(const core::DecodeProblem& p, const Sm90ForwardVariant& variant,
                                            const AddedKeys& added, std::int64_t most_rows, uint32* counters,
                                            void* scratch);

/// Returns the specs of example kernels that the architecture supports. Used by the tests.
[[nodiscard]] std::vector<KernelSpec> long_rows_specs(const Arch& arch);

}  // namespace attend::cuda
