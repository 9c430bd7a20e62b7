// Sequences with many query rows over a cache, on Hopper's tensor cores. sm90_forward computes this part of decode(),
// which the kernels for few rows skip.
//
// The kernel of a sequence depends only on the sequence's number of rows and on properties of the full call. The bits
// of its results therefore do not depend on other sequences. The number of rows is in device memory, so both kernels
// are launched, and each skips the sequences of the other.
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

/// Returns the largest number of rows of a sequence that is not long: 64, which is also the limit of a tree, or the
/// largest integer if no sequence is long. A block of sm90_forward processes 128 rows of one head and reads all keys.
/// With few heads it is therefore faster only for many rows, and the limit is higher.
[[nodiscard]] std::int64_t most_decode_rows(LongRows by, std::int64_t num_heads_q);

/// Returns the kernel for sequences with more than `most_rows` rows. Returns nothing if sm90_forward does not support
/// the problem; the kernel for few rows then computes all sequences.
[[nodiscard]] std::optional<Sm90ForwardVariant> long_rows_variant(const core::DecodeProblem& p, const Arch& arch,
                                                                  std::int64_t most_rows);

[[nodiscard]] KernelSpec long_rows_spec(const Sm90ForwardVariant& variant, const char* arch);

/// Returns the number of blocks of the launch.
[[nodiscard]] std::uint32_t long_rows_blocks(const core::DecodeProblem& p, const Sm90ForwardVariant& variant,
                                             int num_multiprocessors);

/// Returns the bytes of scratch memory for `blocks` blocks.
[[nodiscard]] std::size_t long_rows_scratch_bytes(const Sm90ForwardVariant& variant, std::uint32_t blocks);

/// @param most_rows  sequences with more rows are long
/// @param counters   two numbers that are 0 before and after each launch (kernels/serving/decode_args.cuh)
/// @param scratch    memory of long_rows_scratch_bytes() bytes
[[nodiscard]] Sm90CachedArgs long_rows_args(const core::DecodeProblem& p, const Sm90ForwardVariant& variant,
                                            const AddedKeys& added, std::int64_t most_rows, uint32* counters,
                                            void* scratch);

/// Returns one kernel of every kind that the architecture supports, for the tests.
[[nodiscard]] std::vector<KernelSpec> long_rows_specs(const Arch& arch);

}  // namespace attend::cuda
