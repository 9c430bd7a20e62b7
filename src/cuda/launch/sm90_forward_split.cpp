#include "cuda/launch/sm90_forward_split.hpp"

#include "cuda/launch/rows_args.hpp"

namespace attend::cuda {
namespace {

using core::Problem;

std::int64_t rows_of(const Problem& p) {
  return p.q.shape[0] * p.num_heads_q * p.max_seqlen_q;
}

}  // namespace

bool sm90_forward_can_split(const Problem& p) {
  return !p.varlen && p.block_mask == nullptr && !p.mask && !p.adds_to_outputs() && p.placement() == nullptr &&
         !p.sinks && !p.bias && p.custom_score == nullptr && p.max_seqlen_k > 0;
}

std::int64_t sm90_forward_split_bytes(const Problem& p, std::int64_t splits) {
  return splits * rows_of(p) * (p.head_dim_v + 1) * static_cast<std::int64_t>(sizeof(float));
}

Sm90ForwardParts Sm90ForwardParts::of(const Problem& p, std::int64_t splits, void* memory) {
  auto* const o = static_cast<float*>(memory);
  const std::int64_t rows = p.max_seqlen_q, columns = p.head_dim_v;
  return {.o = o,
          .lse = o + splits * rows_of(p) * columns,
          .o_stride = {.batch = p.num_heads_q * rows * columns, .head = rows * columns, .row = columns},
          .lse_stride = {.batch = p.num_heads_q * rows, .head = rows, .row = 1}};
}

MergeArgs Sm90ForwardParts::merge_args(const Problem& p, std::int64_t splits) const {
  MergeArgs args = {};
  args.o = rows_args(p.o);
  if (p.lse) {
    args.lse = static_cast<float*>(p.lse->data);
    args.lse_stride = core::strides_of(*p.lse);
  }
  args.num_rows = rows_of(p);
  args.seqlen = p.max_seqlen_q;
  args.num_heads = static_cast<uint32>(p.num_heads_q);
  args.num_states = static_cast<uint32>(splits);
  args.head_dim_v = static_cast<uint32>(p.head_dim_v);
  for (std::int64_t split = 0; split < splits; ++split) {
    float* const part = o + split * rows_of(p) * p.head_dim_v;
    const Tensor view = Tensor::bhsd(part, DType::kF32, {p.q.shape[0], p.num_heads_q, p.max_seqlen_q, p.head_dim_v});
    args.states[split] = {.o = rows_args(view), .lse = lse + split * rows_of(p), .lse_stride = lse_stride};
  }
  return args;
}

}  // namespace attend::cuda
