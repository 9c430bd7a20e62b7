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

struct DecodeSchedule {
  const int64* table;  // shared memory: numbers of the work before every kth sequence
  int64 per_entry;     // k
  int64 total;
  int64 share;
  int64 slack;       // a boundary may be so far from its ideal place
  int64 begin, end;  // the block's numbers
  int rows;          // of a tile

  // By all threads of the block. shared: kDecodeMostUnits + 8 numbers.
  [[nodiscard]] static __device__ __forceinline__ DecodeSchedule make(const DecodeArgs& args, int rows, int64* shared) {
    constexpr int kEntries = kDecodeMostUnits, kWarps = kEntries / kWarpThreads;
    DecodeSchedule schedule = {shared, (args.num_sequences + kEntries - 1) / kEntries, 0, 0, 0, 0, 0, rows};
    const int thread = static_cast<int>(threadIdx.x);
    int64* totals = shared + kEntries + 1;  // of warps
    int64 sum = 0;
    if (thread < kEntries) {
      const int64 begin = thread * schedule.per_entry, end = begin + schedule.per_entry;
      int most = 0, least = 0x7fffffff;
      for (int64 s = begin; s < (end < args.num_sequences ? end : args.num_sequences); ++s) {
        const DecodeSpan span = DecodeSpan::of(args, s, rows);
        if (span.items == 0) continue;
        sum += static_cast<int64>(span.items) * span.units();
        most = max(most, span.units());
        least = min(least, span.units());
      }
      most = __reduce_max_sync(kAllLanes, most);
      least = __reduce_min_sync(kAllLanes, least);
#pragma unroll
      for (int distance = 1; distance < kWarpThreads; distance *= 2) {
        const int64 before = __shfl_up_sync(kAllLanes, sum, distance);
        if (thread % kWarpThreads >= distance) sum += before;
      }
      if (thread % kWarpThreads == kWarpThreads - 1) {
        totals[thread / kWarpThreads] = sum;
        shared[thread / kWarpThreads] = static_cast<int64>(most) << 32 | least;  // units of an item
      }
    }
    __syncthreads();  // the warps' sums and extremes are there
    int most = 0, least = 0x7fffffff;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      if (w < thread / kWarpThreads && thread < kEntries) sum += totals[w];
      schedule.total += totals[w];
      most = max(most, static_cast<int>(shared[w] >> 32));
      least = min(least, static_cast<int>(shared[w]));
    }
    __syncthreads();  // they have been read: the table may take their place
    if (thread < kEntries) shared[thread + 1] = sum;
    if (thread == 0) shared[0] = 0;
    __syncthreads();  // the table is there
    schedule.choose_share(most, most == least);
#pragma unroll 1
    for (int side = 0; side < 2; ++side) {
      const int64 at = schedule.boundary(args, blockIdx.x + side);
      (side == 0 ? schedule.begin : schedule.end) = at;
    }
    return schedule;
  }

  // The first number of the block's work.
  [[nodiscard]] __device__ __forceinline__ int64 boundary(const DecodeArgs& args, int64 block) const {
    const int64 ideal = block * share;
    if (ideal <= 0) return 0;
    if (ideal >= total) return total;
    const DecodeItem item = find(args, ideal);
    return item.first + snapped(item, ideal);
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

  // The item that has a number < total.
  [[nodiscard]] __device__ __noinline__ DecodeItem find(const DecodeArgs& args, int64 number) const {
    int low = 0, high = kDecodeMostUnits;  // it is one of the entries [low, high)
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (table[middle] <= number ? low : high) = middle;
    }
    DecodeItem item = {};
    item.first = table[low];
    for (int64 s = low * per_entry;; ++s) {
      item.span = DecodeSpan::of(args, s, rows);
      const int64 numbers = static_cast<int64>(item.span.items) * item.span.units();
      if (number < item.first + numbers) break;
      item.first += numbers;
    }
    item.index = static_cast<int>(divide(number - item.first, item.span.units()).quotient);
    item.first += static_cast<int64>(item.index) * item.span.units();
    return item;
  }

  // The item behind it, which begins before `end` <= total.
  __device__ __forceinline__ void advance(const DecodeArgs& args, DecodeItem& item) const {
    item.first = item.end();
    if (++item.index < item.span.items) return;
    item.index = 0;
    do {
      item.span = DecodeSpan::of(args, item.span.index + 1, rows);
    } while (item.span.items == 0);
  }

 private:
  // most: units of the largest item.
  __device__ __forceinline__ void choose_share(int64 most, bool all_alike) {
    const int64 blocks = gridDim.x;
    share = divide(total + blocks - 1, blocks).quotient;
    slack = share / 32;
    if (total == 0) return;
    if (all_alike) {  // whole items, if that is as good
      const int64 whole = divide(share + most - 1, most).quotient * most;
      if (whole <= share + share / 24) {
        share = whole;
        slack = 0;
        return;
      }
    }
    const int64 low = share - 1, high = share + slack;
    const int bits = 63 - __clzll(low ^ high);
    share = high >> bits << bits;
  }
};

}  // namespace attend
