// Checks that every tensor-core forward family must pass, selected by the family's name, and helpers for their tests.
#pragma once

#include <string_view>

#include "support/attention_case.hpp"

namespace attend::test {

[[nodiscard]] Tensor on_gpu(const TensorBuffer& buffer);

/// One batch entry, without options.
[[nodiscard]] AttentionCase plain(DType dtype, std::int64_t heads_q, std::int64_t heads_k, std::int64_t seqlen_q,
                                  std::int64_t seqlen_k, std::int64_t head_dim, bool causal);

/// Submits the forward call to a stream without waiting for it.
void submit(std::string_view compute, const Inputs& in, const Outputs& out, Stream stream);

/// Checks that `rounds` calls in a row give the same bits.
void check_repeats(std::string_view compute, const AttentionCase& c, int rounds);

/// Checks that a finite bias hides no key, however low it is: rows under only such a bias are means, as without a bias.
void check_finite_bias(std::string_view compute, std::int64_t head_dim, DType dtype = DType::kBF16);

/// Checks that results do not depend on the contents of the rest of the batch.
void check_neighbours(std::string_view compute, std::int64_t head_dim, bool packed, DType dtype = DType::kBF16);

/// Checks scores up to 1e30: only the key with the largest score has weight, and keys that share the maximum share the
/// row.
void check_large_scores(std::string_view compute, std::int64_t head_dim, DType dtype = DType::kBF16);

}  // namespace attend::test
