// Replaces kernels/isa/wgmma_e4m3.cuh for emulated kernels.
#pragma once

#include "wgmma.cuh"

namespace attend {

constexpr int kE4M3Depth = 32;
constexpr float kE4M3Largest = 448.0f;
constexpr uint32 kE4M3Ones = 0x38383838;

inline uint32 pack_e4m3(float a, float b, float c, float d) {
  uint32 four;
  ptx_cvt_rn_satfinite_e4m3x2_f32(four, a, b, c, d);
  return four;
}

// Sums in float32. The tensor cores would keep 14 bits of each sum.
template <int kColumns>
struct WgmmaE4M3 {
  template <int kSign>
  static void ss(float (&d)[kColumns / 2], MatrixDescriptor a, MatrixDescriptor b, bool accumulate) {
    float rows[2][kE4M3Depth];
    for (int r = 0; r < 2; ++r) {
      for (int k = 0; k < kE4M3Depth; ++k) rows[r][k] = kSign * at(a, first_row() + 8 * r, k);
    }
    multiply(d, rows, b, accumulate);
  }
  static void rs(float (&d)[kColumns / 2], const uint32* a, MatrixDescriptor b, bool accumulate) {
    struct Registers {
      uint32 a[4];
    };
    const Registers own = {{a[0], a[1], a[2], a[3]}};
    const auto* all = emulated::exchange(own);
    float rows[2][kE4M3Depth];
    for (int i = 0; i < 4; ++i) {
      const auto of_lane = emulated::words_of<Registers>(all, emulated::block->lane() / 4 * 4 + i);
      for (int n = 0; n < 4; ++n) {
        for (int byte = 0; byte < 4; ++byte) {
          rows[n % 2][n / 2 * 16 + i * 4 + byte] = emulated::from_e4m3(of_lane.a[n] >> 8 * byte & 0xff);
        }
      }
    }
    multiply(d, rows, b, accumulate);
  }

 private:
  static int first_row() { return static_cast<int>(threadIdx.x) / 32 % 4 * 16 + emulated::block->lane() / 4; }

  // Returns element (i, k) of an operand whose rows run along the summed dimension.
  static float at(MatrixDescriptor operand, int i, int k) {
    const unsigned pair = operand.at(i, k / 2);
    return emulated::from_e4m3(k % 2 == 0 ? pair & 0xff : pair >> 8);
  }

  static void multiply(float (&d)[kColumns / 2], const float (&rows)[2][kE4M3Depth], MatrixDescriptor b,
                       bool accumulate) {
    for (int i = 0; i < kColumns / 2; ++i) {
      const int column = i / 4 * 8 + emulated::block->lane() % 4 * 2 + i % 2;
      float sum = accumulate ? d[i] : 0.0f;
      for (int k = 0; k < kE4M3Depth; ++k) sum += rows[i % 4 / 2][k] * at(b, column, k);
      d[i] = sum;
    }
  }
};

}  // namespace attend
