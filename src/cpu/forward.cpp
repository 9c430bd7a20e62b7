// Forward attention for a block of query rows: FlashAttention-2 (Dao, 2023), Algorithm 1, on one thread.
//
// The block is cut into panels of 64 rows, one row per SIMD lane. For each row, m is the running maximum of the scores,
// l is the sum of the exponentials, and O is the sum of the weighted values. For each tile of 128 keys, the code
// computes the scores S, the new maximum m' and the exponentials P:
//
//   S^T = K Q^T
//   m' = max(m, max S)
//   P = exp(S - m')
//   l = exp(m - m') l + sum P
//   O = exp(m - m') O + P V
//
// At the end, o = O / l and lse = m + log l. An exponential is computed as 2^((s - m) log2(e) scale). The code
// subtracts before it multiplies, so that the rounding error is proportional to the difference s - m and not to a large
// score. Sums over long rows are split into several partial sums (long_sum-inl.hpp).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/forward.cpp"
#include <hwy/foreach_target.h>  // compiles this file once per SIMD target
#include <hwy/highway.h>

#include <cmath>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "core/elements.hpp"
#include "core/environment.hpp"
#include "core/merged_lse.hpp"
#include "cpu/kernels.hpp"
#include "cpu/panel-inl.hpp"
#include "cpu/score_overflow-inl.hpp"
#include "cpu/score_product-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace attend::cpu::HWY_NAMESPACE {
namespace {

/// Memory of a task. Its size is O(head_dim) and does not depend on the sequence length.
struct ForwardMemory {
  float *q, *o, *row_max, *row_sum, *scores, *rescale, *k, *v;
  float *o_turned, *v_turned;  // set if rounds_p() and bf16_by_amx(), otherwise null
  float* total_row_max;        // null if the task keeps no float64 totals
  double *total_o, *total_row_sum;

  static ForwardMemory make(const core::Problem& p, bool with_totals, bool turned, Scratch& scratch) {
    const std::int64_t sizes[] = {kForwardBlockM * p.head_dim,
                                  kForwardBlockM * padded(p.head_dim_v),
                                  kForwardBlockM,
                                  kForwardBlockM,
                                  kBlockN * kPanel,
                                  kPanel,
                                  kBlockN * padded(p.head_dim),
                                  kBlockN * padded(p.head_dim_v),
                                  turned ? kForwardBlockM * padded(p.head_dim_v) : 0,
                                  turned ? kBlockN / 2 * p.head_dim_v : 0};
    const std::int64_t total_o_size = kForwardBlockM * padded(p.head_dim_v);
    std::int64_t total = 0;
    for (const std::int64_t size : sizes) total += Scratch::size_of(size);
    if (with_totals) total += 2 * total_o_size + 3 * kForwardBlockM;
    scratch.reserve(total);
    ForwardMemory memory{};
    float** const parts[] = {&memory.q,       &memory.o, &memory.row_max, &memory.row_sum,  &memory.scores,
                             &memory.rescale, &memory.k, &memory.v,       &memory.o_turned, &memory.v_turned};
    for (std::size_t i = 0; i < std::size(sizes); ++i) *parts[i] = sizes[i] > 0 ? scratch.take(sizes[i]) : nullptr;
    if (!with_totals) return memory;
    memory.total_row_max = scratch.take(kForwardBlockM);
    memory.total_o = take_doubles(scratch, total_o_size);
    memory.total_row_sum = take_doubles(scratch, kForwardBlockM);
    std::fill_n(memory.total_row_max, kForwardBlockM, -kInfinity);
    std::fill_n(memory.total_o, total_o_size, 0.0);
    std::fill_n(memory.total_row_sum, kForwardBlockM, 0.0);
    return memory;
  }
};

/// A tile of keys and values, and objects that prefetch the rows of the next tile.
struct KeyTile {
  std::int64_t key_begin;
  std::int64_t num_keys;
  FloatRows k;            // null if the product reads the keys directly from the tensor
  FloatRows v;            // null if v_pairs is used
  PairRows v_pairs;       // values in bf16 pairs if P is rounded to bf16; otherwise null
  const float* v_turned;  // (head_dim_v, 64): v_pairs transposed; set if Panel::o_turned is used
  PrefetchRows next_k, next_v;
};

/// Computes the transposed product O^T += V^T P^T instead of O += P V, because AMX needs the left operand in pairs
/// along its rows. One transposition of V serves four panels, whereas P would have to be transposed for each panel. If
/// a mask cuts through the tile, the function computes 16 query rows at a time. `depth` is the range of keys of each
/// query row. In the transposed product, query rows are columns.
void add_values_turned(const ScoreTile& tile, Panel& panel, KeyTile& keys, const float* rescale,
                       std::int64_t head_dim_v, RowRanges depth, GemmMode mode) {
  constexpr std::int64_t kWords = kBlockN / 2;  // number of words in a row of v_turned
  const auto add = [&](std::int64_t lane, std::int64_t lanes, KeyRange pairs) {
    bf16_dot_gemm({.a = {reinterpret_cast<const std::uint16_t*>(keys.v_turned + pairs.begin), 2 * kWords, 2},
                   .b = reinterpret_cast<const std::uint32_t*>(tile.key(pairs.begin) + lane),
                   .b_stride = tile.stride,
                   .c = panel.o_turned + lane,
                   .c_stride = kPanel,
                   .m = head_dim_v,
                   .n = lanes,
                   .pairs = pairs.end - pairs.begin,
                   .mode = mode,
                   .column_scale = rescale + lane,
                   .prefetch = &keys.next_v});
  };
  if (depth.begin == nullptr) {
    add(0, tile.lanes(), {0, ceil_div(tile.num_keys, 2)});
    return;
  }
  constexpr std::int64_t kRows = 16;
  for (std::int64_t lane = 0; lane < tile.lanes(); lane += kRows) {
    const std::int64_t last = std::min<std::int64_t>(lane + kRows, tile.num_rows) - 1;
    const std::int64_t begin = depth.begin[lane] / 2;
    add(lane, kRows, {begin, std::max<std::int64_t>(begin, ceil_div(depth.end[last], 2))});
  }
}

/// Computes O = diag(rescale) O + P V. `tile` holds P, in bf16 pairs if the values are in pairs. Rounding may lose a
/// NaN of P, but the row sums keep it.
void add_values(const ScoreTile& tile, Panel& panel, KeyTile& keys, const float* rescale, std::int64_t head_dim_v,
                RowRanges depth) {
  const bool started = std::exchange(panel.started, true);
  if (panel.o_turned != nullptr) {
    add_values_turned(tile, panel, keys, rescale, head_dim_v, depth,
                      started ? GemmMode::kScaleColumnsAccumulate : GemmMode::kStore);
    return;
  }
  const std::int64_t o_cols = padded(head_dim_v);
  const GemmMode mode = started ? GemmMode::kScaleAccumulate : GemmMode::kStore;
  if (keys.v_pairs.data != nullptr) {
    bf16_dot_gemm({.a = {reinterpret_cast<const std::uint16_t*>(tile.s), 2, 2 * tile.stride},
                   .b = keys.v_pairs.data,
                   .b_stride = keys.v_pairs.stride,
                   .c = panel.o,
                   .c_stride = o_cols,
                   .m = panel.num_rows,
                   .n = o_cols,
                   .pairs = ceil_div(tile.num_keys, 2),
                   .mode = mode,
                   .row_scale = rescale,
                   .prefetch = &keys.next_v,
                   .depth = depth});
    return;
  }
  gemm({.a = {tile.s, 1, tile.stride},
        .b = {keys.v.data, keys.v.stride},
        .c = panel.o,
        .c_stride = o_cols,
        .m = panel.num_rows,
        .n = o_cols,
        .k = tile.num_keys,
        .mode = mode,
        .row_scale = rescale,
        .prefetch = &keys.next_v,
        .depth = depth});
}

/// Processes one panel of query rows against the first num_keys keys of a tile.
void visit_tile(const core::Problem& p, const ScoreRules& rules, const ScoreProduct& product, Panel& panel,
                const ForwardMemory& memory, KeyTile& keys, std::int64_t num_keys) {
  const std::int64_t o_cols = padded(p.head_dim_v);
  if (panel.total_o != nullptr && panel.num_tiles == kTilesPerSum) fold_panel(rules, o_cols, panel);
  ++panel.num_tiles;
  const ScoreTile tile = {memory.scores, kPanel, keys.key_begin, num_keys, panel.row_begin, panel.num_rows};
  const bool partial = !rules.fully_visible(tile);
  TileRanges ranges;
  if (partial) ranges.fill(rules.window(), tile);

  const bool to_pairs = keys.v_pairs.data != nullptr;
  product.multiply(tile, keys.k, panel.q, tile.s, partial ? ranges.columns() : RowRanges{}, &keys.next_k);
  rules.finish(tile, {});
  if (partial) ScoreRules::hide(tile, ranges);
  const auto softmax = [&]<Softmax kForm>() HWY_ATTR {
    if (partial) {
      online_softmax_masked<kForm>(tile, ranges, panel, rules.log2_per_score(), memory.rescale);
    } else {
      online_softmax<kForm>(tile, panel, rules.log2_per_score(), memory.rescale);
    }
  };
  if (to_pairs) {
    softmax.template operator()<Softmax::kToPairs>();
  } else {
    softmax.template operator()<Softmax::kToFloats>();
  }
  if (p.dropout_p > 0) rules.drop(tile, tile.s);

  add_values(tile, panel, keys, memory.rescale, p.head_dim_v, partial ? ranges.keys_of_lane() : RowRanges{});
}

constexpr double kNoSink = -kInfinity;

/// Returns the lse of row r, merged with the head's sink. The computation is in float64. In float32 the rounding of a
/// large lse would exceed the logarithm of the number of keys.
core::MergedLse lse_with_sink(const Panel& panel, double nats_per_score, double sink, std::int64_t r) {
  if (panel.row_max[r] == -kInfinity) return core::merge_lse(-kInfinity, sink);
  return core::merge_lse(
      static_cast<double>(panel.row_max[r]) * nats_per_score + std::log(static_cast<double>(panel.row_sum[r])), sink);
}

/// Computes lse and 1 / l, including the sink, for the panel's rows.
void add_sink(const Panel& panel, double nats_per_score, double sink, float (&lse)[kPanel],
              float (&inverse_sum)[kPanel]) {
  for (std::int64_t r = 0; r < panel.num_rows; ++r) {
    const core::MergedLse row = lse_with_sink(panel, nats_per_score, sink, r);
    inverse_sum[r] = static_cast<float>(inverse_sum[r] * row.weight_a);
    lse[r] = static_cast<float>(row.lse);
  }
}

/// Stores o = O / l and lse = m + log l. Returns false in two situations: a result is not finite, because a NaN may
/// then have reached other rows; or all scores of a row are below the lowest float.
bool finish_panel(const core::Problem& p, const ForwardTask& task, const ScoreRules& rules, Panel& panel) {
  if (panel.total_o != nullptr) {
    unfold_panel(rules, padded(p.head_dim_v), panel);
  } else {
    gather_rows(padded(p.head_dim_v), panel);
  }
  const Vector nats_per_score = hn::Set(kFloats, rules.nats_per_score());
  HWY_ALIGN float lse[kPanel];
  HWY_ALIGN float inverse_sum[kPanel];
  for (int lane = 0; lane < kPanel; lane += kLanes) {
    const Vector row_max = hn::Load(kFloats, panel.row_max + lane);
    const Vector row_sum = hn::Load(kFloats, panel.row_sum + lane);
    const auto saw_no_key = hn::Eq(row_max, hn::Set(kFloats, -kInfinity));
    const Vector log_sum = hn::Log(kFloats, hn::IfThenElse(saw_no_key, hn::Set(kFloats, 1.0F), row_sum));
    hn::Store(hn::MulAdd(row_max, nats_per_score, log_sum), kFloats, lse + lane);
    hn::Store(hn::IfThenZeroElse(saw_no_key, hn::Div(hn::Set(kFloats, 1.0F), row_sum)), kFloats, inverse_sum + lane);
  }
  const double sink = p.sinks ? core::load(*p.sinks, task.sequence.index, task.head, 0, 0) : kNoSink;
  if (sink != kNoSink) add_sink(panel, rules.nats_per_score(), sink, lse, inverse_sum);
  const Matrix o = core::q_matrix(p.o, task.sequence, task.head);
  if (!panel.started) std::fill_n(panel.o, kPanel * padded(p.head_dim_v), 0.0F);
  constexpr std::int64_t kRowsAhead = 8;
  bool finite = true;
  for (std::int64_t r = 0; r < panel.num_rows; ++r) {
    prefetch_rows<true>(o, panel.row_begin + r + kRowsAhead, 1);
    finite &= store_row(o, panel.row_begin + r, panel.o + r * padded(p.head_dim_v), inverse_sum[r]);
    finite &= panel.row_max[r] == -kInfinity || std::isfinite(lse[r]);
    finite &= !rules.has_overflowed(panel.row_begin + r, panel.row_max[r]);
    if (!p.lse) continue;
    // A caller that requests a float64 lse will merge this result with other results. If a large lse were rounded to
    // float, the weights of that merge would be wrong.
    const bool is_exact = p.lse->dtype == DType::kF64;
    core::store(core::q_matrix(*p.lse, task.sequence, task.head), panel.row_begin + r, 0,
                is_exact ? lse_with_sink(panel, rules.nats_per_score(), sink, r).lse : lse[r]);
  }
  return finite;
}

/// Returns prefetches of the rows of the next tile of K or V. The prefetches are spread over the register blocks of a
/// tile's products, about one step per block.
PrefetchRows next_tile(const Matrix& m, std::int64_t begin, std::int64_t end, int num_panels) {
  constexpr int kStepsPerPanel = 20;
  return prefetch_in_steps(m, begin, std::clamp<std::int64_t>(end - begin, 0, kBlockN), kStepsPerPanel * num_panels);
}

/// Returns whether the product P V reads P rounded to bf16. With dropout it does not, because then the corrections of
/// the backward pass allow for no error of o other than its final rounding (row_corrections.cpp).
bool rounds_p(const core::Problem& p) {
  return p.dropout_p == 0 && multiplies_in_bf16({p.q.dtype, p.k.dtype, p.v.dtype, p.result_dtype()});
}

/// Initialises the panels of the task's rows and packs their rows of q. Returns the number of panels.
int make_panels(const core::Problem& p, const ForwardTask& task, const ForwardMemory& memory,
                const ScoreProduct& product, Panel* panels) {
  const Matrix q = core::q_matrix(p.q, task.sequence, task.head);
  const bool with_totals = memory.total_o != nullptr;
  int num_panels = 0;
  prefetch_rows<false>(q, task.row_begin, kPanel);
  for (std::int64_t row = task.row_begin; row < task.row_end; row += kPanel, ++num_panels) {
    const std::int64_t at = row - task.row_begin, at_o = at * padded(p.head_dim_v);
    float* q_panel = memory.q + at * p.head_dim;
    panels[num_panels] = {.row_begin = row,
                          .num_rows = std::min<std::int64_t>(kPanel, task.row_end - row),
                          .q = q_panel,
                          .o = memory.o + at_o,
                          .o_turned = memory.o_turned != nullptr ? memory.o_turned + at_o : nullptr,
                          .row_max = memory.row_max + at,
                          .row_sum = memory.row_sum + at,
                          .started = false,
                          .total_o = with_totals ? memory.total_o + at_o : nullptr,
                          .total_row_sum = with_totals ? memory.total_row_sum + at : nullptr,
                          .total_row_max = with_totals ? memory.total_row_max + at : nullptr,
                          .num_tiles = 0};
    prefetch_rows<false>(q, row + kPanel, kPanel);
    product.pack(row, panels[num_panels].num_rows, q_panel);
  }
  return num_panels;
}

bool run_forward(const core::Problem& p, const ForwardTask& task, Scratch& scratch) {
  const ScoreRules rules(p, task.sequence, task.head);
  const KeyRange keys = rules.window().rows(task.row_begin, task.row_end);
  // The task keeps float64 totals if it has more than kTilesPerSum tiles, including partial tiles.
  const bool with_totals = ceil_div(keys.end, kBlockN) - keys.begin / kBlockN > kTilesPerSum;
  const bool v_in_pairs = rounds_p(p);
  const bool turned = v_in_pairs && bf16_by_amx();
  const ForwardMemory memory = ForwardMemory::make(p, with_totals, turned, scratch);
  const std::int64_t key_head = task.head / p.heads_per_group();
  const Matrix k = core::k_matrix(p.k, task.sequence, key_head);
  const Matrix v = core::k_matrix(p.v, task.sequence, key_head);

  const ScoreProduct product(p, task.sequence, p.k, p.q, task.head, rules.product_factor());
  const bool k_as_it_is = reads_pairs_directly(p.k, p.q);
  auto* v_words = reinterpret_cast<std::uint32_t*>(memory.v);
  Panel panels[kForwardBlockM / kPanel];
  const int num_panels = make_panels(p, task, memory, product, panels);
  std::fill_n(memory.row_max, kForwardBlockM, -kInfinity);
  std::fill_n(memory.row_sum, kForwardBlockM, 0.0F);

  for (std::int64_t key = keys.begin / kBlockN * kBlockN; key < keys.end; key += kBlockN) {
    const std::int64_t num_keys = std::min<std::int64_t>(kBlockN, task.sequence.seqlen_k - key);
    if (!rules.may_see(task.row_begin, task.row_end, key, key + num_keys)) continue;
    KeyTile tile = {key,
                    num_keys,
                    k_as_it_is ? FloatRows{} : float_rows(k, key, num_keys, Readable::kElements, memory.k),
                    v_in_pairs ? FloatRows{} : float_rows(v, key, num_keys, Readable::kVectors, memory.v),
                    v_in_pairs ? pack_row_pairs(v, key, num_keys, v_words) : PairRows{},
                    memory.v_turned,
                    next_tile(k, key + kBlockN, keys.end, num_panels),
                    next_tile(v, key + kBlockN, keys.end, num_panels)};
    if (turned) {
      const std::int64_t pairs = ceil_div(num_keys, 2);
      const Matrix words = {tile.v_pairs.data, DType::kF32, pairs, p.head_dim_v, tile.v_pairs.stride};
      pack_transposed<false>(words, 0, pairs, 1.0F, memory.v_turned);
    }
    for (int i = 0; i < num_panels; ++i) {
      const std::int64_t row = panels[i].row_begin, row_end = row + panels[i].num_rows;
      if (!rules.may_see(row, row_end, key, key + num_keys)) continue;
      const KeyRange seen = rules.window().rows(row, row_end);
      visit_tile(p, rules, product, panels[i], memory, tile, std::min(num_keys, seen.end - key));
    }
  }
  bool finite = true;
  for (int i = 0; i < num_panels; ++i) finite &= finish_panel(p, task, rules, panels[i]);
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
  const Bf16Registers registers;
  return HWY_DYNAMIC_DISPATCH(forward_rows_target)(p, task, scratch);
}

HWY_EXPORT(simd_target_name_target);

void choose_simd_target() {
  static const bool chosen = [] {
    const std::vector<std::int64_t> targets = hwy::SupportedAndGeneratedTargets();
    std::vector<std::string_view> names;
    for (const std::int64_t target : targets) names.emplace_back(hwy::TargetName(target));
    const auto wish = core::environment_choice("ATTEND_SIMD", names, " on this processor");
    if (wish) hwy::SetSupportedTargetsForTest(targets[*wish]);
    return true;
  }();
  (void)chosen;
}

const char* simd_target_name() {
  choose_simd_target();
  return HWY_DYNAMIC_DISPATCH(simd_target_name_target)();
}

}  // namespace attend::cpu
#endif
