// Which block has which part of a decode call's work: equal shares of all items' units, one after another.
//
// Work is numbered: sequence by sequence, item by item, unit by unit. Block b has the numbers [boundary(b),
// boundary(b + 1)). A boundary is near b * share, where few nodes of the tree (decode_tree.cuh) are cut: preferably
// between two items, otherwise at the roundest unit. Every block computes the same boundaries from the lengths, which
// are known on the device only.
#pragma once

#include "../common/warp_reduce.cuh"
#include "decode_span.cuh"
#include "decode_tree.cuh"

namespace attend {

// Where an item begins in the numbers of the work.
struct DecodeItem {
  DecodeSpan span;
  int64 first;  // number of its first unit
  int index;    // of the sequence's items

  [[nodiscard]] __device__ __forceinline__ int64 end() const { return first + span.units(); }
};

// The sequence that has an end of a block's work, before the end's place is chosen.
struct DecodeEnd {
  DecodeSpan span;
  int64 first;  // number of its first unit
};

// Warps that look at sequences.
constexpr int kScanWarps = 4;

struct DecodeSchedule {
  int64 total;
  int64 share;
  int64 slack;    // a boundary may be so far from its ideal place
  int row_shift;  // of a tile: see DecodeSpan::of

  // By all threads of the block: a thread counts some sequences, and the one whose sequences have an end of the block's
  // work tells which it is. In shared memory: where the schedule comes, its two ends, and room for 2 kScanWarps
  // numbers.
  static __device__ __forceinline__ void make(const DecodeArgs& args, int row_shift, DecodeSchedule& shared,
                                              DecodeEnd* ends, int64* totals) {
    const int thread = static_cast<int>(threadIdx.x);
    DecodeSchedule schedule = {0, 0, 0, row_shift};
    Run run = Run::of(args, row_shift, thread);
    int64 sum = run.numbers;
    int most = __reduce_max_sync(kAllLanes, run.most), least = __reduce_min_sync(kAllLanes, run.least);
#pragma unroll
    for (int distance = 1; distance < kWarpThreads; distance *= 2) {
      const int64 before = __shfl_up_sync(kAllLanes, sum, distance);
      if (thread % kWarpThreads >= distance) sum += before;
    }
    const int warp = thread / kWarpThreads;
    if (warp < kScanWarps && thread % kWarpThreads == kWarpThreads - 1) {
      totals[warp] = sum;
      totals[kScanWarps + warp] = static_cast<int64>(most) << 32 | least;
    }
    __syncthreads();  // the warps' sums and extremes are there
    most = 0, least = kMostUnits;
#pragma unroll
    for (int w = 0; w < kScanWarps; ++w) {
      if (w < warp) sum += totals[w];
      schedule.total += totals[w];
      most = max(most, static_cast<int>(totals[kScanWarps + w] >> 32));
      least = min(least, static_cast<int>(totals[kScanWarps + w]));
    }
    schedule.choose_share(most, most == least);
    if (thread == 0) shared = schedule;
    if (warp < kScanWarps) {
#pragma unroll 1
      for (int side = 0; side < 2; ++side) {
        const int64 ideal = schedule.ideal(side);
        if (ideal < sum && ideal >= sum - run.numbers) ends[side] = run.find(args, row_shift, sum - run.numbers, ideal);
      }
    }
    __syncthreads();  // the schedule and its ends are there
  }

  // Where the block's work would begin, or end, with all shares alike.
  [[nodiscard]] __device__ __forceinline__ int64 ideal(int side) const {
    return (static_cast<int64>(blockIdx.x) + side) * share;
  }

  // The item that has number `at` of a sequence.
  [[nodiscard]] static __device__ __forceinline__ DecodeItem item_of(const DecodeEnd& end, int64 at) {
    const int64 index = divide(at - end.first, end.span.units()).quotient;
    return {end.span, end.first + index * end.span.units(), static_cast<int>(index)};
  }

  // The boundary as a distance from the item's first unit, of an ideal number near or in the item.
  [[nodiscard]] __device__ __forceinline__ int snapped(const DecodeItem& item, int64 ideal) const {
    const int begin = item.span.begin_unit, units = item.span.units();
    if (ideal - slack <= item.first) return 0;
    if (ideal + slack >= item.end()) return units;
    const int low = begin + static_cast<int>(ideal - slack - item.first) - 1;
    const int high = begin + static_cast<int>(ideal + slack - item.first);
    const int bits = 31 - __clz(low ^ high);  // above them both are the same: the roundest in (low, high]
    int unit = high >> bits << bits;
    const int level = leaf_level(unit);
    unit = (unit + (1 << level >> 1)) >> level << level;
    return min(max(unit - begin, 0), units);
  }

  // The item behind it, which begins before `end` <= total.
  __device__ __forceinline__ void advance(const DecodeArgs& args, DecodeItem& item) const {
    item.first = item.end();
    if (++item.index < item.span.items) return;
    item.index = 0;
    do {
      item.span = DecodeSpan::of(args, item.span.index + 1, row_shift);
    } while (item.span.items == 0);
  }

 private:
  static constexpr int kMostUnits = 0x7fffffff;

  // The sequences that a thread counts.
  struct Run {
    int64 begin, end;
    int64 numbers;    // of their work
    int most, least;  // units of an item
    DecodeSpan span;  // of the only one, or the last

    [[nodiscard]] static __device__ __forceinline__ Run of(const DecodeArgs& args, int row_shift, int thread) {
      constexpr int kThreads = kScanWarps * kWarpThreads;
      const int64 each = (args.num_sequences + kThreads - 1) / kThreads;
      Run run = {thread * each, 0, 0, 0, kMostUnits, {}};
      run.end = thread < kThreads ? min(run.begin + each, args.num_sequences) : run.begin;
      for (int64 s = run.begin; s < run.end; ++s) {
        run.span = DecodeSpan::of(args, s, row_shift);
        if (run.span.items == 0) continue;
        run.numbers += static_cast<int64>(run.span.items) * run.span.units();
        run.most = max(run.most, run.span.units());
        run.least = min(run.least, run.span.units());
      }
      return run;
    }

    // The sequence that has a number of theirs, the first of which is `first`.
    [[nodiscard]] __device__ __forceinline__ DecodeEnd find(const DecodeArgs& args, int row_shift, int64 first,
                                                            int64 number) const {
      DecodeEnd found = {span, first};
      if (end - begin == 1) return found;
#pragma unroll 1
      for (int64 s = begin;; ++s) {
        found.span = DecodeSpan::of(args, s, row_shift);
        const int64 of_sequence = static_cast<int64>(found.span.items) * found.span.units();
        if (number < found.first + of_sequence) return found;
        found.first += of_sequence;
      }
    }
  };

  // A node of another block takes about as long to merge as a fourth of a unit to compute: a share is not below the
  // root of that, 2^n with 4 4^n >= most, and not below a leaf.
  [[nodiscard]] static __device__ __forceinline__ int64 least_share(int most) {
    if (most <= 1) return 1;
    const int bits = 32 - __clz(most - 1);  // of the next power of two
    return int64{1} << max((bits - 1) / 2, leaf_level(most - 1));
  }

  // most: units of the largest item.
  __device__ __forceinline__ void choose_share(int64 most, bool all_alike) {
    const int64 blocks = gridDim.x;
    share = max(divide(total + blocks - 1, blocks).quotient, least_share(static_cast<int>(most)));
    slack = share / 32;
    if (total == 0) return;
    // A few blocks less keep the memory as busy
    const int64 largest = share + share / 24;
    if (all_alike) {  // whole items, if that is as good
      const int64 whole = divide(share + most - 1, most).quotient * most;
      if (whole <= largest) {
        share = whole;
        slack = 0;
        return;
      }
    }
    const int64 low = share - 1, high = largest;
    const int bits = 63 - __clzll(low ^ high);
    share = high >> bits << bits;
  }
};

}  // namespace attend
