// Checks that every tensor-core forward family must pass. A family is selected by its name. Also contains helpers for
// the families' tests.
#pragma once

#include <string_view>

#include "support/attention_case.hpp"

namespace attend::test {

[[nodiscard]] Tensor on_gpu(const TensorBuffer& buffer);

/// Returns a case with one batch entry and without options.
[[nodiscard]] AttentionCase plain(DType dtype, std::int64_t heads_q, std::int64_t heads_k, std::int64_t seqlen_q,
                                  std::int64_t seqlen_k, std::int64_t head_dim, bool causal);

/// Submits the forward call to a stream without waiting for it.
void submit(std::string_view compute, const Inputs& in, const Outputs& out, Stream stream);

/// Checks that `rounds` identical calls give the same bits.
void check_repeats(std::string_view compute, const AttentionCase& c, int rounds);

/// Checks that a finite bias never hides a key, however low it is. In rows where every key has the same low bias, o
/// must be the same mean as without a bias.
void check_finite_bias(std::string_view compute, std::int64_t head_dim, DType dtype = DType::kBF16);

/// Checks that the results of a batch entry do not depend on the contents of the other entries.
void check_neighbours(std::string_view compute, std::int64_t head_dim, bool packed, DType dtype = DType::kBF16);

/// Checks scores up to 1e30. Only the key with the largest score may have weight. Keys that share the largest score
/// share the weight.
void check_large_scores(std::string_view compute, std::int64_t head_dim, DType dtype = DType::kBF16);

}  // namespace attend::test
