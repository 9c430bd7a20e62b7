// The covering array of decode calls: every kind of cache, option and length, and the comparison of each with float64.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "serving/cache_case.hpp"

namespace attend::test {

/// What the cases may be. Each list is a factor of the covering array; other factors are those of every machine.
struct DecodeValues {
  /// Columns of the keys and values. 576: the values lie in the keys. With a dtype, that and the cache's go with them:
  /// so a machine that compiles a kernel for each has few.
  struct Columns {
    std::int64_t k, v;
    std::optional<DType> dtype = {};
    std::optional<DType> cache_dtype = {};  ///< with dtype; absent: it is that of q
  };
  /// Query rows of each sequence. Packed: any number below.
  struct Rows {
    std::int64_t count;
    enum class Kind : std::uint8_t { kPlain, kTree, kPacked } kind = Kind::kPlain;
  };
  std::vector<Columns> columns;
  std::vector<std::int64_t> groups;
  std::vector<std::int64_t> page_sizes;  ///< 0: contiguous. Every other entry goes with batch_idx
  std::vector<Layout> layouts;
  std::vector<Rows> rows;
  std::int64_t long_capacity = 0;  ///< of a quarter of the cases; 0: there are none
  std::int64_t most_rows = 1000;   ///< of one key head, in a sequence: cases with more have one key head
};

struct DecodeCase {
  CacheFacts facts;
  std::uint64_t seed;
  int columns;  ///< index in DecodeValues::columns
};

/// At least `least` cases: whole covering arrays, of the seeds from first_seed on.
[[nodiscard]] std::vector<DecodeCase> decode_cases(const DecodeValues& values, int least, std::uint64_t first_seed = 0);

/// How the results' elements are computed.
enum class Products : std::uint8_t {
  kF32,   ///< in float32, and rounded once, as the truth is
  kHalf,  ///< the weights p are rounded to the dtype of q first: tensor cores do
};

/// The largest errors of cases so far, in units of their budgets, with the cases that have them.
struct DecodeErrors {
  double o = 0, lse = 0;
  std::string o_case = "none", lse_case = "none";
  int cases = 0;

  [[nodiscard]] std::string text() const;
};

/// Runs the case, expects it to be the reference's result but for rounding, and takes note of the errors.
void check_decode(const DecodeCase& c, const Decode& decode, DecodeErrors& errors, Products products = Products::kF32);

}  // namespace attend::test
