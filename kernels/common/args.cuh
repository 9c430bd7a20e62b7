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
  void* workspace;         // of the kernel's own layout, 256-byte aligned, uninitialised; null where it wants none
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
static_assert(sizeof(ForwardArgs) == 6 * 8 + 5 * 24 + 2 * 8 + 4 * 4);

// dq, dk, dv from dout (and dlse) and what forward took and gave, for dense tensors.
struct BackwardArgs {
  const void* dout;  // Element (batch, num_heads_q, seqlen_q, kHeadDimV)
  const void* q;     // as in ForwardArgs
  const void* k;
  const void* v;
  const void* o;
  const float* lse;           // never null here
  const float* dlse;          // float (batch, num_heads_q, seqlen_q), gradient of lse; may be null
  void* dq;                   // Element, shape of q
  void* dk;                   // Element, shape of k; the sum over the query heads that share a key head
  void* dv;                   // Element, shape of v; likewise
  void* workspace;            // as in ForwardArgs
  TensorStrides dout_stride;  // elements; 0 where dout is broadcast
  TensorStrides q_stride;
  TensorStrides k_stride;
  TensorStrides v_stride;
  TensorStrides o_stride;
  TensorStrides lse_stride;
  TensorStrides dlse_stride;
  TensorStrides dq_stride;
  TensorStrides dk_stride;
  TensorStrides dv_stride;
  int64 seqlen_q;
  int64 seqlen_k;
  uint32 batch;
  uint32 num_heads_q;
  uint32 num_heads_k;
  float scale;           // factor of q.k
  float gradient_scale;  // factor of dq and dk: scale, also where a kernel that folds it is given another magnitude
  uint32 unused;         // fills the last 8 bytes
};
static_assert(sizeof(BackwardArgs) == 11 * 8 + 10 * 24 + 2 * 8 + 6 * 4);

// What a TMA instruction reads: CUtensorMap.
struct alignas(64) TensorMapArg {
  uint64 opaque[16];
};

// ForwardArgs with the maps of kernels that load by TMA. All maps are of rank 5,
//   (64, seqlen, head_dim / 64, heads, batch), boxes of (64, kBlockM or kBlockN, head_dim / 64, 1, 1),
// swizzled in rows of 128 bytes: one copy brings a tile as head_dim / 64 panels of 64 columns.
struct ForwardTmaArgs {
  TensorMapArg q_map;  // kBlockM rows
  TensorMapArg k_map;  // kBlockN rows
  TensorMapArg v_map;  // kBlockN rows
  ForwardArgs base;
};

}  // namespace attend
