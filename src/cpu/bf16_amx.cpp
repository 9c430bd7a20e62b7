#include "cpu/bf16_amx.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "cpu/tiles.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "core/problem.hpp"

#define ATTEND_AMX_TARGET __attribute__((target("avx512f")))
#endif
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // of GCC 12's own header, for its undefined vectors
#endif

namespace attend::cpu {

#if defined(__x86_64__)
namespace {

constexpr int kTile = 16;  // rows of a tile register, and words of 32 bits in a row
constexpr std::int64_t kWordBytes = 4;
constexpr std::int64_t kMaxPairs = core::kMaxHeadDim / 2;  // more than those of a tile of keys or rows

/// Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, section 18.3.2.
struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {kTile, kTile, kTile, kTile, kTile, kTile, kTile, kTile};
};
static_assert(sizeof(TileConfig) == 64);

/// The eight tile registers, all whole. In assembly, for that no compiler flag is needed.
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
  template <int kSum, int kA, int kB>
  void multiply_add() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSum), "i"(kA), "i"(kB));
  }
};

/// The same in memory. Numbers below the least normal one are zeros, as they are to the instruction.
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
  template <int kSum, int kA, int kB>
  void multiply_add() {
    for (int r = 0; r < kTile; ++r) {
      for (int c = 0; c < kTile; ++c) {
        float low_sum = 0;
        float high_sum = 0;
        for (int pair = 0; pair < kTile; ++pair) {
          const std::uint32_t a = words_[kA][r][pair];
          const std::uint32_t b = words_[kB][pair][c];
          low_sum = flushed(low_sum + flushed_bits(a << 16) * flushed_bits(b << 16));
          high_sum = flushed(high_sum + flushed_bits(a & 0xffff0000) * flushed_bits(b & 0xffff0000));
        }
        const float sum = flushed_bits(words_[kSum][r][c]) + flushed(low_sum + high_sum);
        words_[kSum][r][c] = std::bit_cast<std::uint32_t>(flushed(sum));
      }
    }
  }

 private:
  static float flushed(float x) { return std::abs(x) < std::numeric_limits<float>::min() ? 0.0F : x; }
  static float flushed_bits(std::uint32_t bits) { return flushed(std::bit_cast<float>(bits)); }

  std::uint32_t words_[8][kTile][kTile];
};

/// Words (16, 16) transposed in registers.
ATTEND_AMX_TARGET inline void transpose_words(__m512i (&row)[kTile]) {
  __m512i half[kTile];
#pragma GCC unroll 16
  for (int i = 0; i < kTile; i += 2) {  // 2 x 2 words of every 128 bits
    half[i] = _mm512_unpacklo_epi32(row[i], row[i + 1]);
    half[i + 1] = _mm512_unpackhi_epi32(row[i], row[i + 1]);
  }
#pragma GCC unroll 16
  for (int i = 0; i < kTile; i += 4) {  // 4 x 4 words
    row[i] = _mm512_unpacklo_epi64(half[i], half[i + 2]);
    row[i + 1] = _mm512_unpackhi_epi64(half[i], half[i + 2]);
    row[i + 2] = _mm512_unpacklo_epi64(half[i + 1], half[i + 3]);
    row[i + 3] = _mm512_unpackhi_epi64(half[i + 1], half[i + 3]);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 4; ++i) {  // 8 x 8: 128-bit quarters 0 and 2, then 1 and 3, of two rows each
    half[i] = _mm512_shuffle_i32x4(row[i], row[i + 4], 0x88);
    half[i + 4] = _mm512_shuffle_i32x4(row[i], row[i + 4], 0xdd);
    half[i + 8] = _mm512_shuffle_i32x4(row[i + 8], row[i + 12], 0x88);
    half[i + 12] = _mm512_shuffle_i32x4(row[i + 8], row[i + 12], 0xdd);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 4; ++i) {
    row[i] = _mm512_shuffle_i32x4(half[i], half[i + 8], 0x88);
    row[i + 4] = _mm512_shuffle_i32x4(half[i + 4], half[i + 12], 0x88);
    row[i + 8] = _mm512_shuffle_i32x4(half[i], half[i + 8], 0xdd);
    row[i + 12] = _mm512_shuffle_i32x4(half[i + 4], half[i + 12], 0xdd);
  }
}

__mmask16 first_lanes(std::int64_t count) {
  return static_cast<__mmask16>((1U << std::clamp<std::int64_t>(count, 0, kTile)) - 1);
}

/// Rows of a block and their pairs, as many as are multiplied.
struct Range {
  std::int64_t begin;
  std::int64_t end;

  [[nodiscard]] std::int64_t size() const { return end - begin; }
};

/// A's words of a block where tiles can be loaded of them: whole ones, zero beyond what the block has.
struct LeftOperand {
  const char* data;
  std::int64_t row_bytes;
};

/// Copies pairs `pairs` of 16 rows of A from `row` on, `count` of them real, rows `stride` words apart.
ATTEND_AMX_TARGET void pack_rows_of_tile(const PairOperand& a, std::int64_t row, std::int64_t count, Range pairs,
                                         std::uint32_t* to, std::int64_t stride) {
  for (std::int64_t pair = pairs.begin; pair < pairs.end; pair += kTile, to += kTile) {
    __m512i words[kTile];
    if (a.pair_stride == 2) {
#pragma GCC unroll 16
      for (int r = 0; r < kTile; ++r) {
        const __mmask16 mask = r < count ? first_lanes(pairs.end - pair) : __mmask16{0};
        words[r] = _mm512_maskz_loadu_epi32(mask, a.data + (row + r) * a.row_stride + 2 * pair);
      }
    } else {
      const __mmask16 mask = first_lanes(count);
#pragma GCC unroll 16
      for (int t = 0; t < kTile; ++t) {
        words[t] = _mm512_maskz_loadu_epi32(pair + t < pairs.end ? mask : __mmask16{0},
                                            a.data + row * a.row_stride + (pair + t) * a.pair_stride);
      }
      transpose_words(words);
    }
#pragma GCC unroll 16
    for (int r = 0; r < kTile; ++r) _mm512_store_si512(to + r * stride, words[r]);
  }
}

/// A's words of rows `rows`, in place where they lie as tiles want them, else in `buffer`.
LeftOperand left_operand(const PairOperand& a, Range rows, Range pairs, std::uint32_t* buffer) {
  if (a.pair_stride == 2 && rows.size() % kTile == 0 && pairs.size() % kTile == 0) {
    const auto* first = a.data + rows.begin * a.row_stride + 2 * pairs.begin;
    return {reinterpret_cast<const char*>(first), a.row_stride * static_cast<std::int64_t>(sizeof *a.data)};
  }
  const std::int64_t stride = round_up(pairs.size(), kTile);
  for (std::int64_t row = rows.begin; row < rows.end; row += kTile) {
    pack_rows_of_tile(a, row, std::min<std::int64_t>(rows.end - row, kTile), pairs,
                      buffer + (row - rows.begin) * stride, stride);
  }
  return {reinterpret_cast<const char*>(buffer), stride * kWordBytes};
}

/// Rows of C from a tile's sums, with old C and the sums each times a factor.
template <GemmMode kMode>
ATTEND_AMX_TARGET inline void merge_rows(const float* sums, float* c, std::int64_t c_stride, std::int64_t num_rows,
                                         float factor, const float* scale) {
  const __m512 sum_factor = _mm512_set1_ps(factor);
  const __m512 column_scale = kMode == GemmMode::kScaleColumnsAccumulate ? _mm512_loadu_ps(scale) : _mm512_setzero_ps();
#pragma GCC unroll 4
  for (std::int64_t r = 0; r < num_rows; ++r) {
    float* at = c + r * c_stride;
    const __m512 sum = _mm512_load_ps(sums + r * kTile);
    if constexpr (kMode == GemmMode::kStore) {
      _mm512_storeu_ps(at, _mm512_mul_ps(sum, sum_factor));
    } else if constexpr (kMode == GemmMode::kAccumulate) {
      _mm512_storeu_ps(at, _mm512_add_ps(sum, _mm512_loadu_ps(at)));
    } else if constexpr (kMode == GemmMode::kScaleAccumulate) {
      _mm512_storeu_ps(at, _mm512_fmadd_ps(_mm512_loadu_ps(at), _mm512_set1_ps(scale[r]), sum));
    } else {
      _mm512_storeu_ps(at, _mm512_fmadd_ps(_mm512_loadu_ps(at), column_scale, sum));
    }
  }
}

/// C's part from a tile's sums.
void merge_tile(const Bf16DotArgs& g, const float* sums, Range rows, std::int64_t col) {
  float* c = g.c + rows.begin * g.c_stride + col;
  const std::int64_t num_rows = std::min<std::int64_t>(rows.size(), kTile);
  if (g.mode == GemmMode::kStore) {
    merge_rows<GemmMode::kStore>(sums, c, g.c_stride, num_rows, g.factor, nullptr);
  } else if (g.mode == GemmMode::kAccumulate) {
    merge_rows<GemmMode::kAccumulate>(sums, c, g.c_stride, num_rows, 1.0F, nullptr);
  } else if (g.mode == GemmMode::kScaleAccumulate) {
    merge_rows<GemmMode::kScaleAccumulate>(sums, c, g.c_stride, num_rows, 1.0F, g.row_scale + rows.begin);
  } else {
    merge_rows<GemmMode::kScaleColumnsAccumulate>(sums, c, g.c_stride, num_rows, 1.0F, g.column_scale + col);
  }
}

/// One block of C, kRows x kCols tiles of it from (rows.begin, col) on. Registers 0 to 3 are C's, 4 and 5 A's, 6 and 7
/// B's.
template <int kRows, int kCols, class Tiles>
void block(Tiles& tiles, const Bf16DotArgs& g, const LeftOperand& a, Range rows, std::int64_t col, Range pairs) {
  const std::int64_t c_bytes = g.c_stride * kWordBytes;
  float* c = g.c + rows.begin * g.c_stride + col;
  float* lower_c = c + kTile * g.c_stride;
  const bool whole = rows.size() == kRows * kTile;
  const bool in_place = whole && (g.mode == GemmMode::kAccumulate || (g.mode == GemmMode::kStore && g.factor == 1.0F));
  if (in_place && g.mode == GemmMode::kAccumulate) {
    tiles.template load<0>(c, c_bytes);
    if constexpr (kCols == 2) tiles.template load<1>(c + kTile, c_bytes);
    if constexpr (kRows == 2) tiles.template load<2>(lower_c, c_bytes);
    if constexpr (kRows == 2 && kCols == 2) tiles.template load<3>(lower_c + kTile, c_bytes);
  } else {
    tiles.template clear<0>();
    if constexpr (kCols == 2) tiles.template clear<1>();
    if constexpr (kRows == 2) tiles.template clear<2>();
    if constexpr (kRows == 2 && kCols == 2) tiles.template clear<3>();
  }
  alignas(64) std::uint32_t last_rows[kTile][kCols * kTile];
  const char* a_at = a.data;
  for (std::int64_t pair = pairs.begin; pair < pairs.end; pair += kTile, a_at += kTile * kWordBytes) {
    const std::uint32_t* b = g.b + pair * g.b_stride + col;
    std::int64_t b_bytes = g.b_stride * kWordBytes;
    if (pair + kTile > g.pairs) {  // a tile would reach beyond B's last row
      for (std::int64_t t = 0; t < kTile; ++t) {
        if (pair + t < g.pairs) {
          std::memcpy(last_rows[t], b + t * g.b_stride, sizeof last_rows[t]);
        } else {
          std::memset(last_rows[t], 0, sizeof last_rows[t]);
        }
      }
      b = last_rows[0];
      b_bytes = sizeof last_rows[0];
    }
    tiles.template load<4>(a_at, a.row_bytes);
    tiles.template load<6>(b, b_bytes);
    tiles.template multiply_add<0, 4, 6>();
    if constexpr (kCols == 2) {
      tiles.template load<7>(b + kTile, b_bytes);
      tiles.template multiply_add<1, 4, 7>();
    }
    if constexpr (kRows == 2) {
      tiles.template load<5>(a_at + kTile * a.row_bytes, a.row_bytes);
      tiles.template multiply_add<2, 5, 6>();
      if constexpr (kCols == 2) tiles.template multiply_add<3, 5, 7>();
    }
  }
  if (in_place) {
    tiles.template store<0>(c, c_bytes);
    if constexpr (kCols == 2) tiles.template store<1>(c + kTile, c_bytes);
    if constexpr (kRows == 2) tiles.template store<2>(lower_c, c_bytes);
    if constexpr (kRows == 2 && kCols == 2) tiles.template store<3>(lower_c + kTile, c_bytes);
  } else {
    alignas(64) float sums[kRows * kCols][kTile * kTile];
    constexpr std::int64_t kSumsBytes = kTile * kWordBytes;
    tiles.template store<0>(sums[0], kSumsBytes);
    if constexpr (kCols == 2) tiles.template store<1>(sums[1], kSumsBytes);
    if constexpr (kRows == 2) tiles.template store<2>(sums[kCols], kSumsBytes);
    if constexpr (kRows == 2 && kCols == 2) tiles.template store<3>(sums[3], kSumsBytes);
    for (int tile = 0; tile < kRows * kCols; ++tile) {
      merge_tile(g, sums[tile], {rows.begin + tile / kCols * kTile, rows.end}, col + tile % kCols * kTile);
    }
  }
  if (g.prefetch == nullptr) return;
  for (int step = 0; step < (kRows * kCols == 4 ? 3 : 1); ++step) g.prefetch->step();  // see GemmArgs
}

/// Rows `rows` of C, at most kRows tiles of them, in columns `columns`.
template <int kRows, class Tiles>
void row_of_blocks(Tiles& tiles, const Bf16DotArgs& g, Range rows, Range columns, Range pairs,
                   std::uint32_t* a_buffer) {
  const LeftOperand a = left_operand(g.a, rows, pairs, a_buffer);
  std::int64_t col = columns.begin;
  for (; col + 2 * kTile <= columns.end; col += 2 * kTile) block<kRows, 2>(tiles, g, a, rows, col, pairs);
  if (col < columns.end) block<kRows, 1>(tiles, g, a, rows, col, pairs);
}

template <class Tiles>
void multiply(const Bf16DotArgs& g) {
  alignas(64) std::uint32_t a_buffer[2 * kTile * kMaxPairs];
  Tiles tiles;
  const bool has_ranges = g.columns.begin != nullptr || g.depth.begin != nullptr;
  const std::int64_t block_rows = has_ranges ? kTile : 2 * kTile;
  for (std::int64_t row = 0; row < g.m; row += block_rows) {
    const Range rows = {row, std::min(row + block_rows, g.m)};
    Range columns = {0, g.n};
    if (g.columns.begin != nullptr) columns = {g.columns.begin[row], g.columns.end[rows.end - 1]};
    Range pairs = {0, g.pairs};
    if (g.depth.begin != nullptr) {
      pairs.begin = g.depth.begin[row] / 2;
      pairs.end = std::max<std::int64_t>(pairs.begin, (g.depth.end[rows.end - 1] + 1) / 2);
    }
    if (g.mode == GemmMode::kAccumulate && pairs.size() == 0) continue;  // nothing to add
    if (rows.size() > kTile) {
      row_of_blocks<2>(tiles, g, rows, columns, pairs, a_buffer);
    } else {
      row_of_blocks<1>(tiles, g, rows, columns, pairs, a_buffer);
    }
  }
}

bool has_amx() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  constexpr unsigned kBf16 = 1U << 22;
  constexpr unsigned kTileRegisters = 1U << 24;
  return (d & kBf16) != 0 && (d & kTileRegisters) != 0;
}

/// Linux gives a process the registers' 8 KiB of state only when asked (Documentation/arch/x86/xstate.rst).
bool granted() {
#if defined(__linux__)
  constexpr long kRequestPermission = 0x1023;
  constexpr long kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;  // other systems have ways of their own
#endif
}

}  // namespace

bool amx_available() {
  static const bool available = has_amx() && granted();
  return available;
}

void configure_amx() {
  const TileConfig config;
  asm volatile("ldtilecfg %0" ::"m"(config));
}

void release_amx() {
  asm volatile("tilerelease" ::);
}

void amx_gemm(const Bf16DotArgs& g) {
  multiply<AmxTiles>(g);
}

void emulated_amx_gemm(const Bf16DotArgs& g) {
  multiply<EmulatedTiles>(g);
}

#else  // not x86

bool amx_available() {
  return false;
}

void configure_amx() {}
void release_amx() {}
void amx_gemm(const Bf16DotArgs& /*g*/) {}
void emulated_amx_gemm(const Bf16DotArgs& /*g*/) {}

#endif

}  // namespace attend::cpu
