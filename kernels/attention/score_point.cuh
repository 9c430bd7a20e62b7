// The point at which a user's score function is evaluated, and the sets of pairs that share its gradients.
#pragma once

#include "../common/portable.cuh"

namespace attend {

// Rows and keys are counted from the sequence's first. batch: number of the sequence; head: of q. row_number and
// key_number are row and key as floats, exact below 2^21; each costs one float addition. row - key is distance_base +
// distance_step. A term that is the same for all scores of a tile is added to the base.
template <class Float>
struct ScorePoint {
  Float score;
  int batch, head, row, key;
  int rows_length, keys_length;
  Float row_number, key_number, distance_base, distance_step;
};

// Pairs that read the same elements of captures, with the same derivatives: those of a row, of a key, or of a distance.
// kPair: each pair is separate.
enum class GradientLines { kRow, kKey, kDistance, kPair };

}  // namespace attend
