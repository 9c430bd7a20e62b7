// Tracks the rows of a tensor that have a value, while parts write them run by run. The first part of a row stores,
// later parts add, and rows without any part are cleared at the end. This avoids clearing the tensor in advance.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/attention/key_range.cuh"

namespace attend::ring {

class WrittenRows {
 public:
  /// Returns the rows of [begin, end) that had no value, in order, and marks all of [begin, end) as written.
  std::vector<KeyRange> take(std::int64_t begin, std::int64_t end);

 private:
  std::vector<KeyRange> written_;  ///< in order; no two ranges touch
};

}  // namespace attend::ring
