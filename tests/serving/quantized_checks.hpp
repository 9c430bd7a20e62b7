// decode() of caches of 8 bits: their elements and factors. Checks for any machine.
#pragma once

#include <cstdint>
#include <vector>

#include "serving/append_and_decode.hpp"
#include "serving/cache_case.hpp"

namespace attend::test {

/// What an f8e4m3 of these bits is, by the definition of the format.
[[nodiscard]] double e4m3_by_definition(int bits);

/// What an element of these 8 bits is.
[[nodiscard]] double number_of(DType dtype, int bits);

/// Query rows of f16, two sequences and pages of 16 keys.
[[nodiscard]] CacheFacts eight_bit_facts(DType dtype, Descales descales);

/// With one key o is its value, exactly.
void check_every_element(DType dtype, const std::vector<std::int64_t>& columns, const Decode& decode);
/// The same factor for everything, said in any way, gives the same bits; as factors of rows, without
/// rows_too, the same but for roundings.
void check_shapes_of_factors(DType dtype, bool rows_too, const Decode& decode);
/// A factor that is NaN or infinite makes the rows NaN that see its key. Rows that do not see a key have the same bits
/// whatever its factors are.
void check_factors_of_some_rows(DType dtype, const Decode& decode);
/// What is appended and decoded is what was given, but for the rounding of its elements.
void check_eight_bits_in_one_call(DType dtype, const ServingCalls& calls);

}  // namespace attend::test
