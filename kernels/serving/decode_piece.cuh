// The part of an item that one block computes: a run of units, and those of them that its rows see.
#pragma once

#include "decode_schedule.cuh"

namespace attend {

struct DecodePiece {
  int begin, end;            // units
  int first_step, end_step;  // those that have keys for the tile's rows
  int first_key, end_key;    // of the item: keys that a row sees
  bool begins_item, ends_item;
  int head;        // of the keys
  int64 row;       // the tile's first packed row
  int64 num_rows;  // of the tile

  [[nodiscard]] __device__ __forceinline__ bool is_whole() const { return begins_item && ends_item; }

  // The numbers [begin, end) of the work are the block's.
  [[nodiscard]] static __device__ __forceinline__ DecodePiece of(const DecodeArgs& args, const DecodeItem& item,
                                                                 int64 begin, int64 end, int row_shift) {
    const DecodeSpan& span = item.span;
    DecodePiece piece = {};
    piece.begins_item = begin <= item.first;
    piece.ends_item = end >= item.end();
    piece.begin = span.begin_unit + (piece.begins_item ? 0 : static_cast<int>(begin - item.first));
    piece.end = piece.ends_item ? span.end_unit : span.begin_unit + static_cast<int>(end - item.first);
    piece.head = item.index;
    piece.num_rows = span.seqlen_q * args.group;
    piece.first_key = span.begin_key;
    piece.end_key = span.end_key;
    if (span.tiles > 1) {
      const uint32 index = static_cast<uint32>(item.index), head = index / static_cast<uint32>(span.tiles);
      piece.head = static_cast<int>(head);
      piece.row = static_cast<int64>(index - head * static_cast<uint32>(span.tiles)) << row_shift;
      piece.num_rows = min(piece.num_rows - piece.row, int64{1} << row_shift);
      const int64 first_row = divide(piece.row, args.group).quotient;
      const int64 end_row = divide(piece.row + piece.num_rows - 1, args.group).quotient + 1;
      const KeyRange keys = span.keys_of_rows(args, first_row, end_row);
      piece.first_key = static_cast<int>(keys.begin);
      piece.end_key = static_cast<int>(keys.end);
    }
    piece.first_step = max(piece.begin, unit_of(piece.first_key));
    piece.end_step = min(piece.end, unit_of(static_cast<int64>(piece.end_key) + kStepKeys - 1));
    if (piece.end_key <= piece.first_key || piece.end_step < piece.first_step) piece.end_step = piece.first_step;
    return piece;
  }
};

// Where a walk through the block's work is. It lies in shared memory, one of each warp: most of it is wanted between
// pieces only, and registers are not. All lanes of the warp call together; one of them writes.
struct DecodeCursor {
  DecodeItem item;
  DecodePiece piece;
  int64 number;      // of the work, with which the piece begins
  int64 begin, end;  // of the block's work
  bool is_done;      // there is no further piece
  bool merges;       // the block has the end of the first piece's item, but not its begin

  // The block's first piece. ends: see DecodeSchedule::make.
  __device__ __noinline__ void start(const DecodeArgs& args, const DecodeSchedule& schedule, const DecodeEnd* ends) {
    const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
    const int64 ideal = schedule.ideal(lane % 2);  // a lane of two looks for the begin, the other for the end
    DecodeItem found = {};
    int64 at = schedule.total;
    if (ideal < schedule.total) {
      found = DecodeSchedule::item_of(ends[lane % 2], ideal);
      at = found.first + schedule.snapped(found, ideal);
    }
    const int64 behind = __shfl_sync(kAllLanes, at, 1);  // also: all lanes have read the cursor
    if (lane == 0) {
      item = found;
      begin = at;
      end = behind;
      is_done = begin >= end;
      if (!is_done) go_to(args, schedule, begin);
      merges = !is_done && !piece.begins_item && piece.ends_item;
    }
    __syncwarp();  // the piece is there
  }
  // The next one.
  __device__ __forceinline__ void advance(const DecodeArgs& args, const DecodeSchedule& schedule, int lane) {
    __syncwarp();  // all lanes have read the cursor
    if (lane == 0) {
      is_done = item.end() >= end;
      if (!is_done) go_to(args, schedule, item.end());
    }
    __syncwarp();  // the piece is there
  }

 private:
  // The piece that begins with a number of the block's work, in this item or the next.
  __device__ __noinline__ void go_to(const DecodeArgs& args, const DecodeSchedule& schedule, int64 to) {
    number = to;
    if (to >= item.end()) schedule.advance(args, item);
    piece = DecodePiece::of(args, item, to, end, schedule.row_shift);
  }
};

}  // namespace attend
