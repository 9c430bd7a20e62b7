// The point at which a user's score function is evaluated, and the sets of pairs that share their gradients.
#pragma once

#include "../common/portable.cuh"

namespace attend {

// Inputs of a score function. Rows and keys are counted from the start of the sequence. `batch` is the number of the
// sequence, and `head` the query head. row_number and key_number are the row and the key as floats, exact below 2^21.
// Each of these two floats is computed by one addition. row - key is distance_base + distance_step. A summand that is
// the same for all scores of a tile is part of distance_base.
template <class Float>
struct ScorePoint {
  Float score;
  int batch, head, row, key;
  int rows_length, keys_length;
  Float row_number, key_number, distance_base, distance_step;
};

// Sets of pairs that read the same elements of captured tensors with the same derivatives. Such pairs share a row, a
// key or a distance. kPair means that each pair is a separate set.
enum class GradientLines { kRow, kKey, kDistance, kPair };

}  // namespace attend
