// Replaces kernels/isa/wgmma.cuh and wgmma_widths.cuh for emulated kernels. A product is computed as soon as it is
// issued. The emulated instruction reads the same shared memory addresses as on a GPU, and sums in the order of mma in
// ptx.hpp.
#pragma once

#include "../common/config_enums.cuh"
#include "../common/portable.cuh"
#include "smem_address.cuh"

namespace attend {

constexpr int kWarpgroup = 128;
constexpr int kWarpgroupRows = 64;
constexpr int kWgmmaDepth = 16;

// The fields have the bit positions of the hardware descriptor, because kernels do arithmetic on these bits.
struct MatrixDescriptor {
  uint64 bits;

  static constexpr uint64 encode(uint32 address, uint32 leading_bytes) {
    return static_cast<uint64>(address >> 4) | static_cast<uint64>(leading_bytes >> 4) << 16;
  }
  static constexpr uint32 kAlongRows = 16;
  static MatrixDescriptor along_rows(uint32 address) { return {encode(address, kAlongRows)}; }
  static MatrixDescriptor down_columns(uint32 address, uint32 panel_bytes) { return {encode(address, panel_bytes)}; }
  MatrixDescriptor advance(uint32 bytes) const { return {bits + (bytes >> 4)}; }
  MatrixDescriptor advance_low(uint32 bytes) const { return advance(bytes); }

  // Returns element (i, k) of an operand. k is the index over which the product sums.
  unsigned short at(int i, int k) const {
    const uint32 address = static_cast<uint32>(bits & 0x3fff) << 4, leading = static_cast<uint32>(bits >> 16 & 0x3fff)
                                                                              << 4;
    const uint32 panel_bytes = leading == kAlongRows ? 0 : leading;
    const uint32 line = panel_bytes == 0 ? static_cast<uint32>(i) * 128 + static_cast<uint32>(k) * 2
                                         : static_cast<uint32>(i / 64) * panel_bytes + static_cast<uint32>(k) * 128 +
                                               static_cast<uint32>(i % 64) * 2;
    const uint32 place = address + line;
    return emulated::load<unsigned short>(emulated::at_smem(place ^ (place / 128 % 8 * 16)));
  }
};

template <int kCount>
void pin_registers(float (&)[kCount]) {}
inline void wgmma_fence() {}
inline void wgmma_commit() {}
template <int kPending, int kCount>
void wgmma_wait(float (&)[kCount]) {
  emulated::warp_barrier();
}
inline void fence_smem_for_async() {}

template <ElementType kElement, int kColumns>
struct WgmmaOp {
  static float to_float(unsigned short bits) {
    return kElement == ElementType::kF16 ? emulated::from_half(bits) : emulated::from_bfloat(bits);
  }

  template <bool kTransposeB, int kSign>
  static void ss(float (&d)[kColumns / 2], MatrixDescriptor a, MatrixDescriptor b, bool accumulate) {
    float rows[2][kWgmmaDepth];
    for (int r = 0; r < 2; ++r) {
      for (int k = 0; k < kWgmmaDepth; ++k) rows[r][k] = kSign * to_float(a.at(first_row() + 8 * r, k));
    }
    multiply(d, rows, b, accumulate);
  }
  template <bool kTransposeB, int kSign>
  static void rs(float (&d)[kColumns / 2], const uint32* a, MatrixDescriptor b, bool accumulate) {
    struct Registers {
      uint32 a[4];
    };
    const Registers own = {{a[0], a[1], a[2], a[3]}};
    const auto* all = emulated::exchange(own);
    float rows[2][kWgmmaDepth];
    for (int i = 0; i < 4; ++i) {
      const auto of_lane = emulated::words_of<Registers>(all, emulated::block->lane() / 4 * 4 + i);
      for (int n = 0; n < 4; ++n) {
        for (int half = 0; half < 2; ++half) {
          rows[n % 2][n / 2 * 8 + i * 2 + half] =
              kSign * to_float(static_cast<unsigned short>(of_lane.a[n] >> half * 16));
        }
      }
    }
    multiply(d, rows, b, accumulate);
  }

 private:
  static int first_row() { return static_cast<int>(threadIdx.x) / 32 % 4 * 16 + emulated::block->lane() / 4; }

  static void multiply(float (&d)[kColumns / 2], const float (&rows)[2][kWgmmaDepth], MatrixDescriptor b,
                       bool accumulate) {
    for (int i = 0; i < kColumns / 2; ++i) {
      const int column = i / 4 * 8 + emulated::block->lane() % 4 * 2 + i % 2;
      float sum = accumulate ? d[i] : 0.0f;
      for (int k = 0; k < kWgmmaDepth; ++k) sum += rows[i % 4 / 2][k] * to_float(b.at(column, k));
      d[i] = sum;
    }
  }
};

}  // namespace attend
