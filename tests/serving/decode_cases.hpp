// The covering array of decode calls. The array covers every cache layout, option and length. The results are compared
// with float64.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "serving/cache_case.hpp"

namespace attend::test {

/// Values from which the cases are built. Each list is a factor of the covering array. The factors that are not listed
/// here are the same for every device.
struct DecodeValues {
  /// Number of columns of the keys and of the values. The number 576 means that the values are the first columns of the
  /// keys. If dtype is set, the cases use this dtype and cache_dtype only. This limits the number of kernels on a
  /// device that compiles one for each combination.
  struct Columns {
    std::int64_t k, v;
    std::optional<DType> dtype = {};
    std::optional<DType> cache_dtype = {};  ///< used only if dtype is set; unset means the dtype of q
  };
  /// Number of query rows of each sequence. If sequences are packed, each has a random number of rows up to `count`.
  struct Rows {
    std::int64_t count;
    enum class Kind : std::uint8_t { kPlain, kTree, kPacked } kind = Kind::kPlain;
  };
  std::vector<Columns> columns;
  std::vector<std::int64_t> groups;
  std::vector<std::int64_t> page_sizes;  ///< keys per page; 0 means contiguous. Every second entry is combined with
                                         ///< batch_idx.
  std::vector<Layout> layouts;
  std::vector<Rows> rows;
  std::int64_t long_capacity = 0;  ///< cache capacity in a quarter of the cases; 0 means that no case has a long cache
  std::int64_t most_rows = 1000;   ///< limit of query rows per key head and sequence; cases above the limit get one key
                                   ///< head
};

struct DecodeCase {
  CacheFacts facts;
  std::uint64_t seed;
  int columns;  ///< index of the case's entry in DecodeValues::columns
};

/// Returns at least `least` cases. The cases form complete covering arrays. The seed of the first array is first_seed,
/// and each further array uses the next seed.
[[nodiscard]] std::vector<DecodeCase> decode_cases(const DecodeValues& values, int least, std::uint64_t first_seed = 0);

/// Precision in which the tested device multiplies p and v.
enum class Products : std::uint8_t {
  kF32,   ///< o is computed in float32 and rounded once, like the expected values
  kHalf,  ///< p is first rounded to the dtype of q, as tensor cores require
};

/// The largest errors of all cases so far, and the cases in which they occurred. Each error is a fraction of the
/// allowed error.
struct DecodeErrors {
  double o = 0, lse = 0;
  std::string o_case = "none", lse_case = "none";
  int cases = 0;

  [[nodiscard]] std::string text() const;
};

/// Runs the case and records its errors. Expects that they stay within the allowance for rounding.
void check_decode(const DecodeCase& c, const Decode& decode, DecodeErrors& errors, Products products = Products::kF32);

}  // namespace attend::test
