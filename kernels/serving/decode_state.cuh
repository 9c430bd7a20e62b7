// The result over some keys, of a tile of rows: o not yet divided by the row sums, and the rows' maxima and sums. It is
// spread over the computing threads of a block, each of which merges its own share: no thread waits for another. A sum
// is that of the keys whose scores the thread had: those of all threads are added when an item is done.
//
//   m = max(m_a, m_b),  l = 2^(m_a - m) l_a + 2^(m_b - m) l_b,  o = 2^(m_a - m) o_a + 2^(m_b - m) o_b
//
// Source: Milakov & Gimelshein, Online normalizer calculation for softmax (2018), section 3.1
#pragma once

#include "../common/numbers.cuh"
#include "decode_config.cuh"
#include "decode_tree.cuh"

namespace attend {

template <class Config>
struct DecodeState {
  using Sizes = DecodeSizes<Config>;
  static constexpr int kFloats = decode_state_floats(Sizes::kTile);
  static constexpr int kOwned = Sizes::kOwned, kEights = Sizes::kEights;

  float value[kFloats];  // of a thread

  // o of the thread's column tile `tile`, rows 2 (lane % 4) + element % 2 of eight `n`.
  [[nodiscard]] __device__ __forceinline__ float& o(int tile, int n, int element) {
    return value[(tile * kEights + n) * 4 + element];
  }
  [[nodiscard]] __device__ __forceinline__ float o(int tile, int n, int element) const {
    return value[(tile * kEights + n) * 4 + element];
  }
  [[nodiscard]] __device__ __forceinline__ float row_max(int n, int row) const {
    return value[(kOwned * kEights + n) * 4 + row];
  }
  [[nodiscard]] __device__ __forceinline__ float row_sum(int n, int row) const {
    return value[(kOwned * kEights + n) * 4 + 2 + row];
  }
  [[nodiscard]] __device__ __forceinline__ float& row_max(int n, int row) {
    return value[(kOwned * kEights + n) * 4 + row];
  }
  [[nodiscard]] __device__ __forceinline__ float& row_sum(int n, int row) {
    return value[(kOwned * kEights + n) * 4 + 2 + row];
  }

  [[nodiscard]] static __device__ __forceinline__ DecodeState empty() {
    DecodeState state;
#pragma unroll
    for (float& x : state.value) x = 0.0f;
#pragma unroll
    for (int n = 0; n < kEights; ++n) state.row_max(n, 0) = state.row_max(n, 1) = -kInfinity;
    return state;
  }

  // Of keys before this one's.
  __device__ __forceinline__ void merge(const DecodeState& before) {
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const float top = fmaxf(before.row_max(n, row), row_max(n, row));
        const float base = exponent_base(top);
        const float of_before = exp2_fast(before.row_max(n, row) - base), own = exp2_fast(row_max(n, row) - base);
        row_max(n, row) = top;
        row_sum(n, row) = of_before * before.row_sum(n, row) + own * row_sum(n, row);
#pragma unroll
        for (int tile = 0; tile < kOwned; ++tile) {
#pragma unroll
          for (int half = 0; half < 4; half += 2) {
            o(tile, n, half + row) = of_before * before.o(tile, n, half + row) + own * o(tile, n, half + row);
          }
        }
      }
    }
  }
};

// Nodes of the tree that wait for their right neighbour, in the order of their keys. The first of them lie in shared
// memory, the others in device memory. Each thread sees its own share alone.
template <class Config, class OfThread = DecodeState<Config>>
class DecodeStack {
 public:
  using State = OfThread;

  // device: of the block; those in shared memory have no room there.
  __device__ __forceinline__ DecodeStack(char* shared, char* device) : shared_(shared), device_(device) {}

  // An empty one in the same memory.
  template <class Other>
  [[nodiscard]] __device__ __forceinline__ DecodeStack<Config, Other> again() const {
    return {shared_, device_};
  }

  // Merges a node with its left neighbours on the stack, as far as they are complete. The node begins at `begin`, right
  // of all that are there; the result at the number returned. first: nodes that begin before it lie in another block.
  [[nodiscard]] __device__ __forceinline__ int complete(State& state, int begin, int level, int first) {
    for (; count_ > 0 && (begin >> level & 1) != 0; ++level) {
      const int left = begin - (1 << level);
      if (left < first || top_begin_ < left) break;
      merge_top(state);
      begin = left;
    }
    return begin;
  }
  // Likewise with so many neighbours.
  __device__ __forceinline__ void complete(State& state, int merges) {
#pragma unroll 1
    for (; merges > 0; --merges) state.merge(popped());
  }

  // Puts a node on the stack. One that has nodes without a begin takes no others.
  __device__ __forceinline__ void push(const State& state, int begin) {
    begin_at(count_) = begin;
    top_begin_ = begin;
    push(state);
  }
  // A branch for each memory: a pointer that may be of either is slow.
  __device__ __forceinline__ void push(const State& state) {
    const int index = count_++;
    if (index < Config::kStackNodes) {
      write(shared_ + index * kBytes, state);
    } else {
      write(in_device(index), state);
    }
  }

  // Merges a node with all that begin at `begin` or behind it, and removes them.
  __device__ __forceinline__ void take(State& state, int begin) {
    while (count_ > 0 && top_begin_ >= begin) merge_top(state);
  }
  // With all of them.
  __device__ __forceinline__ void take_all(State& state) {
#pragma unroll 1
    while (count_ > 0) state.merge(popped());
  }

 private:
  static constexpr int kThreads = DecodeSizes<Config>::kComputeThreads;
  static constexpr int kVectors = ceil_div(State::kFloats, 4);
  static constexpr int kBytes = decode_stack_bytes(DecodeSizes<Config>::kTile);

  [[nodiscard]] __device__ __forceinline__ char* in_device(int index) const {
    return device_ + static_cast<int64>(index - Config::kStackNodes) * kBytes;
  }
  [[nodiscard]] static __device__ __forceinline__ int& begin_of(char* node) {
    return reinterpret_cast<int*>(node + kVectors * kThreads * 16)[threadIdx.x];
  }
  [[nodiscard]] __device__ __forceinline__ int& begin_at(int index) const {
    return index < Config::kStackNodes ? begin_of(shared_ + index * kBytes) : begin_of(in_device(index));
  }
  static __device__ __forceinline__ void write(char* node, const State& state) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const float* x = state.value + 4 * i;
      reinterpret_cast<float4*>(node)[i * kThreads + threadIdx.x] = {x[0], x[1], x[2], x[3]};
    }
  }
  static __device__ __forceinline__ void read(const char* node, State& state) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const float4 x = reinterpret_cast<const float4*>(node)[i * kThreads + threadIdx.x];
      state.value[4 * i] = x.x, state.value[4 * i + 1] = x.y;
      state.value[4 * i + 2] = x.z, state.value[4 * i + 3] = x.w;
    }
  }

  [[nodiscard]] __device__ __forceinline__ State popped() {
    const int index = --count_;
    State state;
    if (index < Config::kStackNodes) {
      read(shared_ + index * kBytes, state);
    } else {
      read(in_device(index), state);
    }
    return state;
  }

  __device__ __forceinline__ void merge_top(State& state) {
    state.merge(popped());
    if (count_ > 0) top_begin_ = begin_at(count_ - 1);
  }

  char* shared_;
  char* device_;
  int count_ = 0;
  int top_begin_ = 0;
};

}  // namespace attend
