// Computes one tile of the backward pass: P and dS of up to 128 keys and 128 query rows. Used by backward.cpp and
// dbias.cpp. Included once per SIMD target.
//
// Source: Dao, FlashAttention-2 (2023), Algorithm 2, lines 10 to 16. Every score tile is transposed to (key, row):
//
//   P^T = exp(K Q^T - lse)       dP^T = V dO^T        dS^T = P^T (dP^T - delta)
//   dV += P^T dO                 dK += dS^T Q         dQ += dS K
//
// The arithmetic is float32. If HeadRules::in_pairs is set, all five products use bfloat16 operands (bf16_dot.hpp). P
// and dS are then rounded to bfloat16 for the products that compute dV, dK and dQ.
#if defined(ATTEND_CPU_BACKWARD_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTEND_CPU_BACKWARD_INL
#undef ATTEND_CPU_BACKWARD_INL
#else
#define ATTEND_CPU_BACKWARD_INL
#endif

#include "cpu/backward_rows-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace attend::cpu::HWY_NAMESPACE {

/// Holds P^T and dS^T of one score tile, and the ranges of the tile's visible entries.
struct GradientTile {
  float* p;           // (128, kBackwardScoreStride): scores, then probabilities
  float* ds;          // same shape: dP, then dS
  float* derivative;  // same shape: derivative of a score transform; null without a transform
  // Same shape: derivative of a custom function. Null if there is no function, or if the derivative is always 1.
  float* slopes;
  // Same shape: scores before the custom function. Null if there is no function, or if the scores were not requested.
  float* inputs;
  // (64, kBackwardScoreStride): dS after round(), as pairs of keys. Null if HeadRules::in_pairs is false.
  std::uint32_t* ds_pairs;
  bool partial = false;
  TileRanges ranges[kBackwardBlockM / kPanel];

  /// Returns the number of floats that all arrays need together. If `with_inputs` is set, the number includes the array
  /// `inputs`.
  static std::int64_t floats(const core::Problem& p, bool with_inputs = false) {
    const int arrays = 2 + (p.transforms_scores() ? 1 : 0) + (has_slopes(p) ? 1 : 0) + (with_inputs ? 1 : 0);
    return arrays * kBlockN * kBackwardScoreStride + pairs_size(p);
  }

  /// Allocates the arrays for a task. No tile of the task may have more than num_rows rows or num_keys keys.
  static GradientTile make(const core::Problem& p, std::int64_t num_rows, std::int64_t num_keys, Scratch& scratch,
                           bool with_inputs = false) {
    const std::int64_t size = kBlockN * kBackwardScoreStride;
    GradientTile tile;
    tile.p = scratch.take(size);
    tile.ds = scratch.take(size);
    tile.derivative = p.transforms_scores() ? scratch.take(size) : nullptr;
    tile.slopes = has_slopes(p) ? scratch.take(size) : nullptr;
    tile.inputs = with_inputs ? scratch.take(size) : nullptr;
    tile.ds_pairs = pairs_size(p) > 0 ? reinterpret_cast<std::uint32_t*>(scratch.take(pairs_size(p))) : nullptr;
    // The arrays must not contain NaN. The reason is that products skip only complete blocks of masked entries; in the
    // other blocks they multiply old values of masked entries by 0, and 0 * NaN is NaN. For a short sequence, only the
    // area that it uses is cleared, because clearing the full arrays would take longer than the products.
    const std::int64_t lanes = std::min<std::int64_t>(round_up(num_rows, kPanel), kBackwardBlockM);
    for (std::int64_t key = 0; key < std::min<std::int64_t>(round_up(num_keys, 2), kBlockN); ++key) {
      std::fill_n(tile.p + key * kBackwardScoreStride, lanes, 0.0F);
      std::fill_n(tile.ds + key * kBackwardScoreStride, lanes, 0.0F);
    }
    return tile;
  }

  /// Computes one tile. Fills p, `inputs`, and ds before the derivatives of a custom function and of a transform.
  void compute(const core::Problem& problem, const HeadRules& rules, const QueryTile& q, const KeyTile& k) {
    partial = false;
    for (std::int64_t panel = 0; panel < q.num_panels(); ++panel) {
      const ScoreTile tile = compute_scores(problem, rules, q, k, panel);
      const std::int64_t lane = panel * kPanel;
      probabilities_and_gradients(tile, rules.scores.nats_per_score(), q, lane, ds + lane);
    }
  }

  /// Computes one tile and converts p and ds to the format that the products for dK, dV and dQ read. Returns false if
  /// rounding may have lost a NaN.
  [[nodiscard]] bool compute_operands(const core::Problem& problem, const HeadRules& rules, const QueryTile& q,
                                      const KeyTile& k) {
    if (rules.in_pairs && problem.dropout_p == 0 && derivative == nullptr && slopes == nullptr) {
      return compute_rounded(problem, rules, q, k);
    }
    compute(problem, rules, q, k);
    drop_probabilities(problem, rules, q, k);
    through_function(q, k);
    through_transform(q, k);
    return !rules.in_pairs || round(q, k);
  }

  /// Multiplies ds by the slopes of a custom function, which gives the gradient of the scores before the function. If p
  /// is 0, the gradient stays 0, because the slope may then be infinite or NaN.
  void through_function(const QueryTile& q, const KeyTile& k) const {
    if (slopes == nullptr) return;
    const std::int64_t lanes = padded(q.num_rows);  // number of lanes that are computed
    for (std::int64_t key = 0; key < k.num_keys; ++key) {
      const std::int64_t first = key * kBackwardScoreStride;
      for (std::int64_t at = first; at < first + lanes; at += kLanes) {
        const Vector of_score = hn::Load(kFloats, ds + at);
        const auto is_zero = hn::Eq(of_score, hn::Zero(kFloats));
        hn::Store(hn::IfThenZeroElse(is_zero, hn::Mul(of_score, hn::Load(kFloats, slopes + at))), kFloats, ds + at);
      }
    }
  }

 private:
  static bool has_slopes(const core::Problem& p) { return p.custom_score != nullptr && has_own_slope(*p.custom_score); }

  /// Applies dropout to p, because dV needs the probabilities after dropout.
  void drop_probabilities(const core::Problem& problem, const HeadRules& rules, const QueryTile& q,
                          const KeyTile& k) const {
    if (problem.dropout_p == 0) return;
    for (std::int64_t panel = 0; panel < q.num_panels(); ++panel) {
      const ScoreTile tile = score_tile(q, k, panel);
      rules.scores.drop(tile, tile.s);
    }
  }

  /// Multiplies dS by the derivative of a score transform, which gives the gradient of the products q.k in units of
  /// scale.
  void through_transform(const QueryTile& q, const KeyTile& k) const {
    if (derivative == nullptr) return;
    const std::int64_t lanes = padded(q.num_rows);  // number of lanes that are computed
    for (std::int64_t key = 0; key < k.num_keys; ++key) {
      const std::int64_t first = key * kBackwardScoreStride;
      for (std::int64_t at = first; at < first + lanes; at += kLanes) {
        hn::Store(hn::Mul(hn::Load(kFloats, ds + at), hn::Load(kFloats, derivative + at)), kFloats, ds + at);
      }
    }
  }

  /// Rounds p and ds to bf16. Each bf16 row is stored at the start of the memory of its float row. Also writes ds to
  /// ds_pairs, as pairs of keys. make() requires that the arrays contain no NaN if they are read as floats, and the
  /// rounded rows meet this condition. Returns false if there was a NaN, because rounding may have turned it into a
  /// number.
  [[nodiscard]] bool round(const QueryTile& q, const KeyTile& k) const {
    const std::int64_t lanes = padded(q.num_rows);
    // If p has a NaN, ds has one too.
    const bool ok = round_row_pairs(ds, kBackwardScoreStride, k.num_keys, lanes, ds_pairs);
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

  /// Writes the scores of one panel to p. Writes dP, after dropout, to ds.
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
    const auto of_panel = [lane](float* array) { return array == nullptr ? nullptr : array + lane; };
    rules.scores.finish(tile, {of_panel(derivative), of_panel(slopes), of_panel(inputs)});
    if (panel_partial) ScoreRules::hide(tile, ranges[panel]);
    if (problem.dropout_p > 0) rules.scores.drop(tile, ds + lane);
    return tile;
  }

  /// Returns p = exp(score - lse). The score in nats is first rounded to a float, like lse. If a single large score
  /// dominates the row, score and lse are then equal, and p is exactly 1.
  static HWY_INLINE Vector probability(Vector score, Vector nats_per_score, Vector lse, Vector log2_sum) {
    const Vector above = hn::Sub(hn::Mul(score, nats_per_score), lse);
    return exp2(hn::MulSub(above, hn::Set(kFloats, static_cast<float>(kLog2E)), log2_sum));
  }

  /// Computes p = exp(s - lse) and ds = p (dp - delta) in place. Lane 0 of `tile` is row
  /// first_lane of q, and the other lanes are the rows after it.
  static void probabilities_and_gradients(const ScoreTile& tile, float nats_per_score, const QueryTile& q,
                                          std::int64_t first_lane, float* ds) {
    const Vector nats = hn::Set(kFloats, nats_per_score);
    for (int lane = 0; lane < tile.lanes(); lane += kLanes) {
      const Vector row_lse = hn::Load(kFloats, q.lse + first_lane + lane);
      const Vector row_log2_sum = hn::Load(kFloats, q.log2_sum + first_lane + lane);
      const Vector row_delta = hn::Load(kFloats, q.delta + first_lane + lane);
      for (std::int64_t k = 0; k < tile.num_keys; ++k) {
        float* s_at = tile.key(k) + lane;
        float* ds_at = ds + k * tile.stride + lane;
        const Vector p = probability(hn::Load(kFloats, s_at), nats, row_lse, row_log2_sum);
        hn::Store(p, kFloats, s_at);
        hn::Store(hn::Mul(p, hn::Sub(hn::Load(kFloats, ds_at), row_delta)), kFloats, ds_at);
      }
    }
  }

  /// Does the work of compute() and round() in one pass, without storing p and dS as floats.
  [[nodiscard]] bool compute_rounded(const core::Problem& problem, const HeadRules& rules, const QueryTile& q,
                                     const KeyTile& k) {
    partial = false;
    Vector sum = hn::Zero(kFloats);  // sum of all entries of dS, which is NaN if any entry is NaN
    const Vector nats = hn::Set(kFloats, rules.scores.nats_per_score());
    for (std::int64_t panel = 0; panel < q.num_panels(); ++panel) {
      const ScoreTile tile = compute_scores(problem, rules, q, k, panel);
      if (tile.num_keys % 2 != 0) {  // The scores of the missing last key become -inf, so that its p and dS are 0.
        std::fill_n(tile.key(tile.num_keys), kPanel, -kInfinity);
        std::fill_n(ds + panel * kPanel + tile.num_keys * kBackwardScoreStride, kPanel, 0.0F);
      }
      for (std::int64_t lane = 0; lane < tile.lanes(); lane += kHalfLanes) {
        const KeyRange keys = keys_near(ranges[panel], lane, tile);
        sum = hn::Add(sum, round_lanes(q, panel * kPanel + lane, keys, nats));
      }
    }
    return hn::AllTrue(kFloats, hn::Eq(sum, sum));
  }

  /// Returns all keys that the products may read for the kHalfLanes rows that begin with `lane`. A product computes a
  /// group of neighbouring rows or keys at a time. For all of them it uses the widest range in the group, extended to
  /// full pairs.
  static KeyRange keys_near(const TileRanges& ranges, std::int64_t lane, const ScoreTile& tile) {
    const std::int64_t neighbours = bf16_dot_block_rows();
    const std::int64_t last = std::min<std::int64_t>(lane + kHalfLanes, tile.num_rows) - 1;
    const std::int64_t first_key = std::max<std::int64_t>(ranges.key_begin[lane] - neighbours, 0);
    const std::int64_t end_key = ranges.key_end[last] + neighbours;
    return {first_key / 2 * 2, std::min<std::int64_t>(end_key, tile.num_keys)};
  }

  /// Computes p and dS of kHalfLanes rows from scores and dP, and stores them in the format of round(). Returns a
  /// vector that contains a NaN if any entry of dS is NaN.
  HWY_INLINE Vector round_lanes(const QueryTile& q, std::int64_t lane, KeyRange keys, Vector nats_per_score) const {
    const Vector lse[2] = {hn::Load(kFloats, q.lse + lane), hn::Load(kFloats, q.lse + lane + kLanes)};
    const Vector log2_sum[2] = {hn::Load(kFloats, q.log2_sum + lane), hn::Load(kFloats, q.log2_sum + lane + kLanes)};
    const Vector delta[2] = {hn::Load(kFloats, q.delta + lane), hn::Load(kFloats, q.delta + lane + kLanes)};
    Vector sum = hn::Zero(kFloats);
    for (std::int64_t k = keys.begin; k < keys.end; k += 2) {
      Vector gradient[2][2];
      for (std::int64_t odd = 0; odd < 2; ++odd) {
        float* p_row = p + (k + odd) * kBackwardScoreStride;
        float* ds_row = ds + (k + odd) * kBackwardScoreStride;
        Vector ps[2];
        for (int half = 0; half < 2; ++half) {
          const std::int64_t at = lane + half * kLanes;
          const Vector score = hn::Load(kFloats, p_row + at);
          ps[half] = probability(score, nats_per_score, lse[half], log2_sum[half]);
          gradient[odd][half] = hn::Mul(ps[half], hn::Sub(hn::Load(kFloats, ds_row + at), delta[half]));
          sum = hn::Add(sum, gradient[odd][half]);
        }
        const auto p_halves = as_halves(ps[0], ps[1]);
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

/// Calls prepare(query tile) once. Then calls visit(score tile, query tile, key tile) for each key tile that the task's
/// rows see. If `with_inputs` is set, also fills GradientTile::inputs.
template <class Prepare, class Visit>
void visit_key_tiles(const core::Problem& p, const BackwardRowsTask& task, Scratch& scratch, bool with_inputs,
                     Prepare prepare, Visit visit) {
  scratch.reserve(QueryTile::floats(p) + GradientTile::floats(p, with_inputs) + KeyTile::floats(p));
  QueryTile q = QueryTile::make(p, scratch);
  GradientTile tile = GradientTile::make(p, kBackwardBlockM, kBlockN, scratch, with_inputs);
  KeyTile k = KeyTile::make(p, scratch);
  const HeadRules rules(p, task.sequence, task.head);
  (void)q.load(p, task.sequence, task.head, rules, task.row_begin, task.row_end, task.corrections);
  prepare(q);
  const KeyRange seen = rules.scores.window().rows(task.row_begin, task.row_end);
  for (std::int64_t key = seen.begin / kBlockN * kBlockN; key < seen.end; key += kBlockN) {
    const std::int64_t num_keys = std::min<std::int64_t>(kBlockN, task.sequence.seqlen_k - key);
    if (!rules.scores.may_see(task.row_begin, task.row_end, key, key + num_keys)) continue;
    k.load(p, task.sequence, task.head / p.heads_per_group(), key, num_keys);
    tile.compute(p, rules, q, k);
    visit(tile, q, k);
  }
}

}  // namespace attend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
