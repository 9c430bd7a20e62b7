// Checks that the bits of a row of decode() depend only on the keys that the row sees. The checks run on any device.
#pragma once

#include <cstdint>
#include <vector>

#include "serving/cache_case.hpp"

namespace attend::test {

/// Returns the properties of a decode call with a cache of `dtype`. An 8-bit cache has one descale factor per row, and
/// bf16 queries.
[[nodiscard]] CacheFacts invariance_facts(DType dtype);

/// Returns four sequences that use every option that can differ between sequences. One sequence has many chunks of
/// keys.
[[nodiscard]] CacheFacts long_facts(DType dtype);

/// Decodes only the given sequences of a case, in the given order. Returns the bytes of o and lse for each of them. The
/// case must not be packed and must not use batch_idx or factors per sequence.
[[nodiscard]] std::vector<std::vector<std::byte>> decode_some(const CacheCase& problem,
                                                              const std::vector<std::int64_t>& sequences,
                                                              const Decode& decode);

void check_sequences_alone_and_in_a_batch(DType dtype, const Decode& decode);
/// Runs check_sequences_alone_and_in_a_batch() on sequences whose first keys are hidden by a window or by padding.
void check_keys_that_begin_late(DType dtype, const Decode& decode);
/// Checks that the page size does not change the bits of the result. Compares a contiguous cache with pages of every
/// size. `facts` must describe the contiguous cache.
void check_page_sizes(const CacheFacts& facts, const Decode& decode);
/// Checks that a prefill gives the same rows as decoding. Row n of the prefill must equal the row that decode()
/// computes when the cache holds only the keys that row n sees. The prefill may be split into chunks of any size. The
/// rows and lengths of `facts` are ignored.
void check_rows_in_any_chunks(const CacheFacts& facts, const Decode& decode);
/// Checks that a NaN or infinity in a key reaches the rows that see the key, and no other rows.
void check_nonfinite_keys(DType dtype, const Decode& decode);
/// Sets one column of a value to NaN. Row 0 does not see its key, so row 0 must not change. Tests every column,
/// including the last vector of a row.
void check_nan_in_any_column(DType dtype, const std::vector<std::int64_t>& head_dims, const Decode& decode);
/// Checks a key with score -inf, whose weight is 0, and an infinite value. The product must be NaN, no matter which
/// chunk contains the key.
void check_infinity_times_no_weight(DType dtype, std::int64_t head_dim, const Decode& decode);

}  // namespace attend::test
