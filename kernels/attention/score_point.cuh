// Where a user's score function is evaluated.
#pragma once

#include "../common/portable.cuh"

namespace attend {

// Rows and keys are counted from the sequence's first. batch: the number of the sequence; head: of q. row_number and
// key_number: row and key once more, exact below 2^21, where they and differences of them cost an addition of floats.
template <class Float>
struct ScorePoint {
  Float score;
  int batch, head, row, key;
  int rows_length, keys_length;
  Float row_number, key_number;
};

}  // namespace attend
