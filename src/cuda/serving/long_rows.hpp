// Sequences with many query rows over a cache, on Hopper's tensor cores: the part of decode() that the kernels for few
// rows leave to sm90_forward.
//
// A sequence goes one way or the other by its own number of rows, and by facts that are those of the whole call: so its
// bits do not depend on its neighbours. The number is on the device: both kernels are launched, and each passes over
// the sequences of the other.
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

/// Sequences with more rows are long: 64, as many as a tree may have, or all that there can be. The other kernel has a
/// block for 128 rows of a head, which reads all keys. So where heads are few it is faster with many rows only.
[[nodiscard]] std::int64_t most_decode_rows(LongRows by, std::int64_t num_heads_q);

/// The kernel that takes the problem's sequences with more than `most_rows` rows, or nothing: then they are computed as
/// short ones are.
[[nodiscard]] std::optional<Sm90ForwardVariant> long_rows_variant(const core::DecodeProblem& p, const Arch& arch,
                                                                  std::int64_t most_rows);

[[nodiscard]] KernelSpec long_rows_spec(const Sm90ForwardVariant& variant, const char* arch);

/// Blocks of the launch, on a GPU with so many multiprocessors.
[[nodiscard]] std::uint32_t long_rows_blocks(const core::DecodeProblem& p, const Sm90ForwardVariant& variant,
                                             int num_multiprocessors);

/// Bytes of scratch for so many blocks.
[[nodiscard]] std::size_t long_rows_scratch_bytes(const Sm90ForwardVariant& variant, std::uint32_t blocks);

/// @param most_rows  sequences with more rows are long
/// @param counters   two numbers that are 0 before and after each launch (kernels/serving/decode_args.cuh)
/// @param scratch    long_rows_scratch_bytes()
[[nodiscard]] Sm90CachedArgs long_rows_args(const core::DecodeProblem& p, const Sm90ForwardVariant& variant,
                                            const AddedKeys& added, std::int64_t most_rows, uint32* counters,
                                            void* scratch);

/// A kernel of every kind that runs on the architecture, for the tests.
[[nodiscard]] std::vector<KernelSpec> long_rows_specs(const Arch& arch);

}  // namespace attend::cuda
