// A piece is the part of an item that one block computes. A piece consists of a range of units, and of the range of
// keys in these units that the rows see.
#pragma once

#include "decode_schedule.cuh"

namespace attend {

struct DecodePiece {
  int begin, end;            // units [begin, end)
  int first_step, end_step;  // units [first_step, end_step), which have keys that some row of the tile sees
  int first_key, end_key;    // keys [first_key, end_key) of the item that some row of the tile sees
  int head;                  // head of k and v
  int64 row;                 // first packed row of the tile
  int num_rows;              // number of rows in the tile
  bool begins_item, ends_item;

  [[nodiscard]] __device__ __forceinline__ bool is_whole() const { return begins_item && ends_item; }

  // Returns the piece of an item. The units of the block's work have the numbers [begin, end).
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
  // Selects one of several row tiles. Sets its rows and the keys that they see.
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

// Position of a warp in the block's work. Each warp has a cursor in shared memory, because registers are scarce and
// most members are read only between pieces. All lanes of the warp call the functions together, and one lane writes.
template <class Config>
struct DecodeCursor {
  using Schedule = DecodeSchedule<Config>;
  using Number = typename Schedule::Number;

  DecodeItem<Number> item;
  DecodePiece piece;
  Number number;      // number of the first unit of the piece
  Number begin, end;  // numbers [begin, end) of the block's work
  bool is_done;       // whether there is no further piece
  bool merges;        // whether the block computes the end, but not the start, of the item of its first piece

  // Computes the schedule, and sets the cursor to the block's first piece. One warp calls it. Other warps may read the
  // schedule and the cursor after a barrier. `kept` is room in shared memory for the sequences, or null.
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
  // Moves back to the block's first piece. `first` is the cursor that start() set.
  __device__ __forceinline__ void restart(const DecodeCursor& first) {
    static_assert(sizeof(DecodeCursor) % sizeof(uint32) == 0);
    constexpr int kWords = sizeof(DecodeCursor) / sizeof(uint32);
    __syncwarp();  // waits until all lanes have read the cursor, which may then be overwritten
#pragma unroll
    for (int from = 0; from < kWords; from += kWarpThreads) {
      const int word = from + static_cast<int>(threadIdx.x) % kWarpThreads;
      if (word < kWords) reinterpret_cast<uint32*>(this)[word] = reinterpret_cast<const uint32*>(&first)[word];
    }
    __syncwarp();  // waits until the cursor is written; all lanes may then read it
  }
  // Moves to the next piece.
  __device__ __forceinline__ void advance(const DecodeArgs& args, int lane) {
    __syncwarp();  // waits until all lanes have read the cursor, which may then be overwritten
    if (lane == 0) {
      is_done = item.end() >= end;
      if (!is_done) go_to(args, nullptr, item.end());
    }
    __syncwarp();  // waits until the cursor is written; all lanes may then read it
  }

 private:
  // Sets the piece whose first unit has the number `to`. The piece lies in this item or in the next. If the schedule
  // was computed from other lengths, there may be no such piece. In that case the function sets is_done.
  __device__ __forceinline__ void go_to(const DecodeArgs& args, const DecodeSequence* kept, Number to) {
    if constexpr (decode_moves_registers(DecodeSizes<Config>::kTile)) {
      find(args, kept, to);  // inlined, because setmaxnreg has no effect in a kernel with function calls
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
