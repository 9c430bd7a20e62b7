// Parameters of kernels as plain structs. The host fills them, the device reads them, and only this file declares them.
// A kernel has one parameter, which is such a struct passed by value. Three rules ensure that host and device agree on
// the layout: every member is 4 or 8 bytes wide, 8-byte members come first, and the sizes are asserted. Each parameter
// struct states its name, so that the compiled type and the passed type are the same.
#pragma once

#include "portable.cuh"

namespace attend {

// Distances between neighbours in a (batch, heads, seqlen, head_dim) tensor, in elements. The last stride is 1.
struct TensorStrides {
  int64 batch;
  int64 head;
  int64 row;

  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int64 offset(int64 batch_index, int64 head_index, int64 row_index) const {
    return batch_index * batch + head_index * head + row_index * row;
  }
};
static_assert(sizeof(TensorStrides) == 24);

// Arguments of the forward pass on dense tensors: o = softmax(scale q k^T) v, and lse.
struct ForwardArgs {
  static constexpr const char* kTypeName = "ForwardArgs";
  const void* q;           // Element (batch, num_heads_q, seqlen_q, kHeadDim)
  const void* k;           // Element (batch, num_heads_k, seqlen_k, kHeadDim)
  const void* v;           // Element (batch, num_heads_k, seqlen_k, kHeadDimV)
  void* o;                 // Element (batch, num_heads_q, seqlen_q, kHeadDimV)
  float* lse;              // float (batch, num_heads_q, seqlen_q), natural logarithm; may be null
  void* workspace;         // layout chosen by the kernel; 256-byte aligned and uninitialised. Null if the kernel needs
                           // none
  TensorStrides q_stride;  // all strides are in elements
  TensorStrides k_stride;
  TensorStrides v_stride;
  TensorStrides o_stride;
  TensorStrides lse_stride;
  int64 seqlen_q;
  int64 seqlen_k;
  uint32 batch;
  uint32 num_heads_q;
  uint32 num_heads_k;  // a divisor of num_heads_q
  float scale;         // factor by which q.k is multiplied
};
static_assert(sizeof(ForwardArgs) == 6 * 8 + 5 * 24 + 2 * 8 + 4 * 4);

// Flags of BackwardArgs::overwritten. Each flag names gradients whose memory has no contents yet. A kernel with
// kAddsToOutputs stores these gradients instead of adding to them.
constexpr uint32 kOverwritesQueries = 1;  // dq
constexpr uint32 kOverwritesKeys = 2;     // dk and dv

// Arguments of the backward pass on dense tensors: computes dq, dk and dv from dout, dlse, and the inputs and outputs
// of the forward pass.
struct BackwardArgs {
  static constexpr const char* kTypeName = "BackwardArgs";
  const void* dout;  // Element (batch, num_heads_q, seqlen_q, kHeadDimV)
  const void* q;     // q, k, v and o are as in ForwardArgs
  const void* k;
  const void* v;
  const void* o;
  const float* lse;           // as in ForwardArgs, but never null
  const float* dlse;          // float (batch, num_heads_q, seqlen_q), gradient of lse; may be null
  void* dq;                   // Element, shape of q
  void* dk;                   // Element, shape of k. It is the sum over the query heads that share a key head
  void* dv;                   // Element, shape of v. It is the sum over the query heads that share a key head
  void* workspace;            // as in ForwardArgs
  TensorStrides dout_stride;  // all strides are in elements. They are 0 in dimensions along which dout is broadcast
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
  float scale;           // factor by which q.k is multiplied
  float gradient_scale;  // factor by which dq and dk are multiplied. It is the caller's scale, even if `scale` has
                         // another magnitude because the kernel applies the scale in the exponent
  uint32 overwritten;    // kOverwritesQueries and kOverwritesKeys, combined by bitwise or
};
static_assert(sizeof(BackwardArgs) == 11 * 8 + 10 * 24 + 2 * 8 + 6 * 4);

// A tensor that a custom score function reads.
struct CapturedTensor {
  const void* data;
  int64 stride[4];  // in elements; 0 in broadcast dimensions
  int extent[4];    // clamped to the largest int, which no subscript exceeds
};
static_assert(sizeof(CapturedTensor) == 5 * 8 + 4 * 4);

constexpr int kMostCaptured = 8;  // largest number of captured tensors

// A caller's block mask as lists. In the forward pass, there is a list for each tile of rows, with the key tiles that
// it sees. In the backward pass, there is a list for each block of keys, with the 64-row tiles that see it. Tile
// numbers in a list are in ascending order.
struct BlockMaskArgs {
  const int64* bounds;     // two numbers for each list: its first entry, and the entry behind its last
  const int* entries;      // An entry begins with the number of a tile. Then there is a word for each 64 rows and 64
                           // keys of the tile: a pattern's number, kAllSeen or kNoneSeen. If the query heads of a group
                           // differ in the backward pass, each of these heads has separate words. In the backward pass,
                           // the last word of an entry is RowTileLists::blocks_before()
  const uint32* patterns;  // kPatternWords words for each pattern. A word has one bit for each score of a thread in a
                           // 64 x 64 accumulator
  int64 sequence_stride;   // distance between sequences, in lists. 0 if all sequences share the lists
  int64 head_stride;       // distance between query heads, or in the backward pass between key heads, in lists. 0 if
                           // the heads share the lists
  int entry_words;         // number of ints in an entry
  int head_words;          // number of ints for each query head of the group in the backward pass. 0 if the heads share
                           // them
};
constexpr int kAllSeen = -1;
constexpr int kNoneSeen = -2;
constexpr int kPatternWords = 128;

// A caller's block mask as a map. The map states which scores are visible for each 64 rows and 64 keys
// (kernels/attention/block_map.cuh).
struct BlockMapArgs {
  const int* tiles;        // (batch or 1, heads or 1, tile_rows, tile_columns). An element is a pattern's number,
                           // kAllSeen or kNoneSeen
  const uint64* patterns;  // kMapPatternWords words for each pattern. The first 64 words belong to the rows, and have a
                           // bit for each key. The others belong to the keys, and have a bit for each row
  int64 sequence_stride;   // distance between sequences, in tiles. 0 if all sequences share the tiles
  int64 head_stride;       // distance between query heads, in tiles. 0 if all query heads share the tiles
  int tile_rows, tile_columns;
};
constexpr int kMapPatternWords = 128;

// Options beyond dense, unmasked attention. Kernels read a member only if the Config constant in the member's comment
// is set. If an option is not used, its members are zero.
struct OptionArgs {
  const void* bias;                   // BiasElement (batch, num_heads_q, seqlen_q, seqlen_k), if kHasBias
  const unsigned char* mask;          // (batch, num_heads_q, seqlen_q, seqlen_k), if kHasBoolMask. 0 masks the score
  const float* alibi_slopes;          // float (num_sequences, num_heads_q), if kHasAlibi
  const int* cu_seqlens_q;            // int (num_sequences + 1), if kIsVarlen
  const int* cu_seqlens_k;            // int (num_sequences + 1), if kIsVarlen
  TensorStrides bias_stride;          // in elements; 0 in broadcast dimensions
  TensorStrides mask_stride;          // in bytes; 0 in broadcast dimensions
  int64 alibi_sequence_stride;        // in elements; 0 if all sequences share the slopes
  int64 alibi_head_stride;            // in elements
  int64 window_left;                  // see key_range.cuh, if kMask == kWindow. kOpenWindow leaves the left side open
  int64 window_right;                 // see key_range.cuh, if kMask == kWindow. kOpenWindow leaves the right side open
  int64 total_q;                      // number of tokens in q, whatever cu_seqlens_q contains, if kIsVarlen
  int64 total_k;                      // number of tokens in k, whatever cu_seqlens_k contains, if kIsVarlen
  const uint64* philox_state;         // points to {seed, offset} if kHasPhiloxState. They override dropout_key0,
                                      // dropout_key1 and dropout_stream
  int64 row_begin;                    // If kIsPart, row i of this problem is row row_begin + position_step * i of a
                                      // larger problem
  int64 key_begin;                    // If kIsPart, key j of this problem is key key_begin + position_step * j of the
                                      // larger problem
  const void* row_logits;             // row_logits_element (num_sequences, num_heads_q), if kHasSinks. Null in a
                                      // backward pass without sinks
  int64 row_logit_sequence_stride;    // in elements; 0 if all sequences share the logits
  int64 row_logit_head_stride;        // in elements
  float transform_cap;                // cap of the transform (attention/score_transform.cuh), greater than 0, if
                                      // kHasTransform
  float dropout_scale;                // 1 / (1 - p), if kHasDropout
  uint32 dropout_key0, dropout_key1;  // members of DropMask with the same names, if kHasDropout
  uint32 dropout_stream, dropout_threshold;
  uint32 position_step;       // see row_begin, if kIsPart. With dropout, only simt supports a step other than 1, or a
                              // key_begin that is not a multiple of 4
  uint32 dropout_head;        // a number that is added to DropMask::head, if kIsPart
  float alibi_shift;          // If kIsPart, ALiBi uses the distance position_step * (i + off - j + alibi_shift)
  uint32 row_logits_element;  // an ElementType. Kernels read the type at run time, so one kernel supports all types
  CapturedTensor captured[kMostCaptured];  // tensors that the custom score function reads, if kHasCustomScore
  BlockMaskArgs block_mask;                // read if kHasBlockMask
  BlockMapArgs block_map;                  // read if kHasBlockMap
};
static_assert(sizeof(OptionArgs) == 8 * 8 + 2 * 24 + 9 * 8 + 10 * 4 + kMostCaptured * sizeof(CapturedTensor) +
                                        sizeof(BlockMaskArgs) + sizeof(BlockMapArgs));

// ForwardArgs with the options. If sequences are packed (kIsVarlen), q, k, v, o and lse have batch dimension 1,
// args.batch is the number of sequences, and seqlen_q and seqlen_k are upper bounds of their lengths.
struct ForwardOptionArgs {
  static constexpr const char* kTypeName = "ForwardOptionArgs";
  ForwardArgs base;
  OptionArgs options;
};
static_assert(sizeof(ForwardOptionArgs) == sizeof(ForwardArgs) + sizeof(OptionArgs));

// BackwardArgs with the options. ForwardOptionArgs describes packed sequences.
struct BackwardOptionArgs {
  static constexpr const char* kTypeName = "BackwardOptionArgs";
  BackwardArgs base;
  OptionArgs options;
  void* dterms;                 // gradient of the bias with type DtermsElement and the bias's shape. Has size 1 in
                                // dimensions over which it is summed. May be null
  float* dterms_sums;           // (batch, num_heads_q, seqlen_k) scratch if dterms is a sum over rows, otherwise null
  void* dlogits;                // gradient of the logits, with type dlogits_element and the logits' shape; may be null
  float* dlogits_parts;         // (num_sequences, num_heads_q, number of row tiles) scratch if dlogits is not null
  float* dq_sums;               // (batch, num_heads_q, dq_rows, kDepth), zeros, if a kernel adds to dq. Otherwise null
  TensorStrides dterms_stride;  // in elements
  int64 dlogits_sequence_stride;             // in elements
  int64 dlogits_head_stride;                 // in elements
  int64 total_rows;                          // number of rows of q in memory: seqlen_q, or the tokens of all sequences
  int64 dq_rows;                             // sm80_dq_rows(), if dq_sums is not null
  uint32 dterms_batch;                       // size of the first dimension of dterms: batch or 1
  uint32 dterms_heads;                       // size of the second dimension of dterms: num_heads_q or 1
  uint32 dlogits_sequences;                  // size of the first dimension of dlogits: num_sequences or 1
  uint32 dlogits_element;                    // an ElementType
  float* captured_gradients[kMostCaptured];  // gradients of options.captured, contiguous, initially zeros. Null if not
                                             // requested
};
static_assert(sizeof(BackwardOptionArgs) ==
              sizeof(BackwardArgs) + sizeof(OptionArgs) + 5 * 8 + 24 + 4 * 8 + 4 * 4 + kMostCaptured * 8);

// Description of a tensor for TMA instructions, which is a CUtensorMap.
struct alignas(64) TensorMapArg {
  uint64 opaque[16];
};

// ForwardArgs with the tensor maps for kernels that load by TMA. All maps have rank 5,
//   (64, seqlen, head_dim / 64, heads, batch), boxes of (64, kBlockM or kBlockN, head_dim / 64, 1, 1),
// and are swizzled in rows of 128 bytes. One copy loads a tile as head_dim / 64 panels of 64 columns.
struct ForwardTmaArgs {
  static constexpr const char* kTypeName = "ForwardTmaArgs";
  TensorMapArg q_map;  // with boxes of kBlockM rows
  TensorMapArg k_map;  // with boxes of kBlockN rows
  TensorMapArg v_map;  // with boxes of kBlockN rows
  ForwardArgs base;
};

}  // namespace attend
