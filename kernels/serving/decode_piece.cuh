// The part of an item that one block computes: a run of units, and the sub-range that its rows see.
#pragma once

#include "decode_schedule.cuh"

namespace attend {

struct DecodePiece {
  int begin, end;            // units
  int first_step, end_step;  // the units that have keys for the tile's rows
  int first_key, end_key;    // the item's keys that some row sees
  int head;                  // key head
  int64 row;                 // the tile's first packed row
  int num_rows;              // rows of the tile
  bool begins_item, ends_item;

  [[nodiscard]] __device__ __forceinline__ bool is_whole() const { return begins_item && ends_item; }

  // Returns the piece of an item. [begin, end): the block's numbers of the work.
  template <class Number>
  [[nodiscard]] static __device__ __forceinline__ DecodePiece of(const DecodeArgs& args, const DecodeItem<Number>& item,
                                                                 Number begin, Number end, int row_shift) {
    const DecodeSpan& span = item.span;
    DecodePiece piece = {};
    piece.begins_item = begin <= item.first;
    piece.ends_item = end >= item.end();
    piece.begin = span.begin_unit + (piece.begins_item ? 0 : static_cast<int>(begin - item.first));
    piece.end = piece.ends_item ? span.end_unit : span.begin_unit + static_cast<int>(end - item.first);
    piece.head = item.index;
    piece.first_key = span.begin_key;
    piece.end_key = span.end_key;
    if (span.tiles > 1) {
      piece.take_tile(args, item.index, span, row_shift);
    } else {
      piece.num_rows = span.seqlen_q * static_cast<int>(args.group);
    }
    piece.first_step = max(piece.begin, unit_of(piece.first_key));
    piece.end_step = min(piece.end, units_to(piece.end_key));
    if (piece.end_key <= piece.first_key || piece.end_step < piece.first_step) piece.end_step = piece.first_step;
    return piece;
  }

 private:
  // Selects one of several row tiles: its rows, and the keys that they see.
  __device__ __forceinline__ void take_tile(const DecodeArgs& args, int item, const DecodeSpan& span, int row_shift) {
    const uint32 index = static_cast<uint32>(item), in_head = index / static_cast<uint32>(span.tiles);
    head = static_cast<int>(in_head);
    row = static_cast<int64>(index - in_head * static_cast<uint32>(span.tiles)) << row_shift;
    const int64 left = static_cast<int64>(span.seqlen_q) * args.group - row;
    num_rows = static_cast<int>(min(left, int64{1} << row_shift));
    const int64 first_row = divide(row, args.group).quotient;
    const int64 end_row = divide(row + num_rows - 1, args.group).quotient + 1;
    const KeyRange keys = span.keys_of_rows(args, first_row, end_row);
    first_key = static_cast<int>(keys.begin);
    end_key = static_cast<int>(keys.end);
  }
};

// The position of a walk through the block's work. Each warp has one in shared memory, because most of it is needed
// only between pieces and registers are scarce. All lanes of the warp call together; one of them writes.
template <class Config>
struct DecodeCursor {
  using Schedule = DecodeSchedule<Config>;
  using Number = typename Schedule::Number;

  DecodeItem<Number> item;
  DecodePiece piece;
  Number number;      // number of the work with which the piece begins
  Number begin, end;  // range of the block's work
  bool is_done;       // there is no further piece
  bool merges;        // the block has the end of the first piece's item, but not its begin

  // Makes the schedule, and sets the cursor to the block's first piece. One warp calls it; others read both after a
  // barrier. kept: room in shared memory for the sequences, or null.
  __device__ __forceinline__ void start(const DecodeArgs& args, Schedule& schedule, DecodeSequence* kept) {
    const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
    DecodeItem<Number> found = {};
    Schedule made;
    const Number at = made.make(args, kept, found);
    const Number behind = __shfl_sync(kAllLanes, at, 1);
    if (lane != 0) return;
    schedule = made;
    item = found;
    begin = at;
    end = behind;
    is_done = begin >= end;
    merges = false;
    if (is_done) return;
    go_to(args, kept, begin);
    merges = !is_done && !piece.begins_item && piece.ends_item;
  }
  // Returns to the block's first piece. `first` is the cursor that start() made.
  __device__ __forceinline__ void restart(const DecodeCursor& first) {
    static_assert(sizeof(DecodeCursor) % sizeof(uint32) == 0);
    constexpr int kWords = sizeof(DecodeCursor) / sizeof(uint32);
    __syncwarp();  // waits until all lanes have read the cursor
#pragma unroll
    for (int from = 0; from < kWords; from += kWarpThreads) {
      const int word = from + static_cast<int>(threadIdx.x) % kWarpThreads;
      if (word < kWords) reinterpret_cast<uint32*>(this)[word] = reinterpret_cast<const uint32*>(&first)[word];
    }
    __syncwarp();  // waits until the piece is written
  }
  // Moves to the next piece.
  __device__ __forceinline__ void advance(const DecodeArgs& args, int lane) {
    __syncwarp();  // waits until all lanes have read the cursor
    if (lane == 0) {
      is_done = item.end() >= end;
      if (!is_done) go_to(args, nullptr, item.end());
    }
    __syncwarp();  // waits until the piece is written
  }

 private:
  // Sets the piece that begins with a number of the block's work, in this item or the next. If the schedule was made
  // from other lengths, the piece may not exist; is_done is then set.
  __device__ __forceinline__ void go_to(const DecodeArgs& args, const DecodeSequence* kept, Number to) {
    if constexpr (decode_moves_registers(DecodeSizes<Config>::kTile)) {
      find(args, kept, to);  // inlined: setmaxnreg has no effect in a kernel with function calls
    } else {
      find_once(args, kept, to);
    }
  }
  __device__ __noinline__ void find_once(const DecodeArgs& args, const DecodeSequence* kept, Number to) {
    find(args, kept, to);
  }
  __device__ __forceinline__ void find(const DecodeArgs& args, const DecodeSequence* kept, Number to) {
    number = to;
    if (to >= item.end() && !Schedule::advance(args, kept, item)) {
      is_done = true;
      return;
    }
    piece = DecodePiece::of(args, item, to, end, Schedule::kRowShift);
  }
};

}  // namespace attend
