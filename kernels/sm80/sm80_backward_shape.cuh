// Numbers of sm80_backward that host and device must agree on: tiles, and the size of shared memory.
#pragma once

#include "../attention/work.cuh"
#include "../common/config_enums.cuh"
#include "../common/portable.cuh"
#include "../common/tile_sizes.cuh"
#include "../isa/smem_address.cuh"
#include "sm80_forward_shape.cuh"

namespace attend {

// With this head_dim a warp's 16 rows of one gradient take 128 registers of each lane.
constexpr int kSm80BackwardLargestHeadDim = 256;

// Returns the columns that products over head_dim sum over, which are also the columns of dq's float sums.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int sm80_depth(int head_dim) {
  return round_up(head_dim, 16);
}

// Returns whether a block owns keys: it does if it computes gradients of keys or values. Other blocks own query rows.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr bool sm80_owns_keys(Sm80Gradient gradient) {
  return gradient != Sm80Gradient::kQueries && gradient != Sm80Gradient::kTerms;
}

// Returns the number of buffers of streamed tiles: one is read while the other fills. A block for kTerms has only one
// tile of each head.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int sm80_backward_stages(Sm80Gradient gradient) {
  return gradient == Sm80Gradient::kTerms ? 1 : kSm80Stages;
}

// Returns the number of query rows whose lse and delta are in shared memory: streamed ones of all buffers, or the owned
// ones.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int sm80_saved_rows(Sm80Gradient gradient, int owned, int streamed) {
  return sm80_owns_keys(gradient) ? sm80_backward_stages(gradient) * streamed : owned;
}

// Returns the rows of one head's float sums of dq. Each sequence has full groups of 16, so that no two share a group.
// packed: the number of packed sequences, or 0 if sequences are not packed.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int64 sm80_dq_rows(int64 total_rows, int64 packed) {
  return (num_tiles(total_rows, kSm80RowsOfMma) + packed) * kSm80RowsOfMma;
}

// Returns the first of these rows for a packed sequence that begins with row `begin` of all rows.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int64 sm80_first_dq_row(int64 begin, int64 sequence) {
  return sm80_dq_rows(begin, sequence);
}

// The division of gradients among the warps of a block: values of kRoles.
enum Sm80Roles : int {
  kSm80General = 0,        // sm80_backward.cuh: a warp sums all gradients of the block; scores may be modified
  kSm80KeysAndValues = 1,  // sm80_backward_unmodified.cuh: a warp sums dk and dv of its keys
  kSm80KeysOrValues = 2,   // sm80_backward_unmodified.cuh: half of the warps sum dk, the other half dv of the same keys
};

// The parameters of a Config, under the names of its constants.
struct Sm80BackwardTile {
  int warps;       // kWarps
  int row_groups;  // kRowGroups: a warp owns this many times 16 keys or rows, and uses each load of streamed rows for
                   // all of them
  int streamed;    // kStreamed: rows or keys of a streamed tile
  int step;        // kStep: streamed rows or keys whose scores a warp has in registers at a time
  int min_blocks;  // blocks that must fit on a multiprocessor
  int adds_dq;     // kAddsDq: a block that owns keys adds its part of dq to sums in memory
  int roles;       // kRoles: of Sm80Roles
  int parts = 1;   // kParts: parts of the columns of dk and dv, one for each warp. 1 unless roles is kSm80KeysOrValues

  // Returns the number of groups of warps that share no keys.
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int key_warps() const {
    return warps / ((roles == kSm80KeysOrValues ? 2 : 1) * parts);
  }
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int owned() const { return key_warps() * row_groups * kSm80RowsOfMma; }
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int threads() const { return warps * 32; }
};

// Returns the number of tiles of rounded scores that the warps of a block share. A block that adds to dq has one of ds,
// or two if one is written while the other is read. If several warps of one role share keys, it also has one of p.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int sm80_score_tiles(bool adds_dq, int roles, int parts) {
  if (!adds_dq) return 0;
  return roles == kSm80KeysOrValues ? parts : roles == kSm80KeysAndValues ? 2 : 1;
}

// Returns kSmemBytes, the sum of: the owned tiles, which gradients overwrite at the end; the streamed tiles; the tiles
// of scores; p in float, if another warp computes ds from it; lse, delta and, with kHasLseRounding, log2_sum; the
// block's work.
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

// Sizes that follow from a Config.
template <class Config>
struct Sm80BackwardShape {
  static constexpr Sm80Gradient kGradient = Config::kGradient;
  static constexpr bool kOwnsKeys = sm80_owns_keys(kGradient);
  static constexpr bool kHasValues = kGradient == Sm80Gradient::kKeysValues || kGradient == Sm80Gradient::kValues;
  static constexpr bool kHasDs = kGradient != Sm80Gradient::kValues;
  static constexpr bool kHasFirst = kHasDs && kGradient != Sm80Gradient::kTerms;  // dk or dq
  static constexpr int kStages = sm80_backward_stages(kGradient);
  static constexpr int kOwnedOfWarp = Config::kRowGroups * kSm80RowsOfMma;
  static constexpr int kKeyWarps = Config::kWarps / ((Config::kRoles == kSm80KeysOrValues ? 2 : 1) * Config::kParts);
  static constexpr int kOwned = kKeyWarps * kOwnedOfWarp;
  static constexpr int kDepth = sm80_depth(Config::kHeadDim);    // columns of q and k that products sum over
  static constexpr int kDepthV = sm80_depth(Config::kHeadDimV);  // columns of v and dout that products sum over
  static constexpr int kWidth = sm80_width(Config::kHeadDim);
  static constexpr int kWidthV = sm80_width(Config::kHeadDimV);
  static constexpr int kSavedRows = sm80_saved_rows(kGradient, kOwned, Config::kStreamed);
  static constexpr int kScores = Config::kStep / 2;  // scores of a lane and a group of 16 rows, at a time
};

}  // namespace attend
