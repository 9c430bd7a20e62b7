// Tracks the rows of a tensor that have a value, while parts write them run by run. The first part that writes a row
// stores its values, and later parts add. Rows that no part has written are set to 0 at the end. Thus the tensor need
// not be cleared in advance.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/attention/key_range.cuh"

namespace attend::ring {

class WrittenRows {
 public:
  /// Marks rows [begin, end) as written. Returns those of them that had no value before, in order.
  std::vector<KeyRange> take(std::int64_t begin, std::int64_t end);

 private:
  std::vector<KeyRange> written_;  ///< in ascending order; two ranges never touch
};

}  // namespace attend::ring
