// A panel of query rows of the forward pass, with the online softmax and the float64 totals of long sums. Included once
// per SIMD target.
#if defined(ATTEND_CPU_PANEL_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTEND_CPU_PANEL_INL
#undef ATTEND_CPU_PANEL_INL
#else
#define ATTEND_CPU_PANEL_INL
#endif

#include <cmath>

#include "cpu/bf16_tile-inl.hpp"
#include "cpu/long_sum-inl.hpp"
#include "cpu/score-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace attend::cpu::HWY_NAMESPACE {

/// State of a panel of 64 query rows while it visits the keys.
struct Panel {
  std::int64_t row_begin;
  std::int64_t num_rows;
  const float* q;   // (head_dim, 64): the query rows, transposed and multiplied by ScoreRules::product_factor()
  float* o;         // (64, padded head_dim_v): sum of p v, divided by exp(row_max)
  float* o_turned;  // (head_dim_v, 64): o transposed, until gather_rows(); null if o is computed directly
  float* row_max;   // (64)
  float* row_sum;   // (64)
  bool started;     // true once o contains the sum of a tile

  // Totals of earlier tiles, in float64. The pointers are null if there are few keys.
  double* total_o;         // (64, padded head_dim_v): total of o, divided by exp(total_row_max)
  double* total_row_sum;   // (64)
  float* total_row_max;    // (64)
  std::int64_t num_tiles;  // number of tiles that are included in o and row_sum, but not yet in the totals
};

/// Storage format of p. kToFloats stores floats. kToPairs stores the result of as_pairs() for two neighbouring keys, in
/// the tile row of the first of them.
enum class Softmax { kToFloats, kToPairs };

/// Executes lines 8 to 10 of FlashAttention-2's Algorithm 1 for kVectors vectors of lanes and keys [begin, end) of the
/// tile. Updates the row maximum, turns scores into exponentials, and computes row sums and the factor that rescales
/// earlier sums. With kToPairs, `begin` is even, and `end` is even or the end of the tile.
template <Softmax kForm, int kVectors>
HWY_INLINE void softmax_lanes(const ScoreTile& tile, std::int64_t begin, std::int64_t end, int lane, const Panel& panel,
                              float log2_per_score, float* rescale) {
  const Vector factor = hn::Set(kFloats, log2_per_score);
  Vector top[kVectors];
  for (int v = 0; v < kVectors; ++v) top[v] = hn::Load(kFloats, panel.row_max + lane + v * kLanes);
  for (std::int64_t k = begin; k < end; ++k) {
    const float* s = tile.key(k) + lane;
    for (int v = 0; v < kVectors; ++v) top[v] = hn::Max(top[v], hn::Load(kFloats, s + v * kLanes));
  }
  Vector base[kVectors];
  Vector sum[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    const auto at = lane + v * kLanes;
    const Vector earlier_top = hn::Load(kFloats, panel.row_max + at);
    const auto nothing_seen = hn::Eq(top[v], hn::Set(kFloats, -kInfinity));
    // If row_max is -inf, 0 is subtracted instead, because -inf - -inf is NaN, whereas 2^(-inf - 0) is 0.
    base[v] = hn::IfThenZeroElse(nothing_seen, top[v]);
    hn::Store(exp_above(earlier_top, base[v], factor), kFloats, rescale + at);
    hn::Store(top[v], kFloats, panel.row_max + at);
    sum[v] = hn::Zero(kFloats);
  }
  const auto exponential_at = [&](std::int64_t k, int v) HWY_ATTR {
    const Vector p = exp_above(hn::Load(kFloats, tile.key(k) + lane + v * kLanes), base[v], factor);
    sum[v] = hn::Add(sum[v], p);
    return p;
  };
  if constexpr (kForm == Softmax::kToFloats) {
    for (std::int64_t k = begin; k < end; ++k) {
      for (int v = 0; v < kVectors; ++v) hn::Store(exponential_at(k, v), kFloats, tile.key(k) + lane + v * kLanes);
    }
  } else {
    for (std::int64_t k = begin; k < end; k += 2) {
      auto* pairs = reinterpret_cast<std::uint32_t*>(tile.key(k / 2) + lane);
      for (int v = 0; v < kVectors; ++v) {
        const Vector even = exponential_at(k, v);
        const Vector odd = k + 1 < end ? exponential_at(k + 1, v) : hn::Zero(kFloats);
        hn::Store(as_pairs(even, odd), kUints, pairs + v * kLanes);
      }
    }
  }
  for (int v = 0; v < kVectors; ++v) {
    const auto at = lane + v * kLanes;
    const Vector earlier = hn::Load(kFloats, panel.row_sum + at);
    hn::Store(hn::MulAdd(earlier, hn::Load(kFloats, rescale + at), sum[v]), kFloats, panel.row_sum + at);
  }
}

template <Softmax kForm>
void online_softmax(const ScoreTile& tile, const Panel& panel, float log2_per_score, float* rescale) {
  int lane = 0;
  for (; lane + 4 * kLanes <= tile.lanes(); lane += 4 * kLanes) {
    softmax_lanes<kForm, 4>(tile, 0, tile.num_keys, lane, panel, log2_per_score, rescale);
  }
  for (; lane < tile.lanes(); lane += kLanes) {
    softmax_lanes<kForm, 1>(tile, 0, tile.num_keys, lane, panel, log2_per_score, rescale);
  }
}

/// Executes the online softmax for a tile that a mask cuts. Each vector of lanes covers only the keys that the product
/// P V reads for it.
template <Softmax kForm>
void online_softmax_masked(const ScoreTile& tile, const TileRanges& ranges, const Panel& panel, float log2_per_score,
                           float* rescale) {
  // gemm() computes up to 6 neighbouring rows together. For all of them it uses their widest key range, even if the
  // rows belong to two vectors. bf16_dot_gemm() extends that range to full pairs. With AMX it computes 16 rows
  // together, which form one vector here.
  constexpr std::int64_t kNeighbours = 5;
  for (int lane = 0; lane < tile.lanes(); lane += kLanes) {
    const std::int64_t first = std::max<std::int64_t>(lane - kNeighbours, 0);
    const std::int64_t last = std::min<std::int64_t>(lane + kLanes - 1 + kNeighbours, tile.num_rows - 1);
    const std::int64_t begin = ranges.key_begin[std::min(first, last)] / 2 * 2;
    const std::int64_t end = std::min(round_up(ranges.key_end[last], 2), tile.num_keys);
    softmax_lanes<kForm, 1>(tile, begin, end, lane, panel, log2_per_score, rescale);
  }
}

/// Transposes o_turned to o.
inline void gather_rows(std::int64_t o_cols, const Panel& panel) {
  if (panel.o_turned == nullptr || !panel.started) return;
  for (std::int64_t r = 0; r < kPanel; r += 4) {
    for (std::int64_t c = 0; c < o_cols; c += 4) {
      transpose_4x4(panel.o_turned + c * kPanel + r, kPanel, panel.o + r * o_cols + c, o_cols);
    }
  }
}

/// Adds o and row_sum to the totals and resets them.
inline void fold_panel(const ScoreRules& rules, std::int64_t o_cols, Panel& panel) {
  gather_rows(o_cols, panel);
  const double log2_per_score = rules.nats_per_score() * kLog2E;
  for (std::int64_t r = 0; r < panel.num_rows; ++r) {
    if (panel.row_max[r] == -kInfinity) continue;  // no key seen so far
    const double rise = static_cast<double>(panel.row_max[r]) - static_cast<double>(panel.total_row_max[r]);
    const double factor = std::exp2(-rise * log2_per_score);
    fold(panel.o + r * o_cols, o_cols, factor, panel.total_o + r * o_cols);
    fold(panel.row_sum + r, 1, factor, panel.total_row_sum + r);
    panel.total_row_max[r] = panel.row_max[r];
  }
  panel.started = false;
  panel.num_tiles = 0;
}

/// Adds o and row_sum to the totals, and copies the totals back to o and row_sum.
inline void unfold_panel(const ScoreRules& rules, std::int64_t o_cols, Panel& panel) {
  fold_panel(rules, o_cols, panel);
  std::copy_n(panel.total_o, kPanel * o_cols, panel.o);
  std::copy_n(panel.total_row_sum, kPanel, panel.row_sum);
  panel.started = true;
}

}  // namespace attend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
