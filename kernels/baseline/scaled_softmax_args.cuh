// Arguments of scaled_softmax.cuh, and the number of threads for a row. Host and device share this file.
#pragma once

#include "../common/portable.cuh"

namespace attend {

struct ScaledSoftmaxArgs {
  const void* in;  // s in the forward pass, dp in the backward pass
  const void* p;   // p, used only in the backward pass
  void* out;       // p in the forward pass, ds in the backward pass
  int64 rows;      // number of rows of all matrices
  int64 seqlen_q;  // number of rows of a matrix
  int64 seqlen_k;
  float scale;
};

constexpr int kSoftmaxVector = 8;  // number of elements that are loaded at once, 16 bytes
constexpr int kLeastSoftmaxRow = 256, kMostSoftmaxRow = 16384;
constexpr int kMostOfAWarp = 2048;    // largest number of elements of a row that one warp handles, which is 64 for each
                                      // thread
constexpr int kSoftmaxThreads = 128;  // number of threads of a block that has short rows
constexpr int kLongRowThreadElements = 16;

// Returns the number of threads of a row of kSeqlenK elements. kSeqlenK is a power of 2.
ATTEND_HOST_DEVICE constexpr int softmax_row_threads(int seqlen_k) {
  return seqlen_k <= kMostOfAWarp ? 32 : seqlen_k / kLongRowThreadElements;
}

}  // namespace attend
