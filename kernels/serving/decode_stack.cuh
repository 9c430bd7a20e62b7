// The stack of a block's tree nodes. Some nodes lie in shared memory, and the others in device memory.
#pragma once

#include "decode_state.cuh"

namespace attend {

// Keeps the first kNodes nodes of the stack in shared memory.
template <int kNodes>
struct FirstNodesShared {
  [[nodiscard]] __device__ __forceinline__ bool is_shared(int index) const { return index < kNodes; }
  [[nodiscard]] __device__ __forceinline__ int in_shared(int index) const { return index; }
  [[nodiscard]] static __device__ __forceinline__ int in_device(int index) { return index - kNodes; }
  // Chooses the place of a node before it is pushed. Returns whether the node lies in shared memory. The second
  // argument is the number of merges that formed the node.
  [[nodiscard]] __device__ __forceinline__ bool take(int index, int) { return is_shared(index); }
  __device__ __forceinline__ void give(int) {}
};

// Used if shared memory has room for only a few nodes. A node of many leaves is read late, so some room in shared
// memory is kept free for nodes that are read soon.
template <int kNodes>
struct SmallNodesShared {
  uint64 shared = 0;  // one bit for each node of the stack: whether it lies in shared memory

  [[nodiscard]] __device__ __forceinline__ bool is_shared(int index) const { return (shared >> index & 1) != 0; }
  [[nodiscard]] __device__ __forceinline__ int in_shared(int index) const {
    return __popcll(static_cast<int64>(shared & ((uint64{1} << index) - 1)));
  }
  [[nodiscard]] static __device__ __forceinline__ int in_device(int index) { return index; }
  [[nodiscard]] __device__ __forceinline__ bool take(int index, int merges) {
    constexpr int kManyMerges = 2, kRoomForOthers = 2;
    const bool takes = in_shared(index) + (merges >= kManyMerges ? kRoomForOthers : 0) < kNodes;
    if (takes) shared |= uint64{1} << index;
    return takes;
  }
  __device__ __forceinline__ void give(int index) { shared ^= uint64{1} << index; }
};

template <int kNodes, bool kFew>
struct DecodeStackPlaces {
  using Type = FirstNodesShared<kNodes>;
};
template <int kNodes>
struct DecodeStackPlaces<kNodes, true> {
  using Type = SmallNodesShared<kNodes>;
};

// Nodes of the tree that wait for their right neighbour, in the order of their keys. Each thread accesses only its
// share of a node.
template <class Config, class OfThread = DecodeState<Config>>
class DecodeStack {
 public:
  using State = OfThread;
  using Places =
      typename DecodeStackPlaces<Config::kStackNodes, decode_shares_small_nodes(DecodeSizes<Config>::kTile)>::Type;

  // `shared` and `device` are the block's memory for the stack in shared memory and in device memory.
  __device__ __forceinline__ DecodeStack(char* shared, char* device) : shared_(shared), device_(device) {}

  // Returns an empty stack that uses the same memory.
  template <class Other>
  [[nodiscard]] __device__ __forceinline__ DecodeStack<Config, Other> again() const {
    return {shared_, device_};
  }

  // State of the stack without the nodes. One thread passes this state to another that continues with the stack.
  struct Control {
    Places places;
    int count, top_begin;
  };
  [[nodiscard]] __device__ __forceinline__ Control control() const { return {places_, count_, top_begin_}; }
  __device__ __forceinline__ void take_control(const Control& control) {
    places_ = control.places;
    count_ = control.count;
    top_begin_ = control.top_begin;
  }

  // Merges a node with its complete left neighbours on the stack. The node begins at unit `begin`, after all nodes of
  // the stack. Nodes that begin before unit `first` belong to another block. Returns the first unit of the merged node.
  [[nodiscard]] __device__ __forceinline__ int complete(State& state, int begin, int level, int first) {
    merges_ = 0;
    for (; count_ > 0 && (begin >> level & 1) != 0; ++level, ++merges_) {
      const int left = begin - (1 << level);
      if (left < first || top_begin_ < left) break;
      merge_top(state);
      begin = left;
    }
    return begin;
  }
  // Merges a node with `merges` left neighbours on the stack.
  __device__ __forceinline__ void complete(State& state, int merges) {
    merges_ = merges;
#pragma unroll 1
    for (; merges > 0; --merges) merge_popped(state);
  }

  // Pushes the node that was last passed to complete(), which begins at unit `begin`. All nodes of a stack must be
  // pushed either by this function or by the other overload of push().
  __device__ __forceinline__ void push(const State& state, int begin) {
    top_begin_ = begin;
    const int index = count_++;
    if (places_.take(index, merges_)) {
      begin_of(in_shared(index)) = begin;
      write(in_shared(index), state);
    } else {
      begin_of(in_device(index)) = begin;
      write(in_device(index), state);
    }
  }
  // Pushes a node without recording where it begins. The two memories have separate branches, because access through a
  // pointer to either memory is slow.
  __device__ __forceinline__ void push(const State& state) {
    const int index = count_++;
    if (places_.take(index, merges_)) {
      write(in_shared(index), state);
    } else {
      write(in_device(index), state);
    }
  }

  // Merges a node with all stack nodes that begin at unit `begin` or later, and removes these nodes from the stack.
  __device__ __forceinline__ void take(State& state, int begin) {
    while (count_ > 0 && top_begin_ >= begin) merge_top(state);
  }
  // Merges a node with all stack nodes, and empties the stack.
  __device__ __forceinline__ void take_all(State& state) {
#pragma unroll 1
    while (count_ > 0) merge_popped(state);
  }

 private:
  static constexpr int kThreads = DecodeSizes<Config>::kStateThreads;
  static constexpr int kVectors = ceil_div(State::kFloats, 4);
  static constexpr int kBytes = decode_stack_bytes(DecodeSizes<Config>::kTile);
  [[nodiscard]] __device__ __forceinline__ char* in_shared(int index) const {
    return shared_ + places_.in_shared(index) * kBytes;
  }
  [[nodiscard]] __device__ __forceinline__ char* in_device(int index) const {
    return device_ + static_cast<int64>(Places::in_device(index)) * kBytes;
  }
  [[nodiscard]] static __device__ __forceinline__ int& begin_of(char* node) {
    return reinterpret_cast<int*>(node + kVectors * kThreads * 16)[state_thread<Config>()];
  }
  static __device__ __forceinline__ void write(char* node, const State& state) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const float* x = state.value + 4 * i;
      reinterpret_cast<float4*>(node)[i * kThreads + state_thread<Config>()] = {x[0], x[1], x[2], x[3]};
    }
  }
  static __device__ __forceinline__ void read(const char* node, State& state) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const float4 x = reinterpret_cast<const float4*>(node)[i * kThreads + state_thread<Config>()];
      state.value[4 * i] = x.x, state.value[4 * i + 1] = x.y;
      state.value[4 * i + 2] = x.z, state.value[4 * i + 3] = x.w;
    }
  }

  // Removes the top node, whose keys precede those of `state`, and merges it into `state`.
  __device__ __forceinline__ void merge_popped(State& state) {
    const int index = --count_;
    if (places_.is_shared(index)) {
      merge_node(in_shared(index), state);
      places_.give(index);
    } else {
      merge_node(in_device(index), state);
    }
  }
  static __device__ __forceinline__ void merge_node(const char* node, State& state) {
    if constexpr (State::kMergesInPieces) {
      state.merge_pieces(
          [&](int i) { return reinterpret_cast<const float4*>(node)[i * kThreads + state_thread<Config>()]; });
    } else {
      State before;
      read(node, before);
      state.merge(before);
    }
  }

  __device__ __forceinline__ void merge_top(State& state) {
    merge_popped(state);
    if (count_ == 0) return;
    const int top = count_ - 1;
    top_begin_ = places_.is_shared(top) ? begin_of(in_shared(top)) : begin_of(in_device(top));
  }

  char* shared_;
  char* device_;
  Places places_;
  int count_ = 0;
  int top_begin_ = 0;
  int merges_ = 0;  // number of merges that formed the next node to be pushed
};

}  // namespace attend
