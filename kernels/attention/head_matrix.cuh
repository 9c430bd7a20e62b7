// Inputs and outputs of a block: the rows of one head as a matrix, and the mask of the block's Config.
#pragma once

#include "../common/args.cuh"
#include "../common/config_enums.cuh"
#include "../common/portable.cuh"
#include "key_range.cuh"
#include "mask_window.cuh"

namespace attend {

// The rows of one head as a matrix. Columns are contiguous.
template <class Element>
struct HeadMatrix {
  Element* data;     // address of row 0
  int64 row_stride;  // in elements
  int64 num_rows;

  [[nodiscard]] ATTEND_HOST_DEVICE Element* row(int64 row_index) const { return data + row_index * row_stride; }
};

// Returns head `head` of batch entry `batch` of a (batch, heads, num_rows, head_dim) tensor.
template <class Element, class Pointer>
[[nodiscard]] ATTEND_HOST_DEVICE HeadMatrix<Element> head_matrix(Pointer tensor, const TensorStrides& stride,
                                                                 uint32 batch, uint32 head, int64 num_rows) {
  return {static_cast<Element*>(tensor) + stride.offset(batch, head, 0), stride.row, num_rows};
}

// Returns the mask of a kernel that supports no window. Args is ForwardArgs or BackwardArgs.
template <class Config, class Args>
[[nodiscard]] ATTEND_HOST_DEVICE constexpr WindowMask mask_of(const Args& args) {
  return window_of<Config>(args.seqlen_q, args.seqlen_k);
}

// Returns the key head that a query head reads.
template <class Args>
[[nodiscard]] ATTEND_HOST_DEVICE constexpr uint32 key_head_of(const Args& args, uint32 head) {
  return head / (args.num_heads_q / args.num_heads_k);
}

}  // namespace attend
