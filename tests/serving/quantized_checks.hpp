// Checks of decode() with 8-bit caches, their elements and factors, for any device.
#pragma once

#include <cstdint>
#include <vector>

#include "serving/append_and_decode.hpp"
#include "serving/cache_case.hpp"

namespace attend::test {

/// Returns the value of an f8e4m3 with these bits, by the definition of the format.
[[nodiscard]] double e4m3_by_definition(int bits);

/// Returns the value of an element with these 8 bits.
[[nodiscard]] double number_of(DType dtype, int bits);

/// Query rows of f16, two sequences and pages of 16 keys.
[[nodiscard]] CacheFacts eight_bit_facts(DType dtype, Descales descales);

/// With a single key, o equals its value exactly.
void check_every_element(DType dtype, const std::vector<std::int64_t>& columns, const Decode& decode);
/// The same factor everywhere, stored in a tensor of any shape, gives the same bits. Without rows_too, factors per row
/// may differ by rounding.
void check_shapes_of_factors(DType dtype, bool rows_too, const Decode& decode);
/// A factor that is NaN or infinite makes the rows that see its key NaN. Rows that do not see the key have the same
/// bits for any factor.
void check_factors_of_some_rows(DType dtype, const Decode& decode);
/// Decoding appended keys gives the result for the original keys, up to the rounding of the elements.
void check_eight_bits_in_one_call(DType dtype, const ServingCalls& calls);

}  // namespace attend::test
