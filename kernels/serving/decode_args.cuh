// What the decode kernels are told, and how their storage in device memory is laid out: shared by host and device.
#pragma once

#include "cache_args.cuh"
#include "stored_element.cuh"

namespace attend {

struct DecodeArgs {
  static constexpr const char* kTypeName = "DecodeArgs";
  // kHasBoxes: (columns, block_size, num_heads_k, blocks) of k and v, boxes of (128 bytes, box_rows, 1, 1) with the
  // 128-byte swizzle
  TensorMapArg k_map;
  TensorMapArg v_map;
  const void* q;              // Element (batch, num_heads_q, rows, kHeadDim)
  const void* k;              // (blocks, num_heads_k, block_size, kHeadDim)
  const void* v;              // (blocks, num_heads_k, block_size, kHeadDimV)
  void* o;                    // Element, as q with kHeadDimV columns
  float* lse;                 // as q without columns; may be null
  const float* alibi_slopes;  // of query heads; may be null
  const void* sinks;          // likewise
  const int* cu_seqlens_q;    // (num_sequences + 1): packed rows. Null: dense, max_seqlen_q rows a sequence
  const uint64* tree_mask;    // a word a query row; may be null
  void* storage;              // DecodeStorage; zeroed once, and kept from launch to launch
  void* stack;                // of each block, stack_nodes nodes. Uninitialised
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
  int64 window_left;   // or kOpenWindow
  int64 window_right;  // likewise; causal: 0
  CacheArgs cache;
  uint32 num_heads_k;
  uint32 group;  // query heads of a key head
  float scale;
  float transform_cap;  // 0: none
  StoredElement sinks_element;
  uint32 lse_base2;
  uint32 stack_nodes;
  uint32 most_rows;  // live sequences with more query rows are left to another kernel
  uint32 box_rows;   // a power of two, at most 32; boxes lie in one block of the cache
};
static_assert(sizeof(DecodeArgs) ==
              (2 * sizeof(TensorMapArg) + 11 * 8 + 5 * 24 + 8 * 8 + sizeof(CacheArgs) + 9 * 4 + 63) / 64 * 64);

// Storage of the launches of one stream, one after another: a counter of launches, and from kDecodeHeaderBytes on what
// blocks leave for each other: packets, or large nodes and their tags. Calls with large nodes have storage of their
// own.
//
// The counter grows by kDecodeLaunch with every launch: every block adds its share when it has read all that it wants.
// So a block that is still running finds the launch's number in the upper word, whoever has ended before.
//
// Behind the counter the header has two numbers of a kernel for long rows, which that kernel leaves at 0
// (../sm90/sm90_cached_args.cuh).
constexpr int kDecodeHeaderBytes = 256, kDecodeLongRowsAt = 128;
constexpr uint64 kDecodeLaunch = uint64{1} << 32;
constexpr int kMostDecodeBlocks = 1 << 15;

// Nodes that a block leaves at most: of a part of an item that begins inside of it, and of one that begins with it.
constexpr int kDecodeInnerNodes = 12, kDecodeLeadingNodes = 8;
constexpr int kDecodeNodesOfBlock = kDecodeInnerNodes + kDecodeLeadingNodes;

// Nodes on a block's stack at most, over a tree of so many levels: those of an item's part that have no left neighbour
// there, and one of each level.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int decode_stack_nodes(int levels) {
  return kDecodeInnerNodes / 2 + levels + 2;
}

}  // namespace attend
