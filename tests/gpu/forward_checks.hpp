// Checks that every forward family on tensor cores has to pass, by the family's name; and what their tests share.
#pragma once

#include <string_view>

#include "support/attention_case.hpp"

namespace attend::test {

[[nodiscard]] Tensor on_gpu(const TensorBuffer& buffer);

/// One batch entry without options.
[[nodiscard]] AttentionCase plain(DType dtype, std::int64_t heads_q, std::int64_t heads_k, std::int64_t seqlen_q,
                                  std::int64_t seqlen_k, std::int64_t head_dim, bool causal);

/// The forward call, on a stream and not waited for.
void submit(std::string_view compute, const Inputs& in, const Outputs& out, Stream stream);

/// As many calls in a row give the same bits.
void check_repeats(std::string_view compute, const AttentionCase& c, int rounds);

/// A finite bias, however low, hides nothing: rows under it alone are means, as those without a bias.
void check_finite_bias(std::string_view compute, std::int64_t head_dim, DType dtype = DType::kBF16);

/// Results do not depend on the rest of the batch, whatever that holds.
void check_neighbours(std::string_view compute, std::int64_t head_dim, bool packed, DType dtype = DType::kBF16);

/// Scores up to 1e30: the largest one's key is all that is seen, and keys that share it share the row.
void check_large_scores(std::string_view compute, std::int64_t head_dim, DType dtype = DType::kBF16);

}  // namespace attend::test
