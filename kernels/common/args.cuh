// The parameters of kernels as plain structs: the host fills them, the device reads them, and this file is their only
// declaration. A struct is passed by value as a kernel's only parameter. Host and device agree on the layout: every
// member is 4 or 8 bytes wide, 8-byte members come first, and the sizes are asserted. Each parameter struct states its
// name, so that the compiled type and the passed type are the same.
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
  static constexpr const char* kTypeName = "ForwardArgs";
  const void* q;           // Element (batch, num_heads_q, seqlen_q, kHeadDim)
  const void* k;           // Element (batch, num_heads_k, seqlen_k, kHeadDim)
  const void* v;           // Element (batch, num_heads_k, seqlen_k, kHeadDimV)
  void* o;                 // Element (batch, num_heads_q, seqlen_q, kHeadDimV)
  float* lse;              // float   (batch, num_heads_q, seqlen_q), natural logarithm; may be null
  void* workspace;         // layout chosen by the kernel; 256-byte aligned, uninitialised; null if the kernel needs
                           // none
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

// kAddsToOutputs: gradients whose memory has no contents yet. They are stored, not added.
constexpr uint32 kOverwritesQueries = 1;  // dq
constexpr uint32 kOverwritesKeys = 2;     // dk and dv

// dq, dk, dv from dout (and dlse) and the forward pass's inputs and outputs, for dense tensors.
struct BackwardArgs {
  static constexpr const char* kTypeName = "BackwardArgs";
  const void* dout;  // Element (batch, num_heads_q, seqlen_q, kHeadDimV)
  const void* q;     // see ForwardArgs
  const void* k;
  const void* v;
  const void* o;
  const float* lse;           // never null here
  const float* dlse;          // float (batch, num_heads_q, seqlen_q), gradient of lse; may be null
  void* dq;                   // Element, shape of q
  void* dk;                   // Element, shape of k; the sum over the query heads that share a key head
  void* dv;                   // Element, shape of v; the sum over the query heads that share a key head
  void* workspace;            // see ForwardArgs
  TensorStrides dout_stride;  // elements; 0 in dimensions along which dout is broadcast
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
  float gradient_scale;  // factor of dq and dk: the scale, even for a kernel that folds it and gets another magnitude
                         // as `scale`
  uint32 overwritten;    // kOverwritesQueries, kOverwritesKeys
};
static_assert(sizeof(BackwardArgs) == 11 * 8 + 10 * 24 + 2 * 8 + 6 * 4);

// A tensor that a custom score modification reads.
struct CapturedTensor {
  const void* data;
  int64 stride[4];  // elements; 0 in broadcast dimensions
  int extent[4];    // clamped to the largest int: no subscript exceeds it
};
static_assert(sizeof(CapturedTensor) == 5 * 8 + 4 * 4);

constexpr int kMostCaptured = 8;  // tensors

// A caller's block mask as lists. Forward: for each tile of rows, the key tiles that it sees. Backward: for each block
// of keys, the 64-row tiles that see it. Numbers in a list ascend.
struct BlockMaskArgs {
  const int64* bounds;     // two for each list: its first entry, and the end after its last
  const int* entries;      // the number of a tile. Then, for each 64 rows and 64 keys of the tile: a pattern's number,
                           // kAllSeen or kNoneSeen. Backward: these for each query head of the group, if they differ,
                           // then RowTileLists::blocks_before()
  const uint32* patterns;  // kPatternWords each: one bit for each score of a thread in a 64 x 64 accumulator
  int64 sequence_stride;   // lists; 0: all sequences share them
  int64 head_stride;       // lists, for query heads; backward: for key heads; 0: shared
  int entry_words;         // ints of an entry
  int head_words;          // backward: ints for each query head of the group; 0: shared
};
constexpr int kAllSeen = -1;
constexpr int kNoneSeen = -2;
constexpr int kPatternWords = 128;

// A caller's block mask as a map: for each 64 rows and 64 keys, the visible scores (kernels/attention/block_map.cuh).
struct BlockMapArgs {
  const int* tiles;        // (batch or 1, heads or 1, tile_rows, tile_columns): a pattern's number, kAllSeen or
                           // kNoneSeen
  const uint64* patterns;  // kMapPatternWords each: for each of 64 rows, a bit for each key; then for each key, a bit
                           // for each row
  int64 sequence_stride;   // tiles; 0: all sequences share them
  int64 head_stride;       // tiles; 0: all query heads share them
  int tile_rows, tile_columns;
};
constexpr int kMapPatternWords = 128;

// Options beyond dense, unmasked attention. A member is read only if the Config constant named next to it is on. If the
// option is off, the member is zero.
struct OptionArgs {
  const void* bias;                   // kHasBias:     BiasElement (batch, num_heads_q, seqlen_q, seqlen_k)
  const unsigned char* mask;          // kHasBoolMask: the same shape; 0 masks
  const float* alibi_slopes;          // kHasAlibi:    (num_sequences, num_heads_q)
  const int* cu_seqlens_q;            // kIsVarlen:    (num_sequences + 1)
  const int* cu_seqlens_k;            // kIsVarlen
  TensorStrides bias_stride;          // elements; 0 in broadcast dimensions
  TensorStrides mask_stride;          // bytes; 0 in broadcast dimensions
  int64 alibi_sequence_stride;        // elements; 0 if all sequences share the slopes
  int64 alibi_head_stride;            // elements
  int64 window_left;                  // kMask == kWindow; kOpenWindow if nothing is masked on that side
  int64 window_right;                 // kMask == kWindow; kOpenWindow if nothing is masked on that side
  int64 total_q;                      // kIsVarlen: tokens in q, regardless of cu_seqlens_q
  int64 total_k;                      // kIsVarlen: tokens in k, regardless of cu_seqlens_k
  const uint64* philox_state;         // kHasPhiloxState: points to {seed, offset}, which override dropout_key0,
                                      // dropout_key1 and dropout_stream
  int64 row_begin;                    // kIsPart: row i is row row_begin + position_step * i of a larger problem
  int64 key_begin;                    // kIsPart: key j is key key_begin + position_step * j
  const void* row_logits;             // kHasSinks: row_logits_element (num_sequences, num_heads_q); in backward null if
                                      // there are none
  int64 row_logit_sequence_stride;    // elements; 0 if all sequences share the logits
  int64 row_logit_head_stride;        // elements
  float transform_cap;                // kHasTransform: > 0 (attention/score_transform.cuh)
  float dropout_scale;                // kHasDropout: 1 / (1 - p)
  uint32 dropout_key0, dropout_key1;  // members of DropMask with the same names, except the head
  uint32 dropout_stream, dropout_threshold;
  uint32 position_step;       // kIsPart; with kHasDropout only simt supports a step other than 1, or a key_begin that
                              // is not a multiple of 4
  uint32 dropout_head;        // kIsPart: added to DropMask's head
  float alibi_shift;          // kIsPart: ALiBi uses the distance position_step * (i + off - j + alibi_shift)
  uint32 row_logits_element;  // an ElementType; a run-time value, so kernels do not depend on it
  CapturedTensor captured[kMostCaptured];  // kHasCustomScore: inputs of its code
  BlockMaskArgs block_mask;                // kHasBlockMask
  BlockMapArgs block_map;                  // kHasBlockMap
};
static_assert(sizeof(OptionArgs) == 8 * 8 + 2 * 24 + 9 * 8 + 10 * 4 + kMostCaptured * sizeof(CapturedTensor) +
                                        sizeof(BlockMaskArgs) + sizeof(BlockMapArgs));

// ForwardArgs with the options. Varlen: q, k, v, o and lse have batch dimension 1, args.batch counts the sequences, and
// seqlen_q and seqlen_k are upper bounds of their lengths.
struct ForwardOptionArgs {
  static constexpr const char* kTypeName = "ForwardOptionArgs";
  ForwardArgs base;
  OptionArgs options;
};
static_assert(sizeof(ForwardOptionArgs) == sizeof(ForwardArgs) + sizeof(OptionArgs));

// BackwardArgs with the options. Varlen: see ForwardOptionArgs.
struct BackwardOptionArgs {
  static constexpr const char* kTypeName = "BackwardOptionArgs";
  BackwardArgs base;
  OptionArgs options;
  void* dterms;                 // DtermsElement, shape of the bias: sums over its dimensions of size 1; may be null
  float* dterms_sums;           // (batch, num_heads_q, seqlen_k), scratch if dterms is a sum over rows; otherwise null
  void* dlogits;                // dlogits_element, shape of the logits; may be null
  float* dlogits_parts;         // (num_sequences, num_heads_q, tiles of rows), scratch if dlogits is not null
  float* dq_sums;               // (batch, num_heads_q, dq_rows, kDepth), zeros, if a kernel adds to dq; otherwise null
  TensorStrides dterms_stride;  // elements
  int64 dlogits_sequence_stride;             // elements
  int64 dlogits_head_stride;                 // elements
  int64 total_rows;                          // rows of q in memory: seqlen_q, or the tokens of all sequences
  int64 dq_rows;                             // sm80_dq_rows(), if dq_sums is not null
  uint32 dterms_batch;                       // the size of dterms's first dimension: batch or 1
  uint32 dterms_heads;                       // the size of its second dimension: num_heads_q or 1
  uint32 dlogits_sequences;                  // the size of dlogits's first dimension: num_sequences or 1
  uint32 dlogits_element;                    // an ElementType
  float* captured_gradients[kMostCaptured];  // gradients of options.captured, dense, zeros; null: not requested
};
static_assert(sizeof(BackwardOptionArgs) ==
              sizeof(BackwardArgs) + sizeof(OptionArgs) + 5 * 8 + 24 + 4 * 8 + 4 * 4 + kMostCaptured * 8);

// The description of a tensor for TMA instructions: CUtensorMap.
struct alignas(64) TensorMapArg {
  uint64 opaque[16];
};

// ForwardArgs with the maps for kernels that load by TMA. All maps are of rank 5,
//   (64, seqlen, head_dim / 64, heads, batch), boxes of (64, kBlockM or kBlockN, head_dim / 64, 1, 1),
// swizzled in rows of 128 bytes: one copy loads a tile as head_dim / 64 panels of 64 columns.
struct ForwardTmaArgs {
  static constexpr const char* kTypeName = "ForwardTmaArgs";
  TensorMapArg q_map;  // kBlockM rows
  TensorMapArg k_map;  // kBlockN rows
  TensorMapArg v_map;  // kBlockN rows
  ForwardArgs base;
};

}  // namespace attend
