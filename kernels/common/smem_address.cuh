// Addresses of shared memory as PTX takes them, and the swizzle of tiles in it.
#pragma once

#include "portable.cuh"

namespace attend {

constexpr int kSwizzleBytes = 128;               // one row of a panel: 8 pieces of 16 bytes
constexpr int kSwizzleAtom = 8 * kSwizzleBytes;  // the pattern repeats after 8 rows; tiles start on multiples of it
constexpr int kPanelColumns = 64;                // 16-bit elements in a row of a panel

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
// A pointer into shared memory as a 32-bit address.
[[nodiscard]] __device__ __forceinline__ uint32 smem_address(const void* pointer) {
  return static_cast<uint32>(__cvta_generic_to_shared(pointer));
}
#endif

// Byte offset of a 16-byte piece in a tile of 16-bit elements that lies in panels of 64 columns, each `rows` rows of
// 128 bytes: the piece's place in its row is changed by the row's number modulo 8, so that the eight rows of a column
// of pieces lie in different banks. TMA writes this pattern (SWIZZLE_128B), wgmma reads it; start on kSwizzleAtom.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr uint32 swizzled_offset(int rows, int row, int piece) {
  return static_cast<uint32>((piece / 8 * rows + row) * kSwizzleBytes + ((piece % 8) ^ (row % 8)) * 16);
}

}  // namespace attend
