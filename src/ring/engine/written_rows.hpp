// Records which rows of a tensor have a value while parts write runs of rows. The first part that writes a row stores
// its values, and later parts add to them. At the end, rows that no part has written are set to 0. Thus the tensor need
// not be cleared in advance.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/attention/key_range.cuh"

namespace attend::ring {

class WrittenRows {
 public:
  /// Marks rows [begin, end) as written. Returns the ranges of these rows that had no value before, in ascending order.
  std::vector<KeyRange> take(std::int64_t begin, std::int64_t end);

 private:
  /// Ranges of rows that have a value, in ascending order; there is a gap between any two ranges.
  std::vector<KeyRange> written_;
};

}  // namespace attend::ring
