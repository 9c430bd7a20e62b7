// Arguments of scaled_softmax.cuh, and the number of threads for a row. Shared by host and device.
#pragma once

#include "../common/portable.cuh"

namespace attend {

struct ScaledSoftmaxArgs {
  const void* in;  // s, backward dp
  const void* p;   // backward only
  void* out;       // p, backward ds
  int64 rows;      // rows of all matrices
  int64 seqlen_q;  // rows of a matrix
  int64 seqlen_k;
  float scale;
};

constexpr int kSoftmaxVector = 8;  // elements loaded at once, 16 bytes
constexpr int kLeastSoftmaxRow = 256, kMostSoftmaxRow = 16384;
constexpr int kMostOfAWarp = 2048;    // most elements of a row for one warp: 64 for each thread
constexpr int kSoftmaxThreads = 128;  // threads of a block of short rows
constexpr int kLongRowThreadElements = 16;

// Returns the threads of a row of kSeqlenK elements, a power of 2.
ATTEND_HOST_DEVICE constexpr int softmax_row_threads(int seqlen_k) {
  return seqlen_k <= kMostOfAWarp ? 32 : seqlen_k / kLongRowThreadElements;
}

}  // namespace attend
