// Which rows of a tensor have a value, where parts give them run by run: what comes first is stored, what comes later
// is added, and rows for which nothing came are cleared in the end. So nothing is cleared before.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/attention/key_range.cuh"

namespace attend::ring {

class WrittenRows {
 public:
  /// Those of the rows [begin, end) that had no value, in order. From now on all have one.
  std::vector<KeyRange> take(std::int64_t begin, std::int64_t end);

 private:
  std::vector<KeyRange> written_;  ///< in order; no two touch
};

}  // namespace attend::ring
