// Rows of keys or values in a slot of the decode kernels' ring.
//
// Rows have no padding: chunks of 16 bytes change places inside of a row instead, so that the same chunk of eight
// neighbouring rows lies in different banks. A copy then fills whole lines of 128 bytes of shared memory from whole
// lines of device memory; where rows are padded it does not, and takes more requests.
//
//   DecodeSlotRows    rows lie one behind the other
//   DecodeSlotPanels  panels of 128 bytes of all rows lie one behind the other, as the copy engine puts boxes down
#pragma once

#include "../common/portable.cuh"
#include "../isa/smem_address.cuh"
#include "decode_shape.cuh"

namespace attend {

template <int kBytes>
struct DecodeSlotRows {
  static constexpr int kChunk = 16;
  static constexpr int kPitch = kBytes;  // from row to row
  static constexpr int kChunks = kBytes / kChunk;
  // So many neighbouring chunks change places among each other.
  static constexpr int kGroup = kChunks % 8 == 0 ? 8 : kChunks % 4 == 0 ? 4 : kChunks % 2 == 0 ? 2 : 1;
  static_assert(kBytes % kChunk == 0);

  // A chunk lies where its number XOR the row's twist says. Rows that are a multiple of eight apart have the same. If
  // two row numbers have no binary digit in common, the twist of their sum is the XOR of their twists.
  [[nodiscard]] static __device__ __forceinline__ constexpr int twist(int row) { return row / (8 / kGroup) % kGroup; }
  // Where a chunk lies, in bytes from the slot's begin.
  [[nodiscard]] static __device__ __forceinline__ constexpr int place(int row, int chunk) {
    return row * kPitch + (chunk ^ twist(row)) * kChunk;
  }
  // Likewise an element of a size in bytes.
  template <int kElementBytes>
  [[nodiscard]] static __device__ __forceinline__ constexpr int place_of(int row, int column) {
    const int byte = column * kElementBytes;
    return place(row, byte / kChunk) + byte % kChunk;
  }
  // From the address of a chunk to that of the chunk `further` behind it in the same row, if the chunk's number and
  // `further` have no binary digit below kGroup in common.
  [[nodiscard]] static __device__ __forceinline__ constexpr uint32 behind(uint32 address, int further) {
    return (address ^ static_cast<uint32>(further % kGroup * kChunk)) + further / kGroup * kGroup * kChunk;
  }
  // From the address of a row's chunk to that of the same chunk `further` rows behind it, if the row's number and
  // `further` have no binary digit in common.
  [[nodiscard]] static __device__ __forceinline__ constexpr uint32 below(uint32 address, int further) {
    return (address ^ static_cast<uint32>(twist(further) * kChunk)) + further * kPitch;
  }
};

// The same for panels: kBytes is a multiple of theirs. Columns that pad a row to that arrive as zeros.
template <int kBytes>
struct DecodeSlotPanels {
  static constexpr int kChunk = kChunkBytes;
  static constexpr int kPitch = kSwizzleBytes;
  static constexpr int kChunks = kBytes / kChunk;
  static constexpr int kGroup = kPitch / kChunk;
  static constexpr int kPanels = kBytes / kPitch;
  static constexpr int kPanelBytes = kStepKeys * kPitch;
  static_assert(kBytes % kPitch == 0);

  [[nodiscard]] static __device__ __forceinline__ constexpr int twist(int row) { return row % kGroup; }
  [[nodiscard]] static __device__ __forceinline__ constexpr int place(int row, int chunk) {
    return chunk / kGroup * kPanelBytes + row * kPitch + (chunk % kGroup ^ twist(row)) * kChunk;
  }
  template <int kElementBytes>
  [[nodiscard]] static __device__ __forceinline__ constexpr int place_of(int row, int column) {
    const int byte = column * kElementBytes;
    return place(row, byte / kChunk) + byte % kChunk;
  }
  [[nodiscard]] static __device__ __forceinline__ constexpr uint32 behind(uint32 address, int further) {
    return (address ^ static_cast<uint32>(further % kGroup * kChunk)) + further / kGroup * kPanelBytes;
  }
  [[nodiscard]] static __device__ __forceinline__ constexpr uint32 below(uint32 address, int further) {
    return (address ^ static_cast<uint32>(twist(further) * kChunk)) + further * kPitch;
  }
};

}  // namespace attend
