// Checks of decode() with 8-bit caches on any device. The checks cover the elements and the descale factors.
#pragma once

#include <cstdint>
#include <vector>

#include "serving/append_and_decode.hpp"
#include "serving/cache_case.hpp"

namespace attend::test {

/// Returns the value of an f8e4m3 with the given bits. Computes it from the definition of the format.
[[nodiscard]] double e4m3_by_definition(int bits);

/// Returns the value of an 8-bit element with the given bits.
[[nodiscard]] double number_of(DType dtype, int bits);

/// Returns the properties of a decode call with f16 query rows, two sequences and pages of 16 keys.
[[nodiscard]] CacheFacts eight_bit_facts(DType dtype, Descales descales);

/// Checks every possible element of an 8-bit value. Each sequence has a single key, so o must equal its value exactly.
void check_every_element(DType dtype, const std::vector<std::int64_t>& columns, const Decode& decode);
/// Checks that one factor for the entire cache gives the same bits, whatever the shape of the tensor that stores it. If
/// rows_too is not set, results with one factor per row may differ by rounding.
void check_shapes_of_factors(DType dtype, bool rows_too, const Decode& decode);
/// Sets the factor of one key to NaN or infinity. The rows that see this key must be NaN. The other rows must keep
/// their bits.
void check_factors_of_some_rows(DType dtype, const Decode& decode);
/// Checks append and decode in one call on an 8-bit cache. The written keys must match the originals up to the rounding
/// to 8 bits. The decoded rows must have the same bits as in a separate decode() call.
void check_eight_bits_in_one_call(DType dtype, const ServingCalls& calls);

}  // namespace attend::test
