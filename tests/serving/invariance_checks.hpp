// Checks for any device that a row of decode() depends only on the keys that it sees, bit for bit.
#pragma once

#include <cstdint>
#include <vector>

#include "serving/cache_case.hpp"

namespace attend::test {

/// Returns a cache of the dtype. An 8-bit cache has a factor for each row, and query rows of bf16.
[[nodiscard]] CacheFacts invariance_facts(DType dtype);

/// Four sequences, one of them with many chunks of keys, and every option that can differ between sequences.
[[nodiscard]] CacheFacts long_facts(DType dtype);

/// Decodes only the given sequences of a case, in that order, and returns their bytes of o and lse. The case must not
/// be packed and must not have batch_idx or per-sequence factors.
[[nodiscard]] std::vector<std::vector<std::byte>> decode_some(const CacheCase& problem,
                                                              const std::vector<std::int64_t>& sequences,
                                                              const Decode& decode);

void check_sequences_alone_and_in_a_batch(DType dtype, const Decode& decode);
/// Checks the same if a window or padding hides the first keys.
void check_keys_that_begin_late(DType dtype, const Decode& decode);
/// Checks the same keys in pages of every size, and without pages. `facts` must describe a contiguous cache.
void check_page_sizes(const CacheFacts& facts, const Decode& decode);
/// Row n of a prefill must equal the row that decoding gives when the cache has the same keys, and rows may be split
/// into any chunks. The rows and lengths of `facts` are ignored.
void check_rows_in_any_chunks(const CacheFacts& facts, const Decode& decode);
/// NaN and infinities of a key reach the rows that see it, and no others.
void check_nonfinite_keys(DType dtype, const Decode& decode);
/// A key that row 0 does not see has NaN in one column of its value. Tests every column, also in the last vector of a
/// row.
void check_nan_in_any_column(DType dtype, const std::vector<std::int64_t>& head_dims, const Decode& decode);
/// A key whose score is -inf has weight 0. If its value is infinite, the product must be NaN, whichever chunk contains
/// the key.
void check_infinity_times_no_weight(DType dtype, std::int64_t head_dim, const Decode& decode);

}  // namespace attend::test
