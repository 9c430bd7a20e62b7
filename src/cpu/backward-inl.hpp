// The tile of the backward pass: P and dS of 128 keys against 128 query rows, and what they add to dK, dV and dQ.
// Shared by the passes of backward.cpp and by dbias.cpp. Included once per SIMD target.
//
// Dao, FlashAttention-2 (2023), Algorithm 2, lines 10 to 16, with every score tile transposed to (key, row):
//   P^T = 2^(K Q^T - lse)        dP^T = V dO^T        dS^T = P^T (dP^T - delta)
//   dV += P^T dO                 dK += dS^T Q         dQ += dS K
#if defined(ATTEND_CPU_BACKWARD_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTEND_CPU_BACKWARD_INL
#undef ATTEND_CPU_BACKWARD_INL
#else
#define ATTEND_CPU_BACKWARD_INL
#endif

#include "cpu/bf16_tile-inl.hpp"
#include "cpu/kernels.hpp"
#include "cpu/long_sum-inl.hpp"
#include "cpu/score_product-inl.hpp"
#include "cpu/scratch.hpp"

HWY_BEFORE_NAMESPACE();
namespace attend::cpu::HWY_NAMESPACE {

/// What turns the rows of one query head into scores and their gradients.
struct HeadRules {
  ScoreRules scores;
  ScoreProduct s_product;   // S^T = K Q^T, times the score factor
  ScoreProduct dp_product;  // dP^T = V dO^T
  bool in_pairs;            // the other three: of rows in bf16 pairs, with P and dS rounded to bf16

  HeadRules(const core::Problem& p, const core::Sequence& s, std::int64_t head)
      : scores(p, s, head),
        s_product(p, s, p.k, p.q, head, scores.q_factor()),
        dp_product(p, s, p.v, p.dout, head, 1.0F),
        in_pairs(works_in_pairs(p)) {}

  static bool works_in_pairs(const core::Problem& p) {
    return multiplies_in_bf16({p.q.dtype, p.k.dtype, p.v.dtype, p.dout.dtype, p.dq.dtype, p.dk.dtype, p.dv.dtype});
  }
};

/// Up to 128 query rows of one head, in every form in which the products read them.
struct QueryTile {
  std::int64_t row_begin = 0;
  std::int64_t num_rows = 0;
  float* q_packed;     // 2 x (head_dim, 64), by s_product
  float* dout_packed;  // 2 x (head_dim_v, 64), by dp_product
  FloatRows q;         // (128, head_dim), where not in_pairs
  FloatRows dout;      // (128, head_dim_v), likewise
  PairRows q_pairs;    // the same, where in_pairs
  PairRows dout_pairs;
  float* q_buffer;     // for q where it is converted
  float* dout_buffer;  // likewise
  float* lse;          // (128), in the unit of the scores; +inf for a row that saw no key, so that its P is 0
  float* delta;        // (128): <dout, o> - dlse
  mutable PrefetchRows next_q, next_dout, next_o;  // of the 128 rows that follow

  static std::int64_t floats(const core::Problem& p) {
    const std::int64_t rows = kBackwardBlockM;
    return Scratch::size_of(rows * p.head_dim) + Scratch::size_of(rows * p.head_dim_v) + buffer_size(p, p.head_dim) +
           buffer_size(p, p.head_dim_v) + 2 * rows;
  }

  static QueryTile make(const core::Problem& p, Scratch& scratch) {
    const std::int64_t rows = kBackwardBlockM;
    QueryTile tile;
    tile.q_packed = scratch.take(rows * p.head_dim);
    tile.dout_packed = scratch.take(rows * p.head_dim_v);
    tile.q_buffer = scratch.take(buffer_size(p, p.head_dim));
    tile.dout_buffer = scratch.take(buffer_size(p, p.head_dim_v));
    tile.lse = scratch.take(rows);
    tile.delta = scratch.take(rows);
    return tile;
  }

  [[nodiscard]] std::int64_t num_panels() const { return ceil_div(num_rows, kPanel); }

  /// Rows [begin, end) of a head, with delta from `deltas` (as in BackwardKeysTask) unless null. False: lse holds NaN
  /// or +inf.
  bool load(const core::Problem& p, const core::Sequence& s, std::int64_t head, const HeadRules& rules,
            std::int64_t begin, std::int64_t end, const float* deltas) {
    row_begin = begin;
    num_rows = end - begin;
    const Matrix q_rows = core::q_matrix(p.q, s, head);
    const Matrix dout_rows = core::q_matrix(p.dout, s, head);
    prefetch_rows<false>(q_rows, begin, num_rows);
    prefetch_rows<false>(dout_rows, begin, num_rows);
    prefetch_rows<false>(core::q_matrix(p.o, s, head), begin, num_rows);
    if (rules.in_pairs) {
      q_pairs = pack_row_pairs(q_rows, begin, num_rows, reinterpret_cast<std::uint32_t*>(q_buffer));
      dout_pairs = pack_row_pairs(dout_rows, begin, num_rows, reinterpret_cast<std::uint32_t*>(dout_buffer));
    } else {
      q = float_rows(q_rows, begin, num_rows, Readable::kVectors, q_buffer);
      dout = float_rows(dout_rows, begin, num_rows, Readable::kVectors, dout_buffer);
    }
    constexpr int kSteps = kBackwardBlockM / kPanel * 20;  // about the register blocks of one tile's product
    next_q = prefetch_in_steps(q_rows, end, kBackwardBlockM, kSteps);
    next_dout = prefetch_in_steps(dout_rows, end, kBackwardBlockM, kSteps);
    next_o = prefetch_in_steps(core::q_matrix(p.o, s, head), end, kBackwardBlockM, kSteps);
    for (std::int64_t panel = 0; panel < num_panels(); ++panel) {
      const std::int64_t row = panel * kPanel;
      const std::int64_t rows = std::min<std::int64_t>(kPanel, num_rows - row);
      rules.s_product.pack(begin + row, rows, q_packed + row * p.head_dim);
      rules.dp_product.pack(begin + row, rows, dout_packed + row * p.head_dim_v);
    }
    return load_row_scalars(p, s, head, rules.scores.per_nat(), deltas);
  }

 private:
  static std::int64_t buffer_size(const core::Problem& p, std::int64_t cols) {
    return HeadRules::works_in_pairs(p) ? pair_words(kBackwardBlockM, cols) : kBackwardBlockM * padded(cols);
  }

  bool load_row_scalars(const core::Problem& p, const core::Sequence& s, std::int64_t head, double per_nat,
                        const float* deltas) {
    const Matrix o = core::q_matrix(p.o, s, head);
    const Matrix lse_rows = core::q_matrix(*p.lse, s, head);
    bool lse_ok = true;
    std::fill_n(lse, kBackwardBlockM, kInfinity);
    std::fill_n(delta, kBackwardBlockM, 0.0F);
    for (std::int64_t r = 0; r < num_rows; ++r) {
      const double row_lse = core::load(lse_rows, row_begin + r, 0);
      if (row_lse != -kInfinity) lse[r] = static_cast<float>(row_lse * per_nat);
      lse_ok &= row_lse < kInfinity;
      if (deltas != nullptr || p.delta) {
        delta[r] = deltas != nullptr
                       ? deltas[delta_index(p, s, head, row_begin + r)]
                       : static_cast<float>(core::load(core::q_matrix(*p.delta, s, head), row_begin + r, 0));
        continue;
      }
      delta[r] = dot_with_dout(o, core::q_matrix(p.dout, s, head), row_begin + r);
      if (p.dlse) delta[r] -= static_cast<float>(core::load(core::q_matrix(*p.dlse, s, head), row_begin + r, 0));
    }
    return lse_ok;
  }

  [[nodiscard]] static float dot_with_dout(const Matrix& o, const Matrix& dout, std::int64_t row) {
    return with_type(o.data, o.dtype, [&](const auto* o_data) HWY_ATTR {
      return with_type(dout.data, dout.dtype, [&](const auto* dout_data) HWY_ATTR {
        const auto* o_row = row_at(o_data, o, row);
        const auto* dout_row = row_at(dout_data, dout, row);
        Vector sum = hn::Zero(kFloats);
        for (std::int64_t c = 0; c < o.cols; c += kLanes) {
          sum = hn::MulAdd(load_partial(o_row + c, o.cols - c), load_partial(dout_row + c, o.cols - c), sum);
        }
        return hn::GetLane(hn::SumOfLanes(kFloats, sum));
      });
    });
  }
};

/// Up to 128 keys of one head with their values.
struct KeyTile {
  std::int64_t key_begin = 0;
  std::int64_t num_keys = 0;
  FloatRows k;             // (128, head_dim), where a product reads it
  FloatRows v;             // (128, head_dim_v), likewise
  PairRows k_pairs;        // (128, head_dim), where HeadRules::in_pairs
  float* k_buffer;         // (128, padded head_dim), for k where it is converted
  float* v_buffer;         // (128, padded head_dim_v), likewise
  std::uint32_t* k_words;  // for k_pairs
  LongSum dk;  // (128, padded head_dim): sum over rows of dS q, without scale; only in KeyTile::with_gradients
  LongSum dv;  // (128, padded head_dim_v), likewise

  static std::int64_t floats(const core::Problem& p) { return k_buffer_size(p) + v_buffer_size(p) + k_words_size(p); }

  static KeyTile make(const core::Problem& p, Scratch& scratch) {
    KeyTile tile;
    tile.k_buffer = scratch.take(k_buffer_size(p));
    tile.v_buffer = scratch.take(v_buffer_size(p));
    tile.k_words = reinterpret_cast<std::uint32_t*>(scratch.take(k_words_size(p)));
    return tile;
  }

  static std::int64_t floats_with_gradients(const core::Problem& p, std::int64_t row_tiles) {
    return floats(p) + LongSum::floats(kBlockN * padded(p.head_dim), row_tiles) +
           LongSum::floats(kBlockN * padded(p.head_dim_v), row_tiles);
  }

  /// For sums over at most row_tiles tiles of rows.
  static KeyTile with_gradients(const core::Problem& p, std::int64_t row_tiles, Scratch& scratch) {
    KeyTile tile = make(p, scratch);
    tile.dk = LongSum(kBlockN * padded(p.head_dim), row_tiles, scratch);
    tile.dv = LongSum(kBlockN * padded(p.head_dim_v), row_tiles, scratch);
    tile.dk.clear();
    tile.dv.clear();
    return tile;
  }

  /// Rows [begin, begin + count) of a key head.
  void load(const core::Problem& p, const core::Sequence& s, std::int64_t key_head, std::int64_t begin,
            std::int64_t count) {
    key_begin = begin;
    num_keys = count;
    const Matrix k_rows = core::k_matrix(p.k, s, key_head);
    if (needs_float_k(p)) k = float_rows(k_rows, begin, count, Readable::kVectors, k_buffer);
    if (needs_float_v(p)) {
      v = float_rows(core::k_matrix(p.v, s, key_head), begin, count, Readable::kElements, v_buffer);
    }
    if (HeadRules::works_in_pairs(p)) k_pairs = pack_row_pairs(k_rows, begin, count, k_words);
  }

 private:
  static bool needs_float_k(const core::Problem& p) {
    return !HeadRules::works_in_pairs(p) || !ScoreProduct::reads_keys_directly(p.k, p.q);
  }
  static bool needs_float_v(const core::Problem& p) { return !ScoreProduct::reads_keys_directly(p.v, p.dout); }

  static std::int64_t k_buffer_size(const core::Problem& p) {
    return needs_float_k(p) ? kBlockN * padded(p.head_dim) : 0;
  }
  static std::int64_t v_buffer_size(const core::Problem& p) {
    return needs_float_v(p) ? kBlockN * padded(p.head_dim_v) : 0;
  }
  static std::int64_t k_words_size(const core::Problem& p) {
    return HeadRules::works_in_pairs(p) ? pair_words(kBlockN, p.head_dim) : 0;
  }
};

/// P^T and dS^T of one tile, and which part of it is visible.
struct GradientTile {
  float* p;                 // (128, kBackwardScoreStride): scores, then probabilities
  float* ds;                // likewise: dP, then dS
  float* derivative;        // likewise: of softcap; null without
  std::uint32_t* ds_pairs;  // (64, kBackwardScoreStride): dS by pairs of keys, after round(); null where not in pairs
  bool partial = false;
  TileRanges ranges[kBackwardBlockM / kPanel];

  static std::int64_t floats(const core::Problem& p) {
    return (p.softcap > 0 ? 3 : 2) * kBlockN * kBackwardScoreStride + pairs_size(p);
  }

  static GradientTile make(const core::Problem& p, Scratch& scratch) {
    const std::int64_t size = kBlockN * kBackwardScoreStride;
    GradientTile tile;
    tile.p = scratch.take(size);
    tile.ds = scratch.take(size);
    tile.derivative = p.softcap > 0 ? scratch.take(size) : nullptr;
    tile.ds_pairs = pairs_size(p) > 0 ? reinterpret_cast<std::uint32_t*>(scratch.take(pairs_size(p))) : nullptr;
    // Products skip what the mask hides, and 0 times what was left there has to be 0.
    std::fill_n(tile.p, size, 0.0F);
    std::fill_n(tile.ds, size, 0.0F);
    return tile;
  }

  /// Fills p and ds (before the derivative of softcap).
  void compute(const core::Problem& problem, const HeadRules& rules, const QueryTile& q, const KeyTile& k) {
    partial = false;
    for (std::int64_t panel = 0; panel < q.num_panels(); ++panel) {
      const ScoreTile tile = compute_scores(problem, rules, q, k, panel);
      const std::int64_t lane = panel * kPanel;
      rules.scores.with_unit([&](auto unit) HWY_ATTR {
        probabilities_and_gradients<unit>(tile, q.lse + lane, q.delta + lane, ds + lane);
      });
    }
  }

  /// p and ds as the products with rows and keys read them. False: there was a NaN that rounding may have lost.
  [[nodiscard]] bool compute_operands(const core::Problem& problem, const HeadRules& rules, const QueryTile& q,
                                      const KeyTile& k) {
    if (rules.in_pairs && problem.dropout_p == 0 && derivative == nullptr) {
      return compute_rounded(problem, rules, q, k);
    }
    compute(problem, rules, q, k);
    drop_probabilities(problem, rules, q, k);
    through_softcap(q, k);
    return !rules.in_pairs || round(q, k);
  }

 private:
  /// p becomes what dV is made of: with dropout on, dropped probabilities.
  void drop_probabilities(const core::Problem& problem, const HeadRules& rules, const QueryTile& q,
                          const KeyTile& k) const {
    if (problem.dropout_p == 0) return;
    for (std::int64_t panel = 0; panel < q.num_panels(); ++panel) {
      const ScoreTile tile = score_tile(q, k, panel);
      rules.scores.drop(tile, tile.s);
    }
  }

  /// dS becomes the gradient of the products q.k, in units of scale.
  void through_softcap(const QueryTile& q, const KeyTile& k) const {
    if (derivative == nullptr) return;
    const std::int64_t lanes = padded(q.num_rows);  // those beyond were never computed
    for (std::int64_t key = 0; key < k.num_keys; ++key) {
      const std::int64_t first = key * kBackwardScoreStride;
      for (std::int64_t at = first; at < first + lanes; at += kLanes) {
        hn::Store(hn::Mul(hn::Load(kFloats, ds + at), hn::Load(kFloats, derivative + at)), kFloats, ds + at);
      }
    }
  }

  /// p and ds become bf16 rows, each where its float row began, and ds_pairs those of ds in pairs. (As floats they are
  /// finite then too: see make().) False: there was a NaN, which may be lost now.
  [[nodiscard]] bool round(const QueryTile& q, const KeyTile& k) const {
    const std::int64_t lanes = padded(q.num_rows);
    const bool ok = round_row_pairs(ds, kBackwardScoreStride, k.num_keys, lanes, ds_pairs);  // of p a NaN is in ds too
    round_rows(ds, kBackwardScoreStride, k.num_keys, lanes);
    round_rows(p, kBackwardScoreStride, k.num_keys, lanes);
    return ok;
  }

  static std::int64_t pairs_size(const core::Problem& p) {
    return HeadRules::works_in_pairs(p) ? kBlockN / 2 * kBackwardScoreStride : 0;
  }

  [[nodiscard]] ScoreTile score_tile(const QueryTile& q, const KeyTile& k, std::int64_t panel) const {
    const std::int64_t lane = panel * kPanel;
    return {p + lane,   kBackwardScoreStride, k.key_begin,
            k.num_keys, q.row_begin + lane,   std::min<std::int64_t>(kPanel, q.num_rows - lane)};
  }

  /// One panel's scores into p, and dP into ds (with dropout).
  ScoreTile compute_scores(const core::Problem& problem, const HeadRules& rules, const QueryTile& q, const KeyTile& k,
                           std::int64_t panel) {
    const std::int64_t lane = panel * kPanel;
    const ScoreTile tile = score_tile(q, k, panel);
    const bool panel_partial = !rules.scores.fully_visible(tile);
    partial |= panel_partial;
    ranges[panel].fill(rules.scores.window(), tile);
    const RowRanges columns = panel_partial ? ranges[panel].columns() : RowRanges{};
    rules.s_product.multiply(tile, k.k, q.q_packed + lane * problem.head_dim, tile.s, columns, &q.next_q);
    rules.dp_product.multiply(tile, k.v, q.dout_packed + lane * problem.head_dim_v, ds + lane, columns, &q.next_dout);
    rules.scores.finish(tile, derivative == nullptr ? nullptr : derivative + lane);
    if (panel_partial) ScoreRules::hide(tile, ranges[panel]);
    if (problem.dropout_p > 0) rules.scores.drop(tile, ds + lane);
    return tile;
  }

  /// p = exp(s - lse), ds = p (dp - delta), in place.
  template <ScoreUnit kUnit>
  static void probabilities_and_gradients(const ScoreTile& tile, const float* lse, const float* delta, float* ds) {
    for (int lane = 0; lane < tile.lanes(); lane += kLanes) {
      const Vector row_lse = hn::Load(kFloats, lse + lane);
      const Vector row_delta = hn::Load(kFloats, delta + lane);
      for (std::int64_t k = 0; k < tile.num_keys; ++k) {
        float* s_at = tile.key(k) + lane;
        float* ds_at = ds + k * tile.stride + lane;
        const Vector p = exponential<kUnit>(hn::Sub(hn::Load(kFloats, s_at), row_lse));
        hn::Store(p, kFloats, s_at);
        hn::Store(hn::Mul(p, hn::Sub(hn::Load(kFloats, ds_at), row_delta)), kFloats, ds_at);
      }
    }
  }

  /// compute() and round() in one, for that p and dS need not lie in memory as floats.
  [[nodiscard]] bool compute_rounded(const core::Problem& problem, const HeadRules& rules, const QueryTile& q,
                                     const KeyTile& k) {
    partial = false;
    Vector sum = hn::Zero(kFloats);  // of all of dS: NaN where there is one
    for (std::int64_t panel = 0; panel < q.num_panels(); ++panel) {
      const ScoreTile tile = compute_scores(problem, rules, q, k, panel);
      if (tile.num_keys % 2 != 0) {  // the other half of the last pair: p and dS of it come out as 0
        std::fill_n(tile.key(tile.num_keys), kPanel, -kInfinity);
        std::fill_n(ds + panel * kPanel + tile.num_keys * kBackwardScoreStride, kPanel, 0.0F);
      }
      for (std::int64_t lane = 0; lane < tile.lanes(); lane += kHalfLanes) {
        const KeyRange keys = keys_near(ranges[panel], lane, tile);
        rules.scores.with_unit([&](auto unit)
                                   HWY_ATTR { sum = hn::Add(sum, round_lanes<unit>(q, panel * kPanel + lane, keys)); });
      }
    }
    return hn::AllTrue(kFloats, hn::Eq(sum, sum));
  }

  /// Every key that products may read for kHalfLanes rows from `lane` on: of 6 neighbouring keys or rows they take the
  /// widest range for all, out to whole pairs.
  static KeyRange keys_near(const TileRanges& ranges, std::int64_t lane, const ScoreTile& tile) {
    constexpr std::int64_t kNeighbours = 6;
    const std::int64_t last = std::min<std::int64_t>(lane + kHalfLanes, tile.num_rows) - 1;
    const std::int64_t first_key = std::max<std::int64_t>(ranges.key_begin[lane] - kNeighbours, 0);
    const std::int64_t end_key = ranges.key_end[last] + kNeighbours;
    return {first_key / 2 * 2, std::min<std::int64_t>(end_key, tile.num_keys)};
  }

  /// Of kHalfLanes rows p and dS as round() leaves them, from scores and dP. The result is a sum of all of dS.
  template <ScoreUnit kUnit>
  HWY_INLINE Vector round_lanes(const QueryTile& q, std::int64_t lane, KeyRange keys) const {
    const Vector lse[2] = {hn::Load(kFloats, q.lse + lane), hn::Load(kFloats, q.lse + lane + kLanes)};
    const Vector delta[2] = {hn::Load(kFloats, q.delta + lane), hn::Load(kFloats, q.delta + lane + kLanes)};
    Vector sum = hn::Zero(kFloats);
    for (std::int64_t k = keys.begin; k < keys.end; k += 2) {
      Vector gradient[2][2];
      for (std::int64_t odd = 0; odd < 2; ++odd) {
        float* p_row = p + (k + odd) * kBackwardScoreStride;
        float* ds_row = ds + (k + odd) * kBackwardScoreStride;
        Vector probability[2];
        for (int half = 0; half < 2; ++half) {
          const std::int64_t at = lane + half * kLanes;
          probability[half] = exponential<kUnit>(hn::Sub(hn::Load(kFloats, p_row + at), lse[half]));
          gradient[odd][half] = hn::Mul(probability[half], hn::Sub(hn::Load(kFloats, ds_row + at), delta[half]));
          sum = hn::Add(sum, gradient[odd][half]);
        }
        const auto p_halves = as_halves(probability[0], probability[1]);
        const auto ds_halves = as_halves(gradient[odd][0], gradient[odd][1]);
        hn::Store(p_halves, kHalves, reinterpret_cast<std::uint16_t*>(p_row) + lane);
        hn::Store(ds_halves, kHalves, reinterpret_cast<std::uint16_t*>(ds_row) + lane);
      }
      std::uint32_t* pairs = ds_pairs + k / 2 * kBackwardScoreStride + lane;
      hn::Store(as_pairs(gradient[0][0], gradient[1][0]), kUints, pairs);
      hn::Store(as_pairs(gradient[0][1], gradient[1][1]), kUints, pairs + kLanes);
    }
    return sum;
  }
};

}  // namespace attend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
