// Arguments of the kernels that compute a block mask (src/cuda/masks), as a struct that host and device share. The
// kernels run in this order:
//
// - mask_ranges computes bounds of each run of 64 elements of the captured tensors. It also clears the counts and the
//   table of patterns for the other kernels.
// - mask_kinds decides from bounds of the mask function whether all pairs or no pairs of a 64 x 64 tile are seen.
//   Otherwise the tile is undecided.
// - mask_patterns evaluates the pairs of undecided tiles, and merges equal patterns.
// - mask_rows writes each row of tiles as core::SeenTiles. It merges neighbouring tiles that are seen in full.
#pragma once

#include "../common/args.cuh"

namespace attend {

constexpr int kMakerThreads = 256;  // number of threads of a block, the same for all of these kernels
constexpr int kMakerTile = 64;      // number of rows, and of keys, in a tile
constexpr int kCaptureRun = 64;     // number of elements of a captured tensor's last dimension that share bounds
constexpr int kUndecidedTile = -3;  // value of a tile's kind, in addition to kAllSeen and kNoneSeen
constexpr int kFirstPatterns = 64;
constexpr int kLengthOfPattern = 64;  // number of words in a pattern. Bit r of word k states whether row r of the tile
                                      // sees key k of the tile

// Bounds of a run of elements.
struct CaptureRange {
  double low, high;
  int has_nan;
  int unused;
};
static_assert(sizeof(CaptureRange) == 2 * 8 + 2 * 4);

// Bounds of all runs of a captured tensor.
struct CaptureRanges {
  CaptureRange* ranges;  // (rows, runs). Null if there are no bounds
  int64 rows;            // product of the extents of all dimensions except the last
  int64 runs;            // number of runs in a row
  int rank;              // number of dimensions in the mask function
  int unused;
};
static_assert(sizeof(CaptureRanges) == 3 * 8 + 2 * 4);

// Counters of the kernels. All are 0 before mask_kinds.
struct MakerCounts {
  int undecided;  // number of undecided tiles
  int places;     // number of places for patterns that warps have reserved. If it exceeds most_places, some patterns
                  // are missing
  int patterns;   // number of different patterns
  int entries;    // number of entries of all rows. If it exceeds most_entries, some entries are missing
};
static_assert(sizeof(MakerCounts) == 4 * 4);

// An entry with the members of core::SeenTiles.
struct MadeEntry {
  int begin, end;  // range of key tiles
  int pattern;
};
static_assert(sizeof(MadeEntry) == 3 * 4);

// Range of the entries of a row of tiles.
struct MadeRow {
  int first, count;
};
static_assert(sizeof(MadeRow) == 2 * 4);

struct MaskMakerArgs {
  static constexpr const char* kTypeName = "MaskMakerArgs";
  CapturedTensor captured[kMostCaptured];
  CaptureRanges ranges[kMostCaptured];  // bounds of the captured tensors
  int64 seqlen_q;
  int64 seqlen_k;
  MakerCounts* counts;
  uint64* table;           // (table_slots). A slot is 0, or it is (hash of a pattern << 32 | (its place + 1)). All are
                           // 0 before mask_kinds
  int* kinds;              // (tiles). A kind is kAllSeen, kNoneSeen, kUndecidedTile, or the place of a pattern
  int* undecided;          // (tiles) numbers of the undecided tiles
  uint64* places;          // (most_places, 64). Patterns in the order in which warps found them. Some may be equal
  int* numbers;            // (most_places). Number of the pattern at each place
  uint64* patterns;        // (most_places, 64). Different patterns in the order of their numbers. The first
                           // kFirstPatterns are unused
  uint64* first_patterns;  // (kFirstPatterns, 64). The first patterns. They are stored next to data that the host
                           // always copies
  MadeEntry* entries;      // (most_entries)
  MadeRow* rows;           // (rows of tiles of all heads)
  uint64* cleared;         // (num_cleared). Memory that mask_ranges clears. It contains `table` and `counts`, which are
                           // neighbours
  int num_heads;
  int tile_rows;  // number of rows of tiles in a head
  int tile_columns;
  int tiles;  // number of tiles of all heads, less than 2^31
  int most_places;
  int most_entries;
  int table_slots;  // a power of 2 greater than most_places
  int num_cleared;
};
static_assert(sizeof(MaskMakerArgs) ==
              kMostCaptured * (sizeof(CapturedTensor) + sizeof(CaptureRanges)) + 13 * 8 + 8 * 4);

}  // namespace attend
