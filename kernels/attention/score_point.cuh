// Where a user's score function is evaluated, and along which lines of pairs its gradients are the same.
#pragma once

#include "../common/portable.cuh"

namespace attend {

// Rows and keys are counted from the sequence's first. batch: the number of the sequence; head: of q. row_number and
// key_number: row and key once more, exact below 2^21, where each costs an addition of floats. So does row - key, which
// is distance_base + distance_step: what is the same for all scores of a tile is added to the base.
template <class Float>
struct ScorePoint {
  Float score;
  int batch, head, row, key;
  int rows_length, keys_length;
  Float row_number, key_number, distance_base, distance_step;
};

// Pairs that read the same elements of captures, with the same derivatives: those of a row, of a key, or of a distance.
// kPair: each alone.
enum class GradientLines { kRow, kKey, kDistance, kPair };

}  // namespace attend
