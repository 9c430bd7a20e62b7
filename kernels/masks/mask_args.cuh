// Arguments of the kernels that make a block mask (src/cuda/masks), as a struct, declared once for host and device.
//
//   mask_ranges    bounds of each run of 64 elements of the captured tensors; clears counts and table for the others
//   mask_kinds     for each tile of 64 x 64: all seen, none seen, or undecided, by bounds of the condition
//   mask_patterns  evaluates the pairs of undecided tiles; equal patterns are merged
//   mask_rows      each row of tiles as core::SeenTiles: neighbouring tiles that are seen in full are merged
#pragma once

#include "../common/args.cuh"

namespace attend {

constexpr int kMakerThreads = 256;  // threads of a block, in each of the kernels
constexpr int kMakerTile = 64;      // rows and keys of a tile
constexpr int kCaptureRun = 64;     // elements of a captured tensor's last dimension that share bounds
constexpr int kUndecidedTile = -3;  // used next to kAllSeen and kNoneSeen
constexpr int kFirstPatterns = 64;
constexpr int kLengthOfPattern = 64;  // words; bit r of word k: row r of the tile sees its key k

// Bounds of a run of elements.
struct CaptureRange {
  double low, high;
  int has_nan;
  int unused;
};
static_assert(sizeof(CaptureRange) == 2 * 8 + 2 * 4);

// Bounds of a captured tensor.
struct CaptureRanges {
  CaptureRange* ranges;  // (rows, runs); null: no bounds
  int64 rows;            // product of the extents of all dimensions but the last
  int64 runs;            // runs of a row
  int rank;              // dimensions in the mask function
  int unused;
};
static_assert(sizeof(CaptureRanges) == 3 * 8 + 2 * 4);

// All 0 before mask_kinds.
struct MakerCounts {
  int undecided;  // undecided tiles
  int places;     // places of patterns that warps have reserved; if above most_places, some patterns are missing
  int patterns;   // different patterns
  int entries;    // entries of all rows; if above most_entries, some are missing
};
static_assert(sizeof(MakerCounts) == 4 * 4);

// core::SeenTiles.
struct MadeEntry {
  int begin, end;  // tiles of keys
  int pattern;
};
static_assert(sizeof(MadeEntry) == 3 * 4);

// The entries of a row of tiles.
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
  uint64* table;           // (table_slots) 0, or hash of a pattern << 32 | its place + 1; all 0 before mask_kinds
  int* kinds;              // (tiles) kAllSeen, kNoneSeen, kUndecidedTile, or the place of a pattern
  int* undecided;          // (tiles) numbers of the undecided tiles
  uint64* places;          // (most_places, 64) patterns in the order in which warps found them; some may be equal
  int* numbers;            // (most_places) number of the pattern at each place
  uint64* patterns;        // (most_places, 64) different patterns by number, from number kFirstPatterns on
  uint64* first_patterns;  // (kFirstPatterns, 64) the first patterns, next to data that is copied in any case
  MadeEntry* entries;      // (most_entries)
  MadeRow* rows;           // (rows of tiles, of all heads)
  uint64* cleared;         // (num_cleared) memory that mask_ranges clears: table and counts, which are neighbours
  int num_heads;
  int tile_rows;  // rows of tiles of a head
  int tile_columns;
  int tiles;  // over all heads: below 2^31
  int most_places;
  int most_entries;
  int table_slots;  // a power of 2, above most_places
  int num_cleared;
};
static_assert(sizeof(MaskMakerArgs) ==
              kMostCaptured * (sizeof(CapturedTensor) + sizeof(CaptureRanges)) + 13 * 8 + 8 * 4);

}  // namespace attend
