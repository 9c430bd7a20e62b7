// Where a user's score function is evaluated.
#pragma once

#include "../common/portable.cuh"

namespace attend {

// Rows and keys are counted from the sequence's first. batch: the number of the sequence; head: of q.
template <class Float>
struct ScorePoint {
  Float score;
  int batch, head, row, key;
  int rows_length, keys_length;
};

}  // namespace attend
