/// Tile registers of Intel's AMX, and an emulation in memory for machines without AMX. Included only by bf16_amx.cpp.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace attend::cpu {

constexpr int kTile = 16;  // number of rows of a tile register, which is also the number of 32-bit words in a row
constexpr std::int64_t kWordBytes = 4;

/// Operand of the instruction ldtilecfg. Source of the layout: Intel 64 and IA-32 Architectures Software Developer's
/// Manual, volume 1, section 18.3.2.
struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {kTile, kTile, kTile, kTile, kTile, kTile, kTile, kTile};
};
static_assert(sizeof(TileConfig) == 64);

/// A block of C is up to 2 x 2 tiles. Registers 0 to 3 hold the tiles of C, 4 and 5 those of A, and 6 and 7 those of B.
constexpr int register_of_c(int row, int col) {
  return 2 * row + col;
}
constexpr int register_of_a(int row) {
  return 4 + row;
}
constexpr int register_of_b(int col) {
  return 6 + col;
}

/// The eight tile registers. Every tile has its full size of 16 rows of 64 bytes. The instructions are written in
/// assembly, which needs no compiler flag.
class AmxTiles {
 public:
  template <int kRegister>
  void clear() {
    asm volatile("tilezero %%tmm%c0" ::"i"(kRegister));
  }
  template <int kRegister>
  void load(const void* first_row, std::int64_t row_bytes) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(first_row), "r"(row_bytes), "i"(kRegister) : "memory");
  }
  template <int kRegister>
  void store(float* first_row, std::int64_t row_bytes) const {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(first_row), "r"(row_bytes), "i"(kRegister) : "memory");
  }
  /// Adds the product of A's tile kRow and B's tile kCol to C's tile (kRow, kCol).
  template <int kRow, int kCol>
  void multiply_add() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(register_of_c(kRow, kCol)), "i"(register_of_a(kRow)),
                 "i"(register_of_b(kCol)));
  }
};

/// The operations of AmxTiles, computed with loops on arrays in memory. Subnormal numbers are treated as zeros, as by
/// tdpbf16ps.
class EmulatedTiles {
 public:
  template <int kRegister>
  void clear() {
    std::memset(words_[kRegister], 0, sizeof words_[kRegister]);
  }
  template <int kRegister>
  void load(const void* first_row, std::int64_t row_bytes) {
    for (int r = 0; r < kTile; ++r) {
      std::memcpy(words_[kRegister][r], static_cast<const char*>(first_row) + r * row_bytes, kTile * kWordBytes);
    }
  }
  template <int kRegister>
  void store(float* first_row, std::int64_t row_bytes) const {
    for (int r = 0; r < kTile; ++r) {
      std::memcpy(reinterpret_cast<char*>(first_row) + r * row_bytes, words_[kRegister][r], kTile * kWordBytes);
    }
  }
  template <int kRow, int kCol>
  void multiply_add() {
    auto& sums = words_[register_of_c(kRow, kCol)];
    const auto& right = words_[register_of_b(kCol)];
    for (int r = 0; r < kTile; ++r) {
      float low_sum[kTile] = {};
      float high_sum[kTile] = {};
      for (int pair = 0; pair < kTile; ++pair) {
        const std::uint32_t a = words_[register_of_a(kRow)][r][pair];
        const float a_low = flushed_bits(a << 16);
        const float a_high = flushed_bits(a & 0xffff0000);
        for (int c = 0; c < kTile; ++c) {  // the inner loop is over columns, so that the compiler vectorises it
          low_sum[c] = flushed(low_sum[c] + a_low * flushed_bits(right[pair][c] << 16));
          high_sum[c] = flushed(high_sum[c] + a_high * flushed_bits(right[pair][c] & 0xffff0000));
        }
      }
      for (int c = 0; c < kTile; ++c) {
        const float sum = flushed_bits(sums[r][c]) + flushed(low_sum[c] + high_sum[c]);
        sums[r][c] = std::bit_cast<std::uint32_t>(flushed(sum));
      }
    }
  }

 private:
  static float flushed(float x) { return std::abs(x) < std::numeric_limits<float>::min() ? 0.0F : x; }
  static float flushed_bits(std::uint32_t bits) { return flushed(std::bit_cast<float>(bits)); }

  std::uint32_t words_[8][kTile][kTile];
};

}  // namespace attend::cpu
