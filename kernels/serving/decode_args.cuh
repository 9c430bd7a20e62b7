// Arguments of the decode kernels, and the layout of their storage in device memory. Shared by host and device.
#pragma once

#include "cache_args.cuh"
#include "stored_element.cuh"

namespace attend {

struct DecodeArgs {
  static constexpr const char* kTypeName = "DecodeArgs";
  // kHasBoxes: tensor maps of k and v as (columns, block_size, num_heads_k, blocks), with boxes of (128 bytes,
  // box_rows, 1, 1) and the 128-byte swizzle
  TensorMapArg k_map;
  TensorMapArg v_map;
  const void* q;              // Element (batch, num_heads_q, rows, kHeadDim)
  const void* k;              // (blocks, num_heads_k, block_size, kHeadDim)
  const void* v;              // (blocks, num_heads_k, block_size, kHeadDimV)
  void* o;                    // Element, shape of q with kHeadDimV columns
  float* lse;                 // shape of q without columns; may be null
  const float* alibi_slopes;  // one for each query head; may be null
  const void* sinks;          // one for each query head; may be null
  const int* cu_seqlens_q;    // (num_sequences + 1) offsets of packed rows. Null: dense, max_seqlen_q rows for each
                              // sequence
  const uint64* tree_mask;    // one word for each query row; may be null
  void* storage;              // DecodeStorage; zeroed once, and kept from launch to launch
  void* stack;                // stack_nodes nodes for each block, uninitialised
  TensorStrides q_stride;
  TensorStrides k_stride;
  TensorStrides v_stride;
  TensorStrides o_stride;
  TensorStrides lse_stride;
  int64 alibi_sequence_stride;
  int64 alibi_head_stride;
  int64 sinks_sequence_stride;
  int64 sinks_head_stride;
  int64 num_sequences;
  int64 max_seqlen_q;
  int64 window_left;   // keys visible to the left of the diagonal, or kOpenWindow
  int64 window_right;  // keys visible to the right of it, or kOpenWindow; causal: 0
  CacheArgs cache;
  uint32 num_heads_k;
  uint32 group;  // query heads for each key head
  float scale;
  float transform_cap;  // 0: no transform
  StoredElement sinks_element;
  uint32 lse_base2;
  uint32 stack_nodes;
  uint32 most_rows;  // another kernel handles live sequences with more query rows
  uint32 box_rows;   // a power of two, at most 32; a box lies in one block of the cache
};
static_assert(sizeof(DecodeArgs) ==
              (2 * sizeof(TensorMapArg) + 11 * 8 + 5 * 24 + 8 * 8 + sizeof(CacheArgs) + 9 * 4 + 63) / 64 * 64);

// Storage for the successive launches of one stream. It has a counter of launches and, from kDecodeHeaderBytes on, the
// nodes that blocks exchange: packets, or large nodes and their tags. Calls with large nodes have separate storage.
//
// The counter grows by kDecodeLaunch with every launch. Every block adds its share when it has read all of its data,
// and the upper word changes only with the last share. So a running block finds the launch number in the upper word,
// whichever blocks have ended.
//
// After the counter the header has two numbers of a kernel for long rows, which that kernel leaves at 0
// (../sm90/sm90_cached_args.cuh).
constexpr int kDecodeHeaderBytes = 256, kDecodeLongRowsAt = 128;
constexpr uint64 kDecodeLaunch = uint64{1} << 32;
constexpr int kMostDecodeBlocks = 1 << 15;

// Most nodes that a block writes: for a part that starts inside an item, and for the first part of an item.
constexpr int kDecodeInnerNodes = 12, kDecodeLeadingNodes = 8;
constexpr int kDecodeNodesOfBlock = kDecodeInnerNodes + kDecodeLeadingNodes;

// Returns the most nodes on a block's stack, for a tree with `levels` levels: nodes of an item's part that have no left
// neighbour there, and one node of each level.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int decode_stack_nodes(int levels) {
  return kDecodeInnerNodes / 2 + levels + 2;
}

}  // namespace attend
