// Where the sequence that a block works on lies in the tensors: a batch entry, or a part of packed tokens.
#pragma once

#include "args.cuh"
#include "portable.cuh"

namespace attend {

struct SequenceSpan {
  uint32 batch;   // index into the tensors' batch dimension
  int64 q_begin;  // first row in q, o, lse and their gradients
  int64 k_begin;  // first row in k, v and their gradients
  int64 seqlen_q;
  int64 seqlen_k;
};

// BaseArgs: ForwardArgs or BackwardArgs.
template <class Config, class BaseArgs>
[[nodiscard]] __device__ __forceinline__ SequenceSpan sequence_span(const BaseArgs& base, const OptionArgs& options,
                                                                    uint32 sequence) {
  if constexpr (Config::kIsVarlen) {
    const int q_begin = options.cu_seqlens_q[sequence];
    const int k_begin = options.cu_seqlens_k[sequence];
    return {0, q_begin, k_begin, options.cu_seqlens_q[sequence + 1] - q_begin,
            options.cu_seqlens_k[sequence + 1] - k_begin};
  } else {
    return {sequence, 0, 0, base.seqlen_q, base.seqlen_k};
  }
}

}  // namespace attend
