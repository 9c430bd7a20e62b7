// Arguments of the decode kernels, and the layout of their storage in device memory. Host and device share this file.
#pragma once

#include "cache_args.cuh"
#include "stored_element.cuh"

namespace attend {

struct DecodeArgs {
  static constexpr const char* kTypeName = "DecodeArgs";
  // Tensor maps of k and v with the dimensions (columns, block_size, num_heads_k, blocks). A box has (128 bytes,
  // box_rows, 1, 1) and the 128-byte swizzle. Set only if kHasBoxes is set.
  TensorMapArg k_map;
  TensorMapArg v_map;
  const void* q;              // Element (batch, num_heads_q, rows, kHeadDim)
  const void* k;              // (blocks, num_heads_k, block_size, kHeadDim)
  const void* v;              // (blocks, num_heads_k, block_size, kHeadDimV)
  void* o;                    // Element (batch, num_heads_q, rows, kHeadDimV)
  float* lse;                 // (batch, num_heads_q, rows); may be null
  const float* alibi_slopes;  // one slope for each query head; may be null
  const void* sinks;          // one sink for each query head; may be null
  const int* cu_seqlens_q;    // (num_sequences + 1) offsets of packed rows. If null, each sequence has max_seqlen_q
                              // rows
  const uint64* tree_mask;    // one word for each query row, whose bits are the keys that the row sees; may be null
  void* storage;              // counter and exchanged nodes, see below. Zeroed once, and kept between launches
  void* stack;                // room for stack_nodes nodes of each block, uninitialised
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
  int64 window_left;   // number of keys visible to the left of the diagonal, or kOpenWindow
  int64 window_right;  // number of keys visible to the right of the diagonal, or kOpenWindow. 0 for a causal mask
  CacheArgs cache;
  uint32 num_heads_k;
  uint32 group;  // number of query heads for each key head
  float scale;
  float transform_cap;  // cap of the tanh transform of scores, or 0 for no transform
  StoredElement sinks_element;
  uint32 lse_base2;
  uint32 stack_nodes;
  uint32 most_rows;  // live sequences with more query rows than this are left to another kernel
  uint32 box_rows;   // rows of a box: a power of two, at most 32. A box never crosses two blocks of the cache
};
static_assert(sizeof(DecodeArgs) ==
              (2 * sizeof(TensorMapArg) + 11 * 8 + 5 * 24 + 8 * 8 + sizeof(CacheArgs) + 9 * 4 + 63) / 64 * 64);

// Storage for the successive launches of one stream. It begins with a counter of launches. From byte kDecodeHeaderBytes
// on, it holds the nodes that blocks exchange, either as packets or as large nodes with tags. Calls with large nodes
// use separate storage.
//
// Each launch increases the counter by kDecodeLaunch in total. Every block adds its share after it has read all of its
// data. The upper word changes only when the last share is added. So every running block finds the launch number in the
// upper word, whichever blocks have ended.
//
// After the counter, the header contains two numbers of a kernel for long rows, which that kernel resets to 0
// (../sm90/sm90_cached_args.cuh).
constexpr int kDecodeHeaderBytes = 256, kDecodeLongRowsAt = 128;
constexpr uint64 kDecodeLaunch = uint64{1} << 32;
constexpr int kMostDecodeBlocks = 1 << 15;

// A block that computes a part of an item writes tree nodes for another block. kDecodeInnerNodes is the largest number
// of these nodes if the part starts inside the item. kDecodeLeadingNodes is the largest number if the part is the first
// one of the item.
constexpr int kDecodeInnerNodes = 12, kDecodeLeadingNodes = 8;
constexpr int kDecodeNodesOfBlock = kDecodeInnerNodes + kDecodeLeadingNodes;

// Returns the largest number of nodes on a block's stack, for a tree with `levels` levels. The stack holds nodes
// without a left neighbour in the block's part of the item. It also holds up to one node of each level.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int decode_stack_nodes(int levels) {
  return kDecodeInnerNodes / 2 + levels + 2;
}

}  // namespace attend
