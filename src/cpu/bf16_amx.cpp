#include "cpu/bf16_amx.hpp"

#include <algorithm>
#include <cstring>

#include "cpu/tiles.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "core/problem.hpp"
#include "cpu/amx_tiles.hpp"

#define ATTEND_AMX_TARGET __attribute__((target("avx512f")))
#endif
#if defined(__GNUC__) && !defined(__clang__)
// The intrinsics header of GCC 12 triggers this warning, because it uses undefined vectors.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

namespace attend::cpu {

#if defined(__x86_64__)
namespace {

// Upper bound of the number of pairs in a tile of keys or rows.
constexpr std::int64_t kMaxPairs = core::kMaxHeadDim / 2;

/// Transposes a matrix of 16 x 16 words in registers.
ATTEND_AMX_TARGET inline void transpose_words(__m512i (&row)[kTile]) {
  __m512i half[kTile];
#pragma GCC unroll 16
  for (int i = 0; i < kTile; i += 2) {  // transposes 2 x 2 words within each 128 bits
    half[i] = _mm512_unpacklo_epi32(row[i], row[i + 1]);
    half[i + 1] = _mm512_unpackhi_epi32(row[i], row[i + 1]);
  }
#pragma GCC unroll 16
  for (int i = 0; i < kTile; i += 4) {  // transposes 4 x 4 words
    row[i] = _mm512_unpacklo_epi64(half[i], half[i + 2]);
    row[i + 1] = _mm512_unpackhi_epi64(half[i], half[i + 2]);
    row[i + 2] = _mm512_unpacklo_epi64(half[i + 1], half[i + 3]);
    row[i + 3] = _mm512_unpackhi_epi64(half[i + 1], half[i + 3]);
  }
#pragma GCC unroll 16
  // Transposes 8 x 8 words. Each step combines two rows: first their 128-bit quarters 0 and 2, then their quarters 1
  // and 3.
  for (int i = 0; i < 4; ++i) {
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

/// A range of rows, columns or pairs to multiply.
struct Range {
  std::int64_t begin;
  std::int64_t end;

  [[nodiscard]] std::int64_t size() const { return end - begin; }
};

/// Operand A of one block of C. All tiles are full, as tile loads require. Words beyond the block are zero.
struct LeftOperand {
  const char* data;
  std::int64_t row_bytes;
};

/// Copies 16 rows of A, starting with `row`, for the given pairs. Copied rows are `stride` words apart. If only `count`
/// of the 16 rows exist, fills the other rows of the copy with zeros.
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

/// Returns rows `rows` of A for tile loads. Points into A if its layout suits tile loads; otherwise copies the rows to
/// `buffer`.
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

/// Combines the sums of a tile with rows of C, as the mode states: stores the sums, or adds them to scaled old values.
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

/// Combines one tile of sums with C in the way that GemmMode selects.
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

/// Copies the first `count` rows of a tile of B. Fills the other rows of the tile with zeros.
template <int kCols>
void copy_last_rows(std::uint32_t (&to)[kTile][kCols * kTile], const std::uint32_t* b, std::int64_t b_stride,
                    std::int64_t count) {
  for (std::int64_t t = 0; t < kTile; ++t) {
    if (t < count) {
      std::memcpy(to[t], b + t * b_stride, sizeof to[t]);
    } else {
      std::memset(to[t], 0, sizeof to[t]);
    }
  }
}

/// Computes blocks of C of kRows x kCols tiles. The code for each tile is unrolled and all functions are inlined,
/// because for a small head_dim the loop overhead would exceed the block's own instructions.
template <class Tiles>
class Blocks {
 public:
  /// Computes the block that starts at (rows.begin, col).
  template <int kRows, int kCols>
  static void compute(Tiles& tiles, const Bf16DotArgs& g, const LeftOperand& a, Range rows, std::int64_t col,
                      Range pairs) {
    const std::int64_t c_bytes = g.c_stride * kWordBytes;
    float* c = g.c + rows.begin * g.c_stride + col;
    float* lower_c = c + kTile * g.c_stride;
    const bool whole = rows.size() == kRows * kTile;
    const bool adds = g.mode == GemmMode::kAccumulate;
    const bool in_place = whole && (adds || (g.mode == GemmMode::kStore && g.factor == 1.0F));
    if (in_place && adds) {
      load<kRows, kCols>(tiles, c, lower_c, c_bytes);
    } else {
      clear<kRows, kCols>(tiles);
    }
    add_product<kRows, kCols>(tiles, g, a, col, pairs);
    if (in_place) {
      store<kRows, kCols>(tiles, c, lower_c, kTile, c_bytes);
    } else {
      alignas(64) float sums[kRows * kCols][kTile * kTile];
      store<kRows, kCols>(tiles, sums[0], sums[(kRows - 1) * kCols], kTile * kTile, kTile * kWordBytes);
      for (int tile = 0; tile < kRows * kCols; ++tile) {
        merge_tile(g, sums[tile], {rows.begin + tile / kCols * kTile, rows.end}, col + tile % kCols * kTile);
      }
    }
    if (g.prefetch == nullptr) return;
    for (int step = 0; step < (kRows * kCols == 4 ? 3 : 1); ++step) g.prefetch->step();  // see GemmArgs
  }

 private:
  template <int kRows, int kCols>
  [[gnu::always_inline]] static void load(Tiles& tiles, const float* c, const float* lower_c, std::int64_t row_bytes) {
    tiles.template load<register_of_c(0, 0)>(c, row_bytes);
    if constexpr (kCols == 2) tiles.template load<register_of_c(0, 1)>(c + kTile, row_bytes);
    if constexpr (kRows == 2) tiles.template load<register_of_c(1, 0)>(lower_c, row_bytes);
    if constexpr (kRows == 2 && kCols == 2) tiles.template load<register_of_c(1, 1)>(lower_c + kTile, row_bytes);
  }

  template <int kRows, int kCols>
  [[gnu::always_inline]] static void clear(Tiles& tiles) {
    tiles.template clear<register_of_c(0, 0)>();
    if constexpr (kCols == 2) tiles.template clear<register_of_c(0, 1)>();
    if constexpr (kRows == 2) tiles.template clear<register_of_c(1, 0)>();
    if constexpr (kRows == 2 && kCols == 2) tiles.template clear<register_of_c(1, 1)>();
  }

  /// The argument `right` is the distance in floats between the starts of two neighbouring tiles of a row.
  template <int kRows, int kCols>
  [[gnu::always_inline]] static void store(Tiles& tiles, float* c, float* lower_c, int right, std::int64_t row_bytes) {
    tiles.template store<register_of_c(0, 0)>(c, row_bytes);
    if constexpr (kCols == 2) tiles.template store<register_of_c(0, 1)>(c + right, row_bytes);
    if constexpr (kRows == 2) tiles.template store<register_of_c(1, 0)>(lower_c, row_bytes);
    if constexpr (kRows == 2 && kCols == 2) tiles.template store<register_of_c(1, 1)>(lower_c + right, row_bytes);
  }

  template <int kRows, int kCols>
  [[gnu::always_inline]] static void add_product(Tiles& tiles, const Bf16DotArgs& g, const LeftOperand& a,
                                                 std::int64_t col, Range pairs) {
    alignas(64) std::uint32_t last_rows[kTile][kCols * kTile];
    const char* a_at = a.data;
    for (std::int64_t pair = pairs.begin; pair < pairs.end; pair += kTile, a_at += kTile * kWordBytes) {
      const std::uint32_t* b = g.b + pair * g.b_stride + col;
      std::int64_t b_bytes = g.b_stride * kWordBytes;
      if (pair + kTile > g.pairs) {  // a full tile would read beyond the last row of B
        copy_last_rows<kCols>(last_rows, b, g.b_stride, g.pairs - pair);
        b = last_rows[0];
        b_bytes = sizeof last_rows[0];
      }
      tiles.template load<register_of_a(0)>(a_at, a.row_bytes);
      tiles.template load<register_of_b(0)>(b, b_bytes);
      tiles.template multiply_add<0, 0>();
      if constexpr (kCols == 2) {
        tiles.template load<register_of_b(1)>(b + kTile, b_bytes);
        tiles.template multiply_add<0, 1>();
      }
      if constexpr (kRows == 2) {
        tiles.template load<register_of_a(1)>(a_at + kTile * a.row_bytes, a.row_bytes);
        tiles.template multiply_add<1, 0>();
        if constexpr (kCols == 2) tiles.template multiply_add<1, 1>();
      }
    }
  }
};

/// Computes rows `rows` (at most kRows tiles) and columns `columns` of C.
template <int kRows, class Tiles>
void row_of_blocks(Tiles& tiles, const Bf16DotArgs& g, Range rows, Range columns, Range pairs,
                   std::uint32_t* a_buffer) {
  const LeftOperand a = left_operand(g.a, rows, pairs, a_buffer);
  std::int64_t col = columns.begin;
  for (; col + 2 * kTile <= columns.end; col += 2 * kTile) {
    Blocks<Tiles>::template compute<kRows, 2>(tiles, g, a, rows, col, pairs);
  }
  if (col < columns.end) Blocks<Tiles>::template compute<kRows, 1>(tiles, g, a, rows, col, pairs);
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

/// Asks the operating system for permission to use the tile registers. Linux allocates the 8 KiB that a thread's tile
/// registers need only on request (Documentation/arch/x86/xstate.rst).
bool granted() {
#if defined(__linux__)
  constexpr long kRequestPermission = 0x1023;
  constexpr long kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;  // not implemented for other systems
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
