#include "cpu/bf16_dot.hpp"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/environment.hpp"
#include "cpu/bf16_amx.hpp"
#include "cpu/kernels.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#define ATTEND_BF16_DOT_TARGET __attribute__((target("avx512f,avx512bw,avx512bf16")))
#endif

namespace attend::cpu {

#if defined(__x86_64__)
namespace {

constexpr int kRows = 6;  // block size of gemm.cpp: the 6 x 4 vectors of sums occupy 24 of the 32 registers
constexpr int kVectors = 4;
constexpr int kLanes = 16;

bool has_instruction() {
  return __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512bf16") != 0;
}

/// Returns whether the processor supports the unit. Every unit, including the emulated one, uses the layout of AVX-512
/// vectors.
bool has(Bf16Unit unit) {
  if (unit == Bf16Unit::kNone) return true;
  if (!std::string_view(simd_target_name()).starts_with("AVX3")) return false;
  if (unit == Bf16Unit::kDot) return has_instruction();
  return unit != Bf16Unit::kAmx || amx_available();
}

/// Returns the fastest unit that the processor supports.
Bf16Unit best_unit() {
  if (has(Bf16Unit::kAmx)) return Bf16Unit::kAmx;
  return has(Bf16Unit::kDot) && __builtin_cpu_is("amd") != 0 ? Bf16Unit::kDot : Bf16Unit::kNone;
}

/// Combines a block of sums with C in the way that GemmMode selects.
template <int R, int V>
ATTEND_BF16_DOT_TARGET inline void store_block(const Bf16DotArgs& g, std::int64_t row, std::int64_t col,
                                               const __m512 (&sum)[R][V]) {
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    float* c = g.c + (row + r) * g.c_stride + col;
    const __m512 factor = _mm512_set1_ps(g.mode == GemmMode::kScaleAccumulate ? g.row_scale[row + r] : g.factor);
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) {
      float* at = c + v * kLanes;
      __m512 result;
      if (g.mode == GemmMode::kStore) {
        result = _mm512_mul_ps(sum[r][v], factor);
      } else if (g.mode == GemmMode::kAccumulate) {
        result = _mm512_add_ps(sum[r][v], _mm512_loadu_ps(at));
      } else {
        result = _mm512_fmadd_ps(_mm512_loadu_ps(at), factor, sum[r][v]);
      }
      _mm512_storeu_ps(at, result);
    }
  }
}

/// Computes rows [row, row + R) and columns [col, col + 16 V) of C over pairs [begin, end).
template <int R, int V>
ATTEND_BF16_DOT_TARGET void block(const Bf16DotArgs& g, std::int64_t row, std::int64_t col, std::int64_t begin,
                                  std::int64_t end) {
  __m512 sum[R][V];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) sum[r][v] = _mm512_setzero_ps();
  }
  const std::int64_t a_row = g.a.row_stride;
  const std::uint16_t* a = g.a.data + row * a_row + begin * g.a.pair_stride;
  const std::uint32_t* b = g.b + begin * g.b_stride + col;
#pragma GCC unroll 2
  for (std::int64_t pair = begin; pair < end; ++pair) {
    __m512i b_row[V];
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) b_row[v] = _mm512_loadu_si512(b + v * kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      int a_pair;
      std::memcpy(&a_pair, a + r * a_row, sizeof a_pair);
      const __m512i a_value = _mm512_set1_epi32(a_pair);
#pragma GCC unroll 16
      for (int v = 0; v < V; ++v) {
        sum[r][v] = _mm512_dpbf16_ps(sum[r][v], (__m512bh)a_value, (__m512bh)b_row[v]);  // reinterprets the bits
      }
    }
    a += g.a.pair_stride;
    b += g.b_stride;
  }
  store_block<R, V>(g, row, col, sum);
}

using BlockFunction = void (*)(const Bf16DotArgs&, std::int64_t, std::int64_t, std::int64_t, std::int64_t);

template <int V>
constexpr BlockFunction kBlocks[kRows] = {block<1, V>, block<2, V>, block<3, V>, block<4, V>, block<5, V>, block<6, V>};

BlockFunction block_of(int rows, int vectors) {
  switch (vectors) {
    case 1:
      return kBlocks<1>[rows - 1];
    case 2:
      return kBlocks<2>[rows - 1];
    case 3:
      return kBlocks<3>[rows - 1];
    default:
      return kBlocks<4>[rows - 1];
  }
}

/// Returns the number of vectors of the next block if `left` vectors remain. This is the maximum number, with one
/// exception: 5 remaining vectors are split into 3 + 2 instead of 4 + 1.
int next_vectors(std::int64_t left) {
  if (left == kVectors + 1) return kVectors - 1;
  return static_cast<int>(std::min<std::int64_t>(left, kVectors));
}

}  // namespace

void bf16_dot_gemm(const Bf16DotArgs& g) {
  if (bf16_unit() == Bf16Unit::kAmx) return amx_gemm(g);
  if (bf16_unit() == Bf16Unit::kEmulatedAmx) return emulated_amx_gemm(g);
  assert(g.mode != GemmMode::kScaleColumnsAccumulate);
  for (std::int64_t col = 0; col < g.n;) {
    const int chunk = next_vectors((g.n - col) / kLanes) * kLanes;
    for (std::int64_t row = 0; row < g.m; row += kRows) {
      const int rows = static_cast<int>(std::min<std::int64_t>(kRows, g.m - row));
      std::int64_t first = col;
      std::int64_t last = col + chunk;
      if (g.columns.begin != nullptr) {
        first = std::max<std::int64_t>(first, g.columns.begin[row]);
        last = std::min<std::int64_t>(last, g.columns.end[row + rows - 1]);
      }
      std::int64_t begin = 0;
      std::int64_t end = g.pairs;
      if (g.depth.begin != nullptr) {
        begin = g.depth.begin[row] / 2;
        end = std::max<std::int64_t>(begin, (g.depth.end[row + rows - 1] + 1) / 2);
      }
      if (g.mode == GemmMode::kAccumulate && begin >= end) last = first;  // nothing to add
      if (first < last) block_of(rows, static_cast<int>((last - first) / kLanes))(g, row, first, begin, end);
      if (g.prefetch != nullptr) g.prefetch->step();
    }
    col += chunk;
  }
}

#else  // not x86

namespace {

bool has(Bf16Unit unit) {
  return unit == Bf16Unit::kNone;
}

Bf16Unit best_unit() {
  return Bf16Unit::kNone;
}

}  // namespace

void bf16_dot_gemm(const Bf16DotArgs& /*args*/) {}

#endif

Bf16Unit bf16_unit() {
  static const Bf16Unit unit = [] {
    constexpr std::pair<std::string_view, Bf16Unit> kUnits[] = {
        {"0", Bf16Unit::kNone}, {"1", Bf16Unit::kDot}, {"amx", Bf16Unit::kAmx}, {"emulated", Bf16Unit::kEmulatedAmx}};
    std::vector<std::string_view> allowed;
    std::vector<Bf16Unit> units;
    for (const auto& [name, candidate] : kUnits) {
      if (!has(candidate)) continue;
      allowed.push_back(name);
      units.push_back(candidate);
    }
    const std::string remark = std::string(" on this processor with SIMD target ") + simd_target_name();
    const auto wish = core::environment_choice("ATTEND_CPU_BF16_DOT", allowed, remark);
    return wish ? units[*wish] : best_unit();
  }();
  return unit;
}

Bf16Registers::Bf16Registers() {
  if (bf16_unit() == Bf16Unit::kAmx) configure_amx();
}

Bf16Registers::~Bf16Registers() {
  if (bf16_unit() == Bf16Unit::kAmx) release_amx();
}

}  // namespace attend::cpu
