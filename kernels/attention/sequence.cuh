// Place of a block's sequence in the tensors. This is a batch entry, or a range of packed tokens.
#pragma once

#include "../common/args.cuh"
#include "../common/portable.cuh"
#include "key_source.cuh"

namespace attend {

struct SequenceSpan {
  uint32 batch;   // index into the tensors' batch dimension
  int64 q_begin;  // first row in q, o, lse and their gradients
  int64 k_begin;  // first row in k, v and their gradients
  int64 seqlen_q;
  int64 seqlen_k;

  // Returns the offset of a query row in a tensor with the given strides, in elements.
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int64 query_offset(const TensorStrides& stride, uint32 head,
                                                                int64 row) const {
    return stride.offset(batch, head, q_begin + row);
  }
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr RowPlace query_place(int64 row) const { return {batch, q_begin + row}; }
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr KeySource keys() const { return {batch, k_begin, seqlen_k}; }
};

// Range of tokens of one packed sequence, read from cu_seqlens. That array lies on the device, and the host has not
// checked it. So the range is clamped to the tensor. Its length is clamped to that of the longest sequence, which
// determines grids and workspaces.
struct PackedTokens {
  int64 begin;
  int64 length;

  [[nodiscard]] static ATTEND_HOST_DEVICE constexpr PackedTokens of(int64 begin, int64 end, int64 total,
                                                                    int64 longest) {
    const int64 first = begin < 0 ? 0 : begin > total ? total : begin;
    const int64 left = total - first < longest ? total - first : longest;
    const int64 length = end - first;
    return {first, length < 0 ? 0 : length > left ? left : length};
  }
};

// Returns the span of sequence number `sequence`. BaseArgs is ForwardArgs or BackwardArgs.
template <class Config, class BaseArgs>
[[nodiscard]] ATTEND_HOST_DEVICE SequenceSpan sequence_span(const BaseArgs& base, const OptionArgs& options,
                                                            uint32 sequence) {
  if constexpr (Config::kIsVarlen) {
    const int* cu_q = options.cu_seqlens_q + sequence;
    const int* cu_k = options.cu_seqlens_k + sequence;
    const PackedTokens q = PackedTokens::of(cu_q[0], cu_q[1], options.total_q, base.seqlen_q);
    const PackedTokens k = PackedTokens::of(cu_k[0], cu_k[1], options.total_k, base.seqlen_k);
    return {0, q.begin, k.begin, q.length, k.length};
  } else {
    return {sequence, 0, 0, base.seqlen_q, base.seqlen_k};
  }
}

}  // namespace attend
