// The parameters of kernels as plain structs: the host fills them, the device reads them, this is their one
// declaration. Passed by value as a kernel's only parameter. Host and device agree on the layout: every member is 4 or
// 8 bytes wide, 8-byte members come first, and the sizes are asserted. A struct that kernels take names itself, so that
// what is compiled and what is passed are the same.
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

// kAddsToOutputs: which gradients memory holds nothing of yet. They are stored, not added.
constexpr uint32 kOverwritesQueries = 1;  // dq
constexpr uint32 kOverwritesKeys = 2;     // dk and dv

// dq, dk, dv from dout (and dlse) and what forward took and gave, for dense tensors.
struct BackwardArgs {
  static constexpr const char* kTypeName = "BackwardArgs";
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
  uint32 overwritten;    // kOverwritesQueries, kOverwritesKeys
};
static_assert(sizeof(BackwardArgs) == 11 * 8 + 10 * 24 + 2 * 8 + 6 * 4);

// A tensor that the caller's own modification of scores reads.
struct CapturedTensor {
  const void* data;
  int64 stride[4];  // elements; 0 in broadcast dimensions
  int extent[4];    // the largest int for larger ones: no subscript reaches beyond it
};
static_assert(sizeof(CapturedTensor) == 5 * 8 + 4 * 4);

constexpr int kMostCaptured = 8;  // tensors

// Which rows see which keys, by a caller's block mask. Forward: a list for each tile of rows, of the tiles of keys that
// it sees. Backward: a list for each block of keys, of the tiles of 64 rows that see it. Each by rising numbers.
struct BlockMaskArgs {
  const int64* bounds;     // of each list: its first entry, and the end behind its last
  const int* entries;      // the number of a tile, then for each 64 rows and 64 keys of it a pattern's number, kAllSeen
                           // or kNoneSeen; backward: these for each query head of the group, if they differ, then
                           // RowTileLists::blocks_before()
  const uint32* patterns;  // kPatternWords each: which scores a thread of an accumulator of 64 x 64 sees, a bit each
  int64 sequence_stride;   // lists; 0: the same ones for all sequences
  int64 head_stride;       // likewise, of query heads; backward: of heads of k
  int entry_words;         // ints of an entry
  int head_words;          // backward: of each query head of the group; 0: the same for all
};
constexpr int kAllSeen = -1;
constexpr int kNoneSeen = -2;
constexpr int kPatternWords = 128;

// The same as a map: of each 64 rows and 64 keys, which scores are seen (kernels/attention/block_map.cuh).
struct BlockMapArgs {
  const int* tiles;        // (batch or 1, heads or 1, tile_rows, tile_columns): a pattern's number or as above
  const uint64* patterns;  // kMapPatternWords each: of each of 64 rows, a bit for each key; then of each key, likewise
  int64 sequence_stride;   // tiles; 0: the same for all sequences
  int64 head_stride;       // likewise, of query heads
  int tile_rows, tile_columns;
};
constexpr int kMapPatternWords = 128;

// The options of attention beyond the plain ones. A member is read only where the Config says that the option is on,
// whose constant stands beside it; where it is off, the member is zero.
struct OptionArgs {
  const void* bias;                   // kHasBias:     BiasElement (batch, num_heads_q, seqlen_q, seqlen_k)
  const unsigned char* mask;          // kHasBoolMask: likewise; 0 masks
  const float* alibi_slopes;          // kHasAlibi:    (num_sequences, num_heads_q)
  const int* cu_seqlens_q;            // kIsVarlen:    (num_sequences + 1)
  const int* cu_seqlens_k;            // kIsVarlen
  TensorStrides bias_stride;          // elements; 0 where the bias is broadcast
  TensorStrides mask_stride;          // bytes; likewise
  int64 alibi_sequence_stride;        // elements; 0 where all sequences share the slopes
  int64 alibi_head_stride;            // elements
  int64 window_left;                  // kMask == kWindow; kOpenWindow where it masks nothing on that side
  int64 window_right;                 // likewise
  int64 total_q;                      // kIsVarlen: tokens in q, whatever cu_seqlens_q says
  int64 total_k;                      // likewise
  const uint64* philox_state;         // kHasPhiloxState: seed and offset, else the four numbers below say it
  int64 row_begin;                    // kIsPart: row i is row row_begin + position_step * i of a larger problem,
  int64 key_begin;                    //          and key j likewise
  const void* row_logits;             // kHasSinks: row_logits_element (num_sequences, num_heads_q); backward: or null
  int64 row_logit_sequence_stride;    // elements; 0 where all sequences share the logits
  int64 row_logit_head_stride;        // elements
  float transform_cap;                // kHasTransform: > 0 (attention/score_transform.cuh)
  float dropout_scale;                // kHasDropout: 1 / (1 - p)
  uint32 dropout_key0, dropout_key1;  // DropMask's members of these names, but for the head
  uint32 dropout_stream, dropout_threshold;
  uint32 position_step;       // kIsPart; not 1, or a key_begin that is no multiple of 4: simt only where kHasDropout
  uint32 dropout_head;        // kIsPart: added to DropMask's head
  float alibi_shift;          // kIsPart: the distance that ALiBi takes is position_step * (i + off - j + alibi_shift)
  uint32 row_logits_element;  // an ElementType: kernels of all types have the same code
  CapturedTensor captured[kMostCaptured];  // kHasCustomScore: what its code reads
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

// BackwardArgs with the options, likewise.
struct BackwardOptionArgs {
  static constexpr const char* kTypeName = "BackwardOptionArgs";
  BackwardArgs base;
  OptionArgs options;
  void* dterms;          // DtermsElement, of the bias's own shape: sums over its dimensions of size 1; may be null
  float* dterms_sums;    // (batch, num_heads_q, seqlen_k), scratch where dterms is a sum over rows; else null
  void* dlogits;         // dlogits_element, of the logits' own shape; may be null
  float* dlogits_parts;  // (num_sequences, num_heads_q, tiles of rows), scratch where there are dlogits
  float* dq_sums;        // (batch, num_heads_q, dq_rows, kDepth), zeros, where a kernel adds to dq; else null
  TensorStrides dterms_stride;               // elements
  int64 dlogits_sequence_stride;             // elements
  int64 dlogits_head_stride;                 // elements
  int64 total_rows;                          // of q in memory: seqlen_q, or the tokens of all sequences
  int64 dq_rows;                             // sm80_dq_rows() where there are dq_sums
  uint32 dterms_batch;                       // the size of dterms's first dimension: batch or 1
  uint32 dterms_heads;                       // of its second: num_heads_q or 1
  uint32 dlogits_sequences;                  // the size of dlogits's first dimension: num_sequences or 1
  uint32 dlogits_element;                    // an ElementType
  float* captured_gradients[kMostCaptured];  // of options.captured, dense, zeros; null: not asked for
};
static_assert(sizeof(BackwardOptionArgs) ==
              sizeof(BackwardArgs) + sizeof(OptionArgs) + 5 * 8 + 24 + 4 * 8 + 4 * 4 + kMostCaptured * 8);

// What a TMA instruction reads: CUtensorMap.
struct alignas(64) TensorMapArg {
  uint64 opaque[16];
};

// ForwardArgs with the maps of kernels that load by TMA. All maps are of rank 5,
//   (64, seqlen, head_dim / 64, heads, batch), boxes of (64, kBlockM or kBlockN, head_dim / 64, 1, 1),
// swizzled in rows of 128 bytes: one copy brings a tile as head_dim / 64 panels of 64 columns.
struct ForwardTmaArgs {
  static constexpr const char* kTypeName = "ForwardTmaArgs";
  TensorMapArg q_map;  // kBlockM rows
  TensorMapArg k_map;  // kBlockN rows
  TensorMapArg v_map;  // kBlockN rows
  ForwardArgs base;
};

}  // namespace attend
