// Addresses in shared memory for PTX, and the swizzle of tiles in shared memory.
#pragma once

#include "../common/element.cuh"
#include "../common/portable.cuh"

namespace attend {

constexpr int kChunkBytes = 16;                    // size of the widest load, store and copy
constexpr int kTileElementBytes = sizeof(Bits16);  // size of an element in every tile of chunks or panels
constexpr int kChunkElements = kChunkBytes / kTileElementBytes;
constexpr int kSwizzleBytes = 128;               // size of a row of a panel, which has 8 chunks
constexpr int kSwizzleAtom = 8 * kSwizzleBytes;  // size of 8 rows, after which the pattern repeats. Tiles start at
                                                 // multiples of this size
constexpr int kPanelColumns = kSwizzleBytes / kTileElementBytes;

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
// Whether elements have the size that these tiles require. Kernels that store q, k, v and o in such tiles assert it.
template <class Config>
constexpr bool kFitsTiles = sizeof(typename ElementOf<Config>::Storage) == kTileElementBytes;

// Converts a pointer into shared memory to a 32-bit address.
[[nodiscard]] __device__ __forceinline__ uint32 smem_address(const void* pointer) {
  return static_cast<uint32>(__cvta_generic_to_shared(pointer));
}
#endif

// Returns the byte offset of a chunk in a tile of 16-bit elements. The tile lies in panels of 64 columns. A panel has
// `rows` rows of 128 bytes. The place of a chunk in its row is XORed with the row number modulo 8, so that the eight
// rows of a column of chunks lie in different banks. TMA writes this pattern (SWIZZLE_128B), and wgmma reads it. Tiles
// start at multiples of kSwizzleAtom.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr uint32 swizzled_offset(int rows, int row, int chunk) {
  return static_cast<uint32>((chunk / 8 * rows + row) * kSwizzleBytes + ((chunk % 8) ^ (row % 8)) * kChunkBytes);
}

}  // namespace attend
