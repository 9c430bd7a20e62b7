// Forward attention for a block of query rows: FlashAttention-2 (Dao, 2023), Algorithm 1, on one thread.
//
// The block is cut into panels of 64 rows, one row a SIMD lane. For every tile of 128 keys:
//   S^T = K Q^T          scores (key, row), a matrix product
//   m', P, l             running maximum, exponentials and their sum, down the keys of each lane
//   O = diag(2^(m-m')) O + P V
// and at the end O / l and lse = m + log l. Exponents are in base 2: log2(e) is folded into Q.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/forward.cpp"
#include <hwy/foreach_target.h>  // compiles this file once per SIMD target
#include <hwy/highway.h>

#include <cmath>

#include "cpu/kernels.hpp"
#include "cpu/score_product-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace attend::cpu::HWY_NAMESPACE {
namespace {

/// One panel of 64 query rows on its way through the keys.
struct Panel {
  std::int64_t row_begin;
  std::int64_t num_rows;
  const float* q;  // (head_dim, 64): transposed, times the score factor
  float* o;        // (64, padded head_dim_v): sum of p v, relative to 2^row_max
  float* row_max;  // (64)
  float* row_sum;  // (64)
  bool started;    // o holds something
};

/// Everything a task needs in memory. O(head_dim), whatever the sequence length.
struct ForwardMemory {
  float *q, *o, *row_max, *row_sum, *scores, *rescale, *k, *v;

  static ForwardMemory make(const core::Problem& p, Scratch& scratch) {
    const std::int64_t sizes[] = {kForwardBlockM * p.head_dim,
                                  kForwardBlockM * padded(p.head_dim_v),
                                  kForwardBlockM,
                                  kForwardBlockM,
                                  kBlockN * kPanel,
                                  kPanel,
                                  kBlockN * padded(p.head_dim),
                                  kBlockN * padded(p.head_dim_v)};
    std::int64_t total = 0;
    for (const std::int64_t size : sizes) total += Scratch::size_of(size);
    scratch.reserve(total);
    ForwardMemory memory{};
    float** const parts[] = {&memory.q,      &memory.o,       &memory.row_max, &memory.row_sum,
                             &memory.scores, &memory.rescale, &memory.k,       &memory.v};
    for (std::size_t i = 0; i < std::size(sizes); ++i) *parts[i] = scratch.take(sizes[i]);
    return memory;
  }
};

/// Lines 8 to 10 of the algorithm for kVectors vectors of lanes over keys [begin, end) of the tile: the new row
/// maximum, scores to exponentials, row sums, and the factor that earlier sums are rescaled by.
template <int kVectors>
HWY_INLINE void softmax_lanes(const ScoreTile& tile, std::int64_t begin, std::int64_t end, int lane, const Panel& panel,
                              float* rescale) {
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
    const auto nothing_seen = hn::Eq(top[v], hn::Set(kFloats, -kInfinity));
    base[v] = hn::IfThenZeroElse(nothing_seen, top[v]);  // -inf - -inf would be NaN; 2^(-inf - 0) is the 0 we want
    const Vector factor = exp2(hn::Sub(hn::Load(kFloats, panel.row_max + at), base[v]));
    hn::Store(factor, kFloats, rescale + at);
    hn::Store(top[v], kFloats, panel.row_max + at);
    sum[v] = hn::Mul(hn::Load(kFloats, panel.row_sum + at), factor);
  }
  for (std::int64_t k = begin; k < end; ++k) {
    float* s = tile.key(k) + lane;
    for (int v = 0; v < kVectors; ++v) {
      const Vector p = exp2(hn::Sub(hn::Load(kFloats, s + v * kLanes), base[v]));
      hn::Store(p, kFloats, s + v * kLanes);
      sum[v] = hn::Add(sum[v], p);
    }
  }
  for (int v = 0; v < kVectors; ++v) hn::Store(sum[v], kFloats, panel.row_sum + lane + v * kLanes);
}

void online_softmax(const ScoreTile& tile, const Panel& panel, float* rescale) {
  int lane = 0;
  for (; lane + 4 * kLanes <= tile.lanes(); lane += 4 * kLanes) {
    softmax_lanes<4>(tile, 0, tile.num_keys, lane, panel, rescale);
  }
  for (; lane < tile.lanes(); lane += kLanes) softmax_lanes<1>(tile, 0, tile.num_keys, lane, panel, rescale);
}

/// The same where a mask cuts through the tile: each vector of lanes over the keys that P V will read of it.
void online_softmax_masked(const ScoreTile& tile, const TileRanges& ranges, const Panel& panel, float* rescale) {
  // gemm() takes the widest key range of up to 6 neighbouring rows for all of them, also across two vectors.
  constexpr std::int64_t kNeighbours = 5;
  for (int lane = 0; lane < tile.lanes(); lane += kLanes) {
    const std::int64_t first = std::max<std::int64_t>(lane - kNeighbours, 0);
    const std::int64_t last = std::min<std::int64_t>(lane + kLanes - 1 + kNeighbours, tile.num_rows - 1);
    softmax_lanes<1>(tile, ranges.key_begin[std::min(first, last)], ranges.key_end[last], lane, panel, rescale);
  }
}

/// A tile of keys and values, and the rows of the next one.
struct KeyTile {
  std::int64_t key_begin;
  std::int64_t num_keys;
  FloatRows k, v;
  PrefetchRows next_k, next_v;
};

/// One panel against the first num_keys keys of a tile.
void visit_tile(const core::Problem& p, const ScoreRules& rules, const ScoreProduct& product, Panel& panel,
                const ForwardMemory& memory, KeyTile& keys, std::int64_t num_keys) {
  const ScoreTile tile = {memory.scores, kPanel, keys.key_begin, num_keys, panel.row_begin, panel.num_rows};
  const bool partial = !rules.fully_visible(tile);
  TileRanges ranges;
  if (partial) ranges.fill(rules.window(), tile);

  product.multiply(tile, keys.k, panel.q, tile.s, partial ? ranges.columns() : RowRanges{}, &keys.next_k);
  rules.finish(tile, nullptr);
  if (partial) {
    ScoreRules::hide(tile, ranges);
    online_softmax_masked(tile, ranges, panel, memory.rescale);
  } else {
    online_softmax(tile, panel, memory.rescale);
  }
  if (p.dropout_p > 0) rules.drop(tile, tile.s);

  gemm({.a = {tile.s, 1, kPanel},
        .b = {keys.v.data, keys.v.stride},
        .c = panel.o,
        .c_stride = padded(p.head_dim_v),
        .m = panel.num_rows,
        .n = padded(p.head_dim_v),
        .k = num_keys,
        .mode = panel.started ? GemmMode::kScaleAccumulate : GemmMode::kStore,
        .row_scale = memory.rescale,
        .prefetch = &keys.next_v,
        .depth = partial ? ranges.keys_of_lane() : RowRanges{}});
  panel.started = true;
}

/// o = O / l and lse = ln(2) m + log l. False: some of it is not finite, so that rows may have spoilt each other.
bool finish_panel(const core::Problem& p, const ForwardTask& task, const Panel& panel) {
  HWY_ALIGN float lse[kPanel];
  HWY_ALIGN float inverse_sum[kPanel];
  for (int lane = 0; lane < kPanel; lane += kLanes) {
    const Vector row_max = hn::Load(kFloats, panel.row_max + lane);
    const Vector row_sum = hn::Load(kFloats, panel.row_sum + lane);
    const auto saw_no_key = hn::Eq(row_max, hn::Set(kFloats, -kInfinity));
    const Vector log_sum = hn::Log(kFloats, hn::IfThenElse(saw_no_key, hn::Set(kFloats, 1.0F), row_sum));
    hn::Store(hn::MulAdd(row_max, hn::Set(kFloats, static_cast<float>(kLn2)), log_sum), kFloats, lse + lane);
    hn::Store(hn::IfThenZeroElse(saw_no_key, hn::Div(hn::Set(kFloats, 1.0F), row_sum)), kFloats, inverse_sum + lane);
  }
  const Matrix o = core::q_matrix(p.o, task.sequence, task.head);
  if (!panel.started) std::fill_n(panel.o, kPanel * padded(p.head_dim_v), 0.0F);
  constexpr std::int64_t kRowsAhead = 8;
  bool finite = true;
  for (std::int64_t r = 0; r < panel.num_rows; ++r) {
    prefetch_rows<true>(o, panel.row_begin + r + kRowsAhead, 1);
    finite &= store_row(o, panel.row_begin + r, panel.o + r * padded(p.head_dim_v), inverse_sum[r]);
    finite &= panel.row_max[r] == -kInfinity || std::isfinite(lse[r]);
    if (p.lse) core::store(core::q_matrix(*p.lse, task.sequence, task.head), panel.row_begin + r, 0, lse[r]);
  }
  return finite;
}

/// The rows of the next tile of K or V, to be fetched in about the number of register blocks that a tile's products
/// have.
PrefetchRows next_tile(const Matrix& m, std::int64_t begin, std::int64_t end, int num_panels) {
  const std::int64_t bytes = dtype_bytes(m.dtype);
  const std::int64_t rows = std::clamp<std::int64_t>(end - begin, 0, kBlockN);
  constexpr int kStepsPerPanel = 20;
  return {static_cast<const char*>(m.data) + begin * m.row_stride * bytes, rows, m.cols * bytes, m.row_stride * bytes,
          kStepsPerPanel * num_panels};
}

bool run_forward(const core::Problem& p, const ForwardTask& task, Scratch& scratch) {
  const ForwardMemory memory = ForwardMemory::make(p, scratch);
  const ScoreRules rules(p, task.sequence, task.head);
  const std::int64_t key_head = task.head / p.heads_per_group();
  const Matrix q = core::q_matrix(p.q, task.sequence, task.head);
  const Matrix k = core::k_matrix(p.k, task.sequence, key_head);
  const Matrix v = core::k_matrix(p.v, task.sequence, key_head);

  const ScoreProduct product(p, task.sequence, p.k, p.q, task.head, rules.q_factor());
  const bool k_as_it_is = ScoreProduct::reads_keys_directly(p.k, p.q);
  prefetch_rows<false>(q, task.row_begin, kPanel);
  Panel panels[kForwardBlockM / kPanel];
  int num_panels = 0;
  for (std::int64_t row = task.row_begin; row < task.row_end; row += kPanel, ++num_panels) {
    const std::int64_t at = row - task.row_begin;
    float* q_panel = memory.q + at * p.head_dim;
    panels[num_panels] = {row,
                          std::min<std::int64_t>(kPanel, task.row_end - row),
                          q_panel,
                          memory.o + at * padded(p.head_dim_v),
                          memory.row_max + at,
                          memory.row_sum + at,
                          false};
    prefetch_rows<false>(q, row + kPanel, kPanel);
    product.pack(row, panels[num_panels].num_rows, q_panel);
  }
  std::fill_n(memory.row_max, kForwardBlockM, -kInfinity);
  std::fill_n(memory.row_sum, kForwardBlockM, 0.0F);

  const KeyRange keys = rules.window().rows(task.row_begin, task.row_end);
  for (std::int64_t key = keys.begin / kBlockN * kBlockN; key < keys.end; key += kBlockN) {
    const std::int64_t num_keys = std::min<std::int64_t>(kBlockN, task.sequence.seqlen_k - key);
    const FloatRows k_rows = k_as_it_is ? FloatRows{} : float_rows(k, key, num_keys, Readable::kElements, memory.k);
    KeyTile tile = {key,
                    num_keys,
                    k_rows,
                    float_rows(v, key, num_keys, Readable::kVectors, memory.v),
                    next_tile(k, key + kBlockN, keys.end, num_panels),
                    next_tile(v, key + kBlockN, keys.end, num_panels)};
    for (int i = 0; i < num_panels; ++i) {
      const KeyRange seen = rules.window().rows(panels[i].row_begin, panels[i].row_begin + panels[i].num_rows);
      if (seen.end <= key || seen.begin >= key + num_keys) continue;
      visit_tile(p, rules, product, panels[i], memory, tile, std::min(num_keys, seen.end - key));
    }
  }
  bool finite = true;
  for (int i = 0; i < num_panels; ++i) finite &= finish_panel(p, task, panels[i]);
  return finite;
}

}  // namespace

bool forward_rows_target(const core::Problem& p, const ForwardTask& task, Scratch& scratch) {
  return run_forward(p, task, scratch);
}

const char* simd_target_name_target() {
  return hwy::TargetName(HWY_TARGET);
}

}  // namespace attend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attend::cpu {

HWY_EXPORT(forward_rows_target);

bool forward_rows(const core::Problem& p, const ForwardTask& task, Scratch& scratch) {
  return HWY_DYNAMIC_DISPATCH(forward_rows_target)(p, task, scratch);
}

HWY_EXPORT(simd_target_name_target);

const char* simd_target_name() {
  return HWY_DYNAMIC_DISPATCH(simd_target_name_target)();
}

}  // namespace attend::cpu
#endif
