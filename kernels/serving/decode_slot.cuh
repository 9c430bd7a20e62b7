// Layouts of the rows of keys or values in a slot of the decode kernels' ring.
//
// Rows have no padding. Instead, 16-byte chunks are permuted within a row, so that the same chunk of eight neighbouring
// rows lies in different banks. A copy then moves full 128-byte lines of device memory to full 128-byte lines of shared
// memory. Padded rows would need more requests for the same copy.
//
// - DecodeSlotRows stores the rows one after another.
// - DecodeSlotPanels stores panels one after another. A panel is 128 bytes of each row, which is what the copy engine
//   writes.
#pragma once

#include "../common/portable.cuh"
#include "../isa/smem_address.cuh"
#include "decode_shape.cuh"

namespace attend {

template <int kBytes>
struct DecodeSlotRows {
  static constexpr int kChunk = 16;
  static constexpr int kPitch = kBytes;  // bytes from a row to the next
  static constexpr int kChunks = kBytes / kChunk;
  // Number of neighbouring chunks within which chunks are permuted.
  static constexpr int kGroup = kChunks % 8 == 0 ? 8 : kChunks % 4 == 0 ? 4 : kChunks % 2 == 0 ? 2 : 1;
  static_assert(kBytes % kChunk == 0);

  // Returns the row's twist: chunk c lies at position c XOR twist. Rows that are a multiple of eight apart have the
  // same twist. If two row numbers have no set bit in common, the twist of their sum is the XOR of their twists.
  [[nodiscard]] static __device__ __forceinline__ constexpr int twist(int row) { return row / (8 / kGroup) % kGroup; }
  // Returns the place of a chunk, in bytes from the start of the slot.
  [[nodiscard]] static __device__ __forceinline__ constexpr int place(int row, int chunk) {
    return row * kPitch + (chunk ^ twist(row)) * kChunk;
  }
  // Returns the place of an element of kElementBytes bytes, in bytes from the start of the slot.
  template <int kElementBytes>
  [[nodiscard]] static __device__ __forceinline__ constexpr int place_of(int row, int column) {
    const int byte = column * kElementBytes;
    return place(row, byte / kChunk) + byte % kChunk;
  }
  // Advances the address of a chunk by `further` chunks in the same row. The number of the chunk and `further` must
  // have no set bit below kGroup in common.
  [[nodiscard]] static __device__ __forceinline__ constexpr uint32 behind(uint32 address, int further) {
    return (address ^ static_cast<uint32>(further % kGroup * kChunk)) + further / kGroup * kGroup * kChunk;
  }
  // Advances the address of a chunk by `further` rows. The number of the row and `further` must have no set bit in
  // common.
  [[nodiscard]] static __device__ __forceinline__ constexpr uint32 below(uint32 address, int further) {
    return (address ^ static_cast<uint32>(twist(further) * kChunk)) + further * kPitch;
  }
};

// Has the interface of DecodeSlotRows, for panels. kBytes is a multiple of the panel width. The copy engine fills the
// columns that pad a row to this multiple with zeros.
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
