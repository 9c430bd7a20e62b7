// What the kernels that make a block mask are told (src/cuda/masks), as a plain struct, declared once for both sides.
//
//   mask_ranges    bounds of each run of 64 elements of the captured tensors; clears counts and table for the others
//   mask_kinds     of each tile of 64 x 64: all seen, none seen, or undecided, by bounds of the condition
//   mask_patterns  evaluates the pairs of undecided tiles; equal patterns become one
//   mask_rows      each row of tiles as core::SeenTiles: neighbours that are seen in full are one
#pragma once

#include "../common/args.cuh"

namespace attend {

constexpr int kMakerThreads = 256;  // of a block, of each of the kernels
constexpr int kMakerTile = 64;      // rows, and keys, of a tile
constexpr int kCaptureRun = 64;     // elements of a captured tensor's last dimension that have bounds together
constexpr int kUndecidedTile = -3;  // beside kAllSeen and kNoneSeen
constexpr int kFirstPatterns = 64;
constexpr int kLengthOfPattern = 64;  // words: bit r of word k: row r of the tile sees its key k

// Bounds of a run of elements.
struct CaptureRange {
  double low, high;
  int has_nan;
  int unused;
};
static_assert(sizeof(CaptureRange) == 2 * 8 + 2 * 4);

// Bounds of a captured tensor.
struct CaptureRanges {
  CaptureRange* ranges;  // (rows, runs); null: it has none
  int64 rows;            // extents of all dimensions but the last, multiplied
  int64 runs;            // of a row
  int rank;              // dimensions that its function knows
  int unused;
};
static_assert(sizeof(CaptureRanges) == 3 * 8 + 2 * 4);

// All 0 before mask_kinds.
struct MakerCounts {
  int undecided;  // tiles
  int places;     // of patterns that warps took; above most_places: some are missing
  int patterns;   // different ones
  int entries;    // of all rows; above most_entries: some are missing
};
static_assert(sizeof(MakerCounts) == 4 * 4);

// core::SeenTiles.
struct MadeEntry {
  int begin, end;  // tiles of keys
  int pattern;
};
static_assert(sizeof(MadeEntry) == 3 * 4);

// Where the entries of a row of tiles are.
struct MadeRow {
  int first, count;
};
static_assert(sizeof(MadeRow) == 2 * 4);

struct MaskMakerArgs {
  static constexpr const char* kTypeName = "MaskMakerArgs";
  CapturedTensor captured[kMostCaptured];
  CaptureRanges ranges[kMostCaptured];  // of the same tensors
  int64 seqlen_q;
  int64 seqlen_k;
  MakerCounts* counts;
  uint64* table;           // (table_slots) 0, or the hash of a pattern << 32 | its place + 1; all 0 before mask_kinds
  int* kinds;              // (tiles) kAllSeen, kNoneSeen, kUndecidedTile, or the place of a pattern
  int* undecided;          // (tiles) their numbers
  uint64* places;          // (most_places, 64) patterns in the order in which warps met them, some of them equal
  int* numbers;            // (most_places) of the pattern that is there
  uint64* patterns;        // (most_places, 64) different ones, by numbers, from number kFirstPatterns on
  uint64* first_patterns;  // (kFirstPatterns, 64) the others: beside what is copied in any case
  MadeEntry* entries;      // (most_entries)
  MadeRow* rows;           // (rows of tiles, of all heads)
  uint64* cleared;         // (num_cleared) what mask_ranges clears: table and counts, which are neighbours
  int num_heads;
  int tile_rows;  // of a head
  int tile_columns;
  int tiles;  // of all heads: below 2^31
  int most_places;
  int most_entries;
  int table_slots;  // a power of 2, above most_places
  int num_cleared;
};
static_assert(sizeof(MaskMakerArgs) ==
              kMostCaptured * (sizeof(CapturedTensor) + sizeof(CaptureRanges)) + 13 * 8 + 8 * 4);

}  // namespace attend
