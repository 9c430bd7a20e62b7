// Assigns the work of a decode call to blocks. The units of all items are divided into equal shares, in order.
//
// The units are numbered sequence by sequence and item by item. An item gets `numbers()` consecutive numbers, of which
// some at the end may have no unit. Block b has the numbers [boundary(b), boundary(b + 1)). A boundary lies near b *
// share, at a place that cuts few nodes of the tree (decode_tree.cuh). If possible, it lies between two items.
// Otherwise it is the unit near b * share whose number is a multiple of the highest power of two. Every block computes
// the same boundaries from the sequence lengths, which are available only on the device.
//
// If kLeavesRoom is set, another kernel runs at the same time and handles sequences with many rows. Some blocks then
// get no work and end at once. Half of the blocks are enough to keep memory busy, and the other kernel uses the
// multiprocessors of the ended blocks.
//
// This code runs once in a block, before its instructions are in any cache. So its duration depends on its number of
// instructions.
#pragma once

#include "../common/warp_reduce.cuh"
#include "decode_config.cuh"
#include "decode_span.cuh"
#include "decode_tree.cuh"

namespace attend {

// Type of the numbers that units are given. It has 32 bits unless Config::kManyUnits is set.
template <bool kMany>
struct DecodeNumberOf {
  using Type = int;
  [[nodiscard]] static __device__ __forceinline__ int divide(int value, int divisor) {
    return static_cast<int>(static_cast<uint32>(value) / static_cast<uint32>(divisor));
  }
};
template <>
struct DecodeNumberOf<true> {
  using Type = int64;
  [[nodiscard]] static __device__ __forceinline__ int64 divide(int64 value, int64 divisor) {
    return attend::divide(value, divisor).quotient;
  }
};

// An item, and the range of numbers that it takes.
template <class Number>
struct DecodeItem {
  DecodeSpan span;
  int index;     // index among the items of its sequence
  int of_each;   // size of each item's range of numbers, if all are equal. Otherwise 0
  Number first;  // number of the item's first unit

  [[nodiscard]] __device__ __forceinline__ int numbers() const { return of_each != 0 ? of_each : span.numbers; }
  [[nodiscard]] __device__ __forceinline__ Number end() const { return first + numbers(); }
};

template <class Config>
struct DecodeSchedule {
  using Numbers = DecodeNumberOf<Config::kManyUnits>;
  using Number = typename Numbers::Type;
  using Item = DecodeItem<Number>;
  static constexpr int kRowShift = DecodeSizes<Config>::kRowShift, kLeafShift = DecodeSizes<Config>::kLeafShift;

  Number total;
  Number share;
  Number slack;  // largest distance between a boundary and a multiple of `share`
  int of_each;   // value of DecodeItem::of_each for all items

  // Computes the schedule. One warp calls it. Units of work are numbered. In lane 0 the function returns the number at
  // which the block's work begins, and in lane 1 the number at which it ends. Sets `item` to the item to which the
  // lane's number belongs. `kept` is an array that receives the sequences, or null.
  [[nodiscard]] __device__ __forceinline__ Number make(const DecodeArgs& args, DecodeSequence* kept, Item& item) {
    const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
    const Run run = Run::of(args, kept, lane);
    Number sum = run.numbers;
    const int most = __reduce_max_sync(kAllLanes, run.most), least = __reduce_min_sync(kAllLanes, run.least);
#pragma unroll
    for (int distance = 1; distance < kWarpThreads; distance *= 2) {
      const Number before = __shfl_up_sync(kAllLanes, sum, distance);
      if (lane >= distance) sum += before;
    }
    total = __shfl_sync(kAllLanes, sum, kWarpThreads - 1);
    const int blocks = Config::kLeavesRoom ? busy_blocks(run.left) : static_cast<int>(gridDim.x);
    Number before = sum - run.numbers;  // number of the lane's first unit
    of_each = 0;
    if (most != least || !cut_equally(blocks, most)) {
      choose_share(blocks, most, most == least);
    } else {
      sum = small_quotient(static_cast<int>(sum), most) * of_each;
      before = small_quotient(static_cast<int>(before), most) * of_each;
    }
    const Number begin = static_cast<int>(blockIdx.x) * share, end = begin + share;
    const uint32 with_begin = __ballot_sync(kAllLanes, begin < sum), with_end = __ballot_sync(kAllLanes, end < sum);
    const uint32 owners = lane == 0 ? with_begin : with_end;
    const int owner = max(__ffs(static_cast<int>(owners)) - 1, 0);
    const Number first = __shfl_sync(kAllLanes, before, owner);
    const int sequence = __shfl_sync(kAllLanes, run.begin, owner);
    __syncwarp();  // waits until the sequences have been stored in `kept`; find() may then read them
    if (lane > 1 || owners == 0) return total;
    const Number ideal = lane == 0 ? begin : end;
    item.of_each = of_each;
    find(args, kept, sequence, first, ideal, item);
    return item.first + snapped(item, ideal);
  }

  // Returns the boundary that replaces the number `ideal`, which lies in the item or near it. The result is counted
  // from the item's first unit.
  [[nodiscard]] __device__ __forceinline__ int snapped(const Item& item, Number ideal) const {
    const int begin = item.span.begin_unit, numbers = item.numbers();
    if (ideal - slack <= item.first) return 0;
    if (ideal + slack >= item.end()) return numbers;
    const int low = begin + static_cast<int>(ideal - slack - item.first) - 1;
    const int high = begin + static_cast<int>(ideal + slack - item.first);
    const int bits = 31 - __clz(low ^ high);  // The bits of low and high above this one are equal. So the line below
                                              // yields the number in (low, high] that has the most trailing zero bits
    int unit = high >> bits << bits;
    const int level = leaf_level(unit, kLeafShift);
    unit = (unit + (1 << level >> 1)) >> level << level;
    return unit - begin < item.span.units() ? max(unit - begin, 0) : numbers;
  }

  // Moves to the next item. Returns false if there is no further item.
  [[nodiscard]] static __device__ __forceinline__ bool advance(const DecodeArgs& args, const DecodeSequence* kept,
                                                               Item& item) {
    item.first = item.end();
    if (++item.index < item.span.items) return true;
    if (item.span.index + 1 >= args.num_sequences) return false;
    item.index = 0;
    do {
      item.span = span_of(args, kept, item.span.index + 1);
    } while (item.span.items == 0 && item.span.index + 1 < args.num_sequences);
    return item.span.items > 0;
  }

 private:
  static constexpr int kMostUnits = 0x7fffffff;

  // The sequences that one lane counts, and the results of counting.
  struct Run {
    int begin;
    int most, least;  // largest and smallest size of an item's range of numbers
    Number numbers;   // size of the range of numbers of all items
    float left;       // work of the other kernel, in row tiles times units. Set only with kLeavesRoom

    [[nodiscard]] static __device__ __forceinline__ Run of(const DecodeArgs& args, DecodeSequence* kept, int lane) {
      const int all = static_cast<int>(args.num_sequences), each = (all + kWarpThreads - 1) / kWarpThreads;
      Run run = {lane * each, 0, kMostUnits, 0, 0.0f};
      const int end = min(run.begin + each, all);
#pragma unroll 1
      for (int s = run.begin; s < end; ++s) {
        const DecodeSequence sequence = DecodeSequence::of(args, s);
        if (kept != nullptr) kept[s] = sequence;
        const DecodeSpan span = DecodeSpan::of(args, s, sequence, kRowShift, kLeafShift);
        if (span.items == 0) {
          if constexpr (Config::kLeavesRoom) run.left += work_of_rows(args, span);
          continue;
        }
        run.numbers += static_cast<Number>(span.items) * span.numbers;
        run.most = max(run.most, span.numbers);
        run.least = min(run.least, span.numbers);
      }
      return run;
    }
  };

  // Returns the work of a sequence that the other kernel computes. A tile of that kernel has 128 rows of one head.
  [[nodiscard]] static __device__ __forceinline__ float work_of_rows(const DecodeArgs& args, const DecodeSpan& span) {
    if (span.seqlen_q <= 0) return 0.0f;
    const float tiles = ceilf(static_cast<float>(span.seqlen_q) / 128.0f);
    return tiles * static_cast<float>(args.num_heads_k * args.group) * static_cast<float>(units_to(span.seqlen_k));
  }
  // Returns the number of blocks that get work. The number is chosen so that the two kernels end together, but it is
  // large enough to keep memory busy. On the full GPU, the other kernel computes a unit in about two thirds of this
  // kernel's time.
  [[nodiscard]] __device__ __forceinline__ int busy_blocks(float left_of_lane) const {
    constexpr float kUnit = 0.65f, kLeast = 0.55f;
    float left = left_of_lane;
#pragma unroll
    for (int distance = kWarpThreads / 2; distance > 0; distance /= 2) {
      left += __shfl_xor_sync(kAllLanes, left, distance);
    }
    const float wanted = 1.0f - kUnit * left / fmaxf(static_cast<float>(total), 1.0f);
    return max(static_cast<int>(static_cast<float>(gridDim.x) * fmaxf(wanted, kLeast)), 1);
  }

  [[nodiscard]] static __device__ __forceinline__ DecodeSpan span_of(const DecodeArgs& args, const DecodeSequence* kept,
                                                                     int s) {
    return DecodeSpan::of(args, s, DecodeSequence::of(args, s, kept), kRowShift, kLeafShift);
  }

  // Finds the item that has the number `number`. The search starts at `sequence`, whose first number is `first`.
  static __device__ __forceinline__ void find(const DecodeArgs& args, const DecodeSequence* kept, int sequence,
                                              Number first, Number number, Item& item) {
#pragma unroll 1
    for (;; ++sequence) {
      item.span = span_of(args, kept, sequence);
      const Number of_sequence = static_cast<Number>(item.span.items) * item.numbers();
      if (number - first < of_sequence || sequence + 1 >= args.num_sequences) break;
      first += of_sequence;
    }
    // A previous kernel may still be writing the offsets of sequences. Until that kernel has finished, the offsets may
    // hold any values, and the computed index may lie beyond the last item. The clamp ensures that the item exists
    const uint32 index = static_cast<uint32>(Numbers::divide(number - first, item.numbers()));
    item.index = static_cast<int>(min(index, static_cast<uint32>(max(item.span.items, 1) - 1)));
    item.first = first + static_cast<Number>(item.index) * item.numbers();
  }

  // Returns the smallest share that is worthwhile. Merging a node of another block takes about a quarter of the time of
  // computing a unit. So a share is at least 2^n with 4 * 4^n >= most, and at least one leaf.
  [[nodiscard]] static __device__ __forceinline__ int least_share(int most) {
    if (most <= 1) return 1;
    const int bits = 32 - __clz(most - 1);  // exponent of the next power of two
    return 1 << max((bits - 1) / 2, leaf_level(most - 1, kLeafShift));
  }

  // Extra time of a block that has parts of two items, measured in units.
  static constexpr int kUnitsOfTwoParts = 5;
  // Tries to cut each item into equal parts, so that all blocks together have one part each. This suits a few items of
  // equal length. No block then has parts of two items. The length of a part has few binary digits, so that few nodes
  // begin and end in it. Returns false, and changes nothing, if the shares would grow too much.
  [[nodiscard]] __device__ __forceinline__ bool cut_equally(int blocks, int most) {
    if (total <= 0 || total >= kMostOfSmall) return false;
    const int numbers = static_cast<int>(total), parts = small_quotient(blocks, small_quotient(numbers, most));
    if (parts == 0) return false;
    constexpr int kDigits = 5;
    const int least = small_quotient(most - 1, parts) + 1;
    const int unit = 1 << max(leaf_level(most - 1, kLeafShift), 32 - __clz(least) - kDigits);
    const int equal = max((least + unit - 1) & -unit, least_share(most));
    const int ideal = small_quotient(numbers - 1, blocks) + 1;
    if (equal > max(ideal + kUnitsOfTwoParts, least_share(most))) return false;
    share = equal;
    slack = 0;
    of_each = (small_quotient(most - 1, equal) + 1) * equal;
    total = small_quotient(numbers, most) * of_each;
    return true;
  }
  // Divides numbers below kMostOfSmall with a quarter of the instructions of an integer division. The error of the
  // float quotient is too small to change the integer result.
  static constexpr int kMostOfSmall = 1 << 20;
  [[nodiscard]] static __device__ __forceinline__ int small_quotient(int value, int divisor) {
    return static_cast<int>(__fdividef(static_cast<float>(value) + 0.5f, static_cast<float>(divisor)));
  }

  // Sets the share and the slack. `most` is the length of the longest range of numbers of an item.
  __device__ __forceinline__ void choose_share(int blocks, int most, bool all_alike) {
    share = max(Numbers::divide(total + (blocks - 1), blocks), static_cast<Number>(least_share(most)));
    slack = share / 32;
    if (total == 0) return;
    // The share may grow a little. Fewer blocks then have work, but they still keep memory busy
    const Number largest = share + static_cast<Number>(static_cast<uint64>(share) / 24);
    if (all_alike) {  // tries a share that consists of complete items
      const Number whole = Numbers::divide(share + (most - 1), most) * most;
      if (whole <= largest) {
        share = whole;
        slack = 0;
        return;
      }
    }
    const Number low = share - 1, high = largest;
    const int bits = 63 - __clzll(static_cast<int64>(low) ^ static_cast<int64>(high));
    share = high >> bits << bits;
  }
};

}  // namespace attend
