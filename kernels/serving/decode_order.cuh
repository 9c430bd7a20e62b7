// The order in which the steps of a piece pass through the ring.
//
// By default the steps pass in the order of their keys. If two warpgroups compute alternating leaves (kLeavesInTurns),
// the steps of two leaves alternate. The first warpgroup computes the leaves 0, 2, 4 and so on of a piece. The second
// warpgroup computes the leaves 1, 3, 5 and so on. So the two warpgroups have work at the same time, and the nodes of
// the tree do not change.
#pragma once

#include "decode_tree.cuh"

namespace attend {

// Two leaves with the units [begin, middle) and [middle, end). The second leaf may be empty.
struct LeafPair {
  int begin, middle, end;

  // Returns the pair that begins with `unit`, in a piece that ends at `end`.
  [[nodiscard]] static __device__ __forceinline__ LeafPair of(int unit, int end) {
    constexpr int kShift = 0;  // tiles whose leaves alternate have small nodes, so decode_leaf_shift() is 0
    const int middle = min(leaf_end(unit, kShift), end);
    return {unit, middle, middle < end ? min(leaf_end(middle, kShift), end) : middle};
  }
  [[nodiscard]] __device__ __forceinline__ int begin_of(bool second) const { return second ? middle : begin; }
  [[nodiscard]] __device__ __forceinline__ int end_of(bool second) const { return second ? end : middle; }

  // Returns the unit of a step, counted from the first step of the pair.
  [[nodiscard]] __device__ __forceinline__ int unit_of_step(int step) const {
    const int of_first = middle - begin, of_second = end - middle, both = min(of_first, of_second);
    if (step < 2 * both) return (step % 2 == 0 ? begin : middle) + step / 2;
    return (of_first > of_second ? begin : middle) + step - both;
  }
};

// Order of the steps of a piece. If kInPairs is set, the steps of two leaves alternate.
template <bool kInPairs>
class DecodeOrder {
 public:
  __device__ __forceinline__ void start(int begin, int end) { unit_ = begin, end_ = end; }
  [[nodiscard]] __device__ __forceinline__ bool is_done() const { return unit_ >= end_; }
  [[nodiscard]] __device__ __forceinline__ int unit() const { return unit_; }
  [[nodiscard]] __device__ __forceinline__ int part() const { return 0; }
  __device__ __forceinline__ void advance() { ++unit_; }

 private:
  int unit_ = 0, end_ = 0;
};
template <>
class DecodeOrder<true> {
 public:
  __device__ __forceinline__ void start(int begin, int end) {
    end_ = end;
    step_ = 0;
    pair_ = LeafPair::of(begin, end);
  }
  [[nodiscard]] __device__ __forceinline__ bool is_done() const { return pair_.begin >= end_; }
  [[nodiscard]] __device__ __forceinline__ int unit() const { return pair_.unit_of_step(step_); }
  // Returns the number of the warpgroup that computes the step.
  [[nodiscard]] __device__ __forceinline__ int part() const { return unit() < pair_.middle ? 0 : 1; }
  __device__ __forceinline__ void advance() {
    if (++step_ < pair_.end - pair_.begin) return;
    step_ = 0;
    pair_ = LeafPair::of(pair_.end, end_);
  }

 private:
  LeafPair pair_ = {};
  int step_ = 0, end_ = 0;
};

}  // namespace attend
