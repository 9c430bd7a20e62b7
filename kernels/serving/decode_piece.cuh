// The part of an item that one block computes: a run of units, and those of them that its rows see.
#pragma once

#include "decode_schedule.cuh"

namespace attend {

struct DecodePiece {
  int begin, end;            // units
  int first_step, end_step;  // those that have keys for the tile's rows
  bool begins_item, ends_item;
  int head;        // of the keys
  int64 row;       // the tile's first packed row
  int64 num_rows;  // of the tile

  [[nodiscard]] __device__ __forceinline__ bool is_whole() const { return begins_item && ends_item; }

  // The numbers [begin, end) of the work are the block's.
  [[nodiscard]] static __device__ __forceinline__ DecodePiece of(const DecodeArgs& args, const DecodeItem& item,
                                                                 int64 begin, int64 end, int rows) {
    const DecodeSpan& span = item.span;
    DecodePiece piece = {};
    piece.begins_item = begin <= item.first;
    piece.ends_item = end >= item.end();
    piece.begin = span.begin_unit + (piece.begins_item ? 0 : static_cast<int>(begin - item.first));
    piece.end = piece.ends_item ? span.end_unit : span.begin_unit + static_cast<int>(end - item.first);
    const uint32 tiles = static_cast<uint32>(span.items) / args.num_heads_k;
    piece.head = static_cast<int>(static_cast<uint32>(item.index) / tiles);
    piece.row = static_cast<int64>(static_cast<uint32>(item.index) % tiles) * rows;
    const int64 rows_left = span.seqlen_q * args.group - piece.row;
    piece.num_rows = rows_left < rows ? rows_left : rows;
    const KeyRange keys = span.keys_of_rows(args, divide(piece.row, args.group).quotient,
                                            divide(piece.row + piece.num_rows - 1, args.group).quotient + 1);
    piece.first_step = max(piece.begin, static_cast<int>(keys.begin / kStepKeys));
    piece.end_step = min(piece.end, static_cast<int>((keys.end + kStepKeys - 1) / kStepKeys));
    if (keys.empty() || piece.end_step < piece.first_step) piece.end_step = piece.first_step;
    return piece;
  }
};

// Where a walk through the block's work is. It lies in shared memory, one of each warp: most of it is wanted between
// pieces only, and registers are not.
struct DecodeCursor {
  DecodeItem item;
  DecodePiece piece;
  bool is_done;  // there is no further piece

  // The piece that begins with number `begin` of the work [begin, end).
  __device__ __noinline__ void start(const DecodeArgs& args, const DecodeSchedule& schedule, int rows) {
    item = schedule.find(args, schedule.begin);
    piece = DecodePiece::of(args, item, schedule.begin, schedule.end, rows);
    is_done = false;
  }
  // The next one.
  __device__ __noinline__ void advance(const DecodeArgs& args, const DecodeSchedule& schedule, int rows) {
    is_done = item.end() >= schedule.end;
    if (is_done) return;
    schedule.advance(args, item);
    piece = DecodePiece::of(args, item, schedule.begin, schedule.end, rows);
  }
};

}  // namespace attend
