#include "cuda/serving/decode_launch.hpp"

#include <algorithm>
#include <bit>
#include <limits>

#include "cuda/launch/rows_args.hpp"
#include "cuda/launch/tensor_maps.hpp"

namespace attend::cuda {
namespace {

TensorStrides strides_of(const Tensor& t) {
  return {t.stride[0], t.stride[1], t.stride[2]};
}

/// Returns the number of levels of the merge tree for `capacity` keys. The lowest levels have no nodes and are not
/// counted.
int tree_levels(std::int64_t capacity, int leaf_shift) {
  return std::max(0,
                  static_cast<int>(std::bit_width(static_cast<std::uint64_t>(capacity / kStepKeys + 1))) - leaf_shift);
}

}  // namespace

DecodeArgs decode_args(const core::DecodeProblem& p, const DecodeVariant& variant, const AddedKeys& added) {
  DecodeArgs args = {};
  if (variant.has_boxes != 0) {
    const std::int64_t rows = decode_box_rows(p);
    // L2 promotion is off, because it would also load memory lines of the next box, which another copy requests at the
    // same time.
    const auto map = [&](const Tensor& t) {
      return row_map(t, static_cast<int>(rows), p.q.data, TensorMapPromotion::kNone);
    };
    args.k_map = map(p.k);
    args.v_map = map(p.v);
    args.box_rows = static_cast<uint32>(rows);
  }
  args.q = p.q.data;
  args.k = p.k.data;
  args.v = p.v.data;
  args.o = p.o.data;
  args.cu_seqlens_q = p.cu_seqlens_q;
  args.tree_mask = reinterpret_cast<const uint64*>(p.tree_mask);
  args.q_stride = strides_of(p.q);
  args.k_stride = strides_of(p.k);
  args.v_stride = strides_of(p.v);
  args.o_stride = strides_of(p.o);
  if (p.lse) {
    args.lse = static_cast<float*>(p.lse->data);
    args.lse_stride = strides_of(*p.lse);
  }
  if (p.alibi_slopes) {
    args.alibi_slopes = static_cast<const float*>(p.alibi_slopes->data);
    args.alibi_sequence_stride = p.alibi_slopes->stride[0];
    args.alibi_head_stride = p.alibi_slopes->stride[1];
  }
  if (p.sinks) {
    args.sinks = p.sinks->data;
    args.sinks_element = stored_element(p.sinks->dtype);
    args.sinks_sequence_stride = p.sinks->stride[0];
    args.sinks_head_stride = p.sinks->stride[1];
  }
  args.num_sequences = p.num_sequences;
  args.max_seqlen_q = p.max_seqlen_q;
  args.window_left = p.window_left;
  args.window_right = p.window_right;
  args.cache = cache_args(p, added);
  args.num_heads_k = static_cast<uint32>(p.num_heads_k);
  args.group = static_cast<uint32>(p.heads_per_group());
  args.scale = static_cast<float>(p.scale);
  args.transform_cap = static_cast<float>(p.transform_cap);
  args.lse_base2 = p.lse_base2 ? 1 : 0;
  args.most_rows = std::numeric_limits<uint32>::max();
  return args;
}

DecodeGrid decode_grid(const DecodeVariant& variant, std::int64_t capacity, int num_multiprocessors) {
  const DecodeTile tile = variant.tile();
  const int blocks = std::clamp(num_multiprocessors * variant.blocks, 1, kMostDecodeBlocks);
  const int shared_nodes = decode_shares_small_nodes(tile) ? 0 : variant.stack_nodes;
  const int nodes = std::max(1, decode_stack_nodes(tree_levels(capacity, decode_leaf_shift(tile))) - shared_nodes);
  const auto of_blocks = [&](int count, int bytes) {
    return static_cast<std::size_t>(blocks) * static_cast<std::size_t>(count) * static_cast<std::size_t>(bytes);
  };
  return {static_cast<std::uint32_t>(blocks), static_cast<std::uint32_t>(nodes),
          kDecodeHeaderBytes + static_cast<std::size_t>(decode_has_large_nodes(tile) ? decode_tag_bytes(blocks) : 0) +
              of_blocks(kDecodeNodesOfBlock, decode_node_bytes(tile)),
          of_blocks(nodes, decode_stack_bytes(tile)), decode_has_large_nodes(tile)};
}

}  // namespace attend::cuda
