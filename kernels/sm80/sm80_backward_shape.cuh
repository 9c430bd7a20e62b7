// Sizes of sm80_backward on which host and device must agree: tile sizes and bytes of shared memory. A block owns one
// tile of keys or query rows, and iterates over tiles of the other kind, the streamed tiles.
#pragma once

#include "../attention/work.cuh"
#include "../common/config_enums.cuh"
#include "../common/portable.cuh"
#include "../common/tile_sizes.cuh"
#include "../isa/smem_address.cuh"
#include "sm80_forward_shape.cuh"

namespace attend {

// At this head_dim a warp's 16 rows of one gradient occupy 128 registers of each lane.
constexpr int kSm80BackwardLargestHeadDim = 256;

// Returns the number of columns over which the product of q and k sums: head_dim, rounded up to a multiple of 16. The
// float sums of dq have the same number of columns.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int sm80_depth(int head_dim) {
  return round_up(head_dim, 16);
}

// Returns whether a block owns keys. Blocks that compute dk or dv own keys. Other blocks own query rows.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr bool sm80_owns_keys(Sm80Gradient gradient) {
  return gradient != Sm80Gradient::kQueries && gradient != Sm80Gradient::kTerms;
}

// Returns the number of buffers of streamed tiles. With two buffers, one is read while the other is filled. A block
// that computes the gradient of the bias (kTerms) processes only one tile of each head, so it needs one buffer.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int sm80_backward_stages(Sm80Gradient gradient) {
  return gradient == Sm80Gradient::kTerms ? 1 : kSm80Stages;
}

// Returns the number of query rows whose lse and delta are in shared memory. These are the streamed rows of all
// buffers, or the owned rows.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int sm80_saved_rows(Sm80Gradient gradient, int owned, int streamed) {
  return sm80_owns_keys(gradient) ? sm80_backward_stages(gradient) * streamed : owned;
}

// Returns the number of rows that the float sums of dq have for one head. Each sequence has complete groups of 16 rows,
// so no two sequences share a group. `packed` is the number of packed sequences, or 0 if sequences are not packed.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int64 sm80_dq_rows(int64 total_rows, int64 packed) {
  return (num_tiles(total_rows, kSm80RowsOfMma) + packed) * kSm80RowsOfMma;
}

// Returns the first row of a packed sequence in these sums. `begin` is the sequence's first row in q.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int64 sm80_first_dq_row(int64 begin, int64 sequence) {
  return sm80_dq_rows(begin, sequence);
}

// The values of kRoles, which state how the warps of a block divide the gradients among themselves.
enum Sm80Roles : int {
  kSm80General = 0,        // each warp sums all gradients of the block, and scores may be modified (sm80_backward.cuh)
  kSm80KeysAndValues = 1,  // each warp sums dk and dv of its keys (sm80_backward_unmodified.cuh)
  kSm80KeysOrValues = 2,   // half of the warps sum dk, and the other half sum dv of the same keys
                           // (sm80_backward_unmodified.cuh)
};

// Tile sizes and pipeline settings of a Config. The comment on each field names the Config constant with the same
// value.
struct Sm80BackwardTile {
  int warps;       // kWarps: warps of a block
  int row_groups;  // kRowGroups: groups of 16 keys or rows that a warp owns. The warp uses each loaded operand of
                   // streamed rows for all of its groups
  int streamed;    // kStreamed: rows or keys of a streamed tile
  int step;        // kStep: streamed rows or keys whose scores a warp holds in registers at the same time
  int min_blocks;  // number of blocks that must fit on a multiprocessor
  int adds_dq;     // kAddsDq: 1 if a block that owns keys adds its contribution to dq to sums in memory
  int roles;       // kRoles: a value of Sm80Roles
  int parts = 1;   // kParts: number of warps that divide the columns of dk or dv. 1 unless roles is kSm80KeysOrValues

  // Returns the number of warp groups that own different keys.
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int key_warps() const {
    return warps / ((roles == kSm80KeysOrValues ? 2 : 1) * parts);
  }
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int owned() const { return key_warps() * row_groups * kSm80RowsOfMma; }
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int threads() const { return warps * 32; }
};

// Returns the number of tiles of rounded scores in shared memory. A block that adds to dq has one tile of ds, or two if
// one tile is written while the other is read. If several warps of one role share keys, the block also has a tile of p.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int sm80_score_tiles(bool adds_dq, int roles, int parts) {
  if (!adds_dq) return 0;
  return roles == kSm80KeysOrValues ? parts : roles == kSm80KeysAndValues ? 2 : 1;
}

// Returns Config::kSmemBytes. The memory holds the owned tiles (later overwritten by gradients), the streamed tiles,
// the tiles of rounded scores, the float p that one role passes to the other, lse, delta, log2_sum if kHasLseRounding
// is set, and the block's work.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int sm80_backward_smem_bytes(Sm80Gradient gradient,
                                                                        const Sm80BackwardTile& tile, int head_dim,
                                                                        int head_dim_v, bool has_lse_rounding) {
  const int streamed = sm80_backward_stages(gradient) * tile.streamed;
  const int tiles = half_bytes(tile.owned() + streamed, sm80_width(head_dim) + sm80_width(head_dim_v));
  const int score_tiles = sm80_score_tiles(tile.adds_dq != 0, tile.roles, tile.parts);
  const int scores = score_tiles * half_bytes(tile.owned(), kPanelColumns) +
                     float_bytes(tile.roles == kSm80KeysOrValues ? tile.owned() : 0, tile.streamed);
  return round_up(tiles + scores + kSm80BlockBytes +
                      float_bytes(sm80_saved_rows(gradient, tile.owned(), tile.streamed), has_lse_rounding ? 3 : 2),
                  kSwizzleAtom);
}

// Sizes derived from a Config.
template <class Config>
struct Sm80BackwardShape {
  static constexpr Sm80Gradient kGradient = Config::kGradient;
  static constexpr bool kOwnsKeys = sm80_owns_keys(kGradient);
  static constexpr bool kHasValues = kGradient == Sm80Gradient::kKeysValues || kGradient == Sm80Gradient::kValues;
  static constexpr bool kHasDs = kGradient != Sm80Gradient::kValues;
  static constexpr bool kHasFirst = kHasDs && kGradient != Sm80Gradient::kTerms;  // whether the block computes dk or dq
  static constexpr int kStages = sm80_backward_stages(kGradient);
  static constexpr int kOwnedOfWarp = Config::kRowGroups * kSm80RowsOfMma;
  static constexpr int kKeyWarps = Config::kWarps / ((Config::kRoles == kSm80KeysOrValues ? 2 : 1) * Config::kParts);
  static constexpr int kOwned = kKeyWarps * kOwnedOfWarp;
  static constexpr int kDepth = sm80_depth(Config::kHeadDim);    // columns of q and k over which products sum
  static constexpr int kDepthV = sm80_depth(Config::kHeadDimV);  // columns of v and dout over which products sum
  static constexpr int kWidth = sm80_width(Config::kHeadDim);
  static constexpr int kWidthV = sm80_width(Config::kHeadDimV);
  static constexpr int kSavedRows = sm80_saved_rows(kGradient, kOwned, Config::kStreamed);
  static constexpr int kScores = Config::kStep / 2;  // scores that a lane holds for each group of 16 rows
};

}  // namespace attend
