// The covering array of decode calls: every kind of cache, option and length, compared with float64.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "serving/cache_case.hpp"

namespace attend::test {

/// Values that the cases may have. Each list is a factor of the covering array. The other factors are the same for
/// every device.
struct DecodeValues {
  /// Columns of the keys and values. 576 means that the values are part of the keys. If dtype is set, the cases have
  /// that dtype and the cache's, so a device that compiles a kernel for each combination needs few.
  struct Columns {
    std::int64_t k, v;
    std::optional<DType> dtype = {};
    std::optional<DType> cache_dtype = {};  ///< used with dtype; absent: same as q
  };
  /// Query rows of each sequence. Packed sequences have fewer than this number, chosen at random.
  struct Rows {
    std::int64_t count;
    enum class Kind : std::uint8_t { kPlain, kTree, kPacked } kind = Kind::kPlain;
  };
  std::vector<Columns> columns;
  std::vector<std::int64_t> groups;
  std::vector<std::int64_t> page_sizes;  ///< 0 means contiguous. Every second entry is combined with batch_idx
  std::vector<Layout> layouts;
  std::vector<Rows> rows;
  std::int64_t long_capacity = 0;  ///< for a quarter of the cases; 0: none
  std::int64_t most_rows = 1000;   ///< per key head and sequence; cases with more rows have one key head
};

struct DecodeCase {
  CacheFacts facts;
  std::uint64_t seed;
  int columns;  ///< index in DecodeValues::columns
};

/// Returns at least `least` cases: complete covering arrays with the seeds from first_seed on.
[[nodiscard]] std::vector<DecodeCase> decode_cases(const DecodeValues& values, int least, std::uint64_t first_seed = 0);

/// Precision of the result's elements.
enum class Products : std::uint8_t {
  kF32,   ///< computed in float32 and rounded once, like the truth
  kHalf,  ///< the weights p are first rounded to the dtype of q, as tensor cores need
};

/// The largest errors of the cases so far, as fractions of their budgets, and the cases that have them.
struct DecodeErrors {
  double o = 0, lse = 0;
  std::string o_case = "none", lse_case = "none";
  int cases = 0;

  [[nodiscard]] std::string text() const;
};

/// Runs the case, expects the reference's result within rounding, and records the errors.
void check_decode(const DecodeCase& c, const Decode& decode, DecodeErrors& errors, Products products = Products::kF32);

}  // namespace attend::test
