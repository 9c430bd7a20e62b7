// The parameters of kernels as plain structs: the host fills them, the device reads them, this is their one
// declaration. Passed by value as a kernel's only parameter. Host and device agree on the layout: every member is 4 or
// 8 bytes wide, 8-byte members come first, and the sizes are asserted.
#pragma once

#include "portable.cuh"

namespace attend {

// Distances, in elements, between neighbours of a (batch, heads, seqlen, head_dim) tensor whose last stride is 1.
struct TensorStrides {
  int64 batch;
  int64 head;
  int64 row;

  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int64 offset(int64 batch_index, int64 head_index, int64 row_index) const {
    return batch_index * batch + head_index * head + row_index * row;
  }
};
static_assert(sizeof(TensorStrides) == 24);

// o = softmax(scale q k^T) v and lse, for dense tensors.
struct ForwardArgs {
  const void* q;           // Element (batch, num_heads_q, seqlen_q, kHeadDim)
  const void* k;           // Element (batch, num_heads_k, seqlen_k, kHeadDim)
  const void* v;           // Element (batch, num_heads_k, seqlen_k, kHeadDimV)
  void* o;                 // Element (batch, num_heads_q, seqlen_q, kHeadDimV)
  float* lse;              // float   (batch, num_heads_q, seqlen_q), natural logarithm; may be null
  TensorStrides q_stride;  // elements
  TensorStrides k_stride;
  TensorStrides v_stride;
  TensorStrides o_stride;
  TensorStrides lse_stride;
  int64 seqlen_q;
  int64 seqlen_k;
  uint32 batch;
  uint32 num_heads_q;
  uint32 num_heads_k;  // divides num_heads_q
  float scale;         // factor of q.k
};
static_assert(sizeof(ForwardArgs) == 5 * 8 + 5 * 24 + 2 * 8 + 4 * 4);

}  // namespace attend
