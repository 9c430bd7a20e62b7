// What a row of decode() is made of: its own keys, and nothing else. Bit for bit. Checks for any machine.
#pragma once

#include <cstdint>
#include <vector>

#include "serving/cache_case.hpp"

namespace attend::test {

/// A cache of the dtype. One of 8 bits has a factor for each row, and query rows of bf16.
[[nodiscard]] CacheFacts invariance_facts(DType dtype);

/// Four sequences, one of them of many chunks of keys, with every option that an element of the batch can have.
[[nodiscard]] CacheFacts long_facts(DType dtype);

/// Bytes of o and lse of the sequences of a case, computed by a call with those alone, in that order. The case is not
/// packed, has no batch_idx, and no factors by sequence.
[[nodiscard]] std::vector<std::vector<std::byte>> decode_some(const CacheCase& problem,
                                                              const std::vector<std::int64_t>& sequences,
                                                              const Decode& decode);

void check_sequences_alone_and_in_a_batch(DType dtype, const Decode& decode);
/// Likewise, where a window or padding hides the first keys.
void check_keys_that_begin_late(DType dtype, const Decode& decode);
/// The same keys in pages of any size, and in none: `facts` are of a contiguous cache.
void check_page_sizes(const CacheFacts& facts, const Decode& decode);
/// Row n of a prefill is the row that decoding gives when the cache has its keys, and rows may come in any chunks. The
/// rows and lengths of `facts` play no part.
void check_rows_in_any_chunks(const CacheFacts& facts, const Decode& decode);
/// NaN and infinities of a key reach the rows that see it, and no others.
void check_nonfinite_keys(DType dtype, const Decode& decode);
/// A key that row 0 does not see has NaN in one column of its value: of any column, also in the last vector of a row.
void check_nan_in_any_column(DType dtype, const std::vector<std::int64_t>& head_dims, const Decode& decode);
/// A key whose score is -inf has no weight, but an infinite value times 0 is NaN: whichever chunk it lies in.
void check_infinity_times_no_weight(DType dtype, std::int64_t head_dim, const Decode& decode);

}  // namespace attend::test
