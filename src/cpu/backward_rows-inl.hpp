// Query rows and keys of the backward pass, stored in every format that its products (backward-inl.hpp) read. Included
// once per SIMD target.
#if defined(ATTEND_CPU_BACKWARD_ROWS_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTEND_CPU_BACKWARD_ROWS_INL
#undef ATTEND_CPU_BACKWARD_ROWS_INL
#else
#define ATTEND_CPU_BACKWARD_ROWS_INL
#endif

#include "cpu/bf16_tile-inl.hpp"
#include "cpu/kernels.hpp"
#include "cpu/long_sum-inl.hpp"
#include "cpu/score_product-inl.hpp"
#include "cpu/scratch.hpp"

HWY_BEFORE_NAMESPACE();
namespace attend::cpu::HWY_NAMESPACE {

/// Functions that compute the scores of one query head and their gradients.
struct HeadRules {
  ScoreRules scores;
  ScoreProduct s_product;   // S^T = K Q^T, times ScoreRules::product_factor()
  ScoreProduct dp_product;  // dP^T = V dO^T
  // If true, the other three products read rows in bf16 pairs, and P and dS are rounded to bf16.
  bool in_pairs;

  HeadRules(const core::Problem& p, const core::Sequence& s, std::int64_t head)
      : scores(p, s, head),
        s_product(p, s, p.k, p.q, head, scores.product_factor()),
        dp_product(p, s, p.v, p.dout, head, 1.0F),
        in_pairs(works_in_pairs(p)) {}

  static bool works_in_pairs(const core::Problem& p) {
    return multiplies_in_bf16({p.q.dtype, p.k.dtype, p.v.dtype, p.dout.dtype, p.dq.dtype, p.dk.dtype, p.dv.dtype});
  }
};

/// Up to 128 query rows of one head, in every format that the products read.
struct QueryTile {
  std::int64_t row_begin = 0;
  std::int64_t num_rows = 0;
  float* q_packed;     // two panels of (head_dim, 64), read by s_product
  float* dout_packed;  // two panels of (head_dim_v, 64), read by dp_product
  FloatRows q;         // (128, head_dim); unset if in_pairs is true
  FloatRows dout;      // (128, head_dim_v); unset if in_pairs is true
  // The same rows, as bf16 pairs of neighbouring rows; q_pairs and dout_pairs are set only if in_pairs is true.
  PairRows q_pairs;
  PairRows dout_pairs;
  float* q_buffer;     // memory for q, used if q must be converted to float
  float* dout_buffer;  // memory for dout, used if dout must be converted to float
  float* lse;          // (128); +inf for a row that sees no key, so that its P is 0
  float* log2_sum;     // (128): log2 of the row's sum of exp(s - lse); it is 0 if lse is exact
  float* delta;        // (128): <dout, o> - dlse
  mutable PrefetchRows next_q, next_dout, next_o;  // prefetches the next 128 rows

  static std::int64_t floats(const core::Problem& p) {
    const std::int64_t rows = kBackwardBlockM;
    return Scratch::size_of(rows * p.head_dim) + Scratch::size_of(rows * p.head_dim_v) + buffer_size(p, p.head_dim) +
           buffer_size(p, p.head_dim_v) + 3 * rows;
  }

  static QueryTile make(const core::Problem& p, Scratch& scratch) {
    const std::int64_t rows = kBackwardBlockM;
    QueryTile tile;
    tile.q_packed = scratch.take(rows * p.head_dim);
    tile.dout_packed = scratch.take(rows * p.head_dim_v);
    tile.q_buffer = scratch.take(buffer_size(p, p.head_dim));
    tile.dout_buffer = scratch.take(buffer_size(p, p.head_dim_v));
    tile.lse = scratch.take(rows);
    tile.log2_sum = scratch.take(rows);
    tile.delta = scratch.take(rows);
    return tile;
  }

  [[nodiscard]] std::int64_t num_panels() const { return ceil_div(num_rows, kPanel); }

  /// Loads rows [begin, end) of a head. Returns false if lse contains NaN or +inf.
  bool load(const core::Problem& p, const core::Sequence& s, std::int64_t head, const HeadRules& rules,
            std::int64_t begin, std::int64_t end, const RowCorrections& corrections) {
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
    // Number of steps; about the number of register blocks in one tile's product.
    constexpr int kSteps = kBackwardBlockM / kPanel * 20;
    next_q = prefetch_in_steps(q_rows, end, kBackwardBlockM, kSteps);
    next_dout = prefetch_in_steps(dout_rows, end, kBackwardBlockM, kSteps);
    next_o = prefetch_in_steps(core::q_matrix(p.o, s, head), end, kBackwardBlockM, kSteps);
    for (std::int64_t panel = 0; panel < num_panels(); ++panel) {
      const std::int64_t row = panel * kPanel;
      const std::int64_t rows = std::min<std::int64_t>(kPanel, num_rows - row);
      rules.s_product.pack(begin + row, rows, q_packed + row * p.head_dim);
      rules.dp_product.pack(begin + row, rows, dout_packed + row * p.head_dim_v);
    }
    return load_row_scalars(p, s, head, corrections);
  }

 private:
  static std::int64_t buffer_size(const core::Problem& p, std::int64_t cols) {
    return HeadRules::works_in_pairs(p) ? pair_words(kBackwardBlockM, cols) : kBackwardBlockM * padded(cols);
  }

  bool load_row_scalars(const core::Problem& p, const core::Sequence& s, std::int64_t head,
                        const RowCorrections& corrections) {
    const float* deltas = corrections.deltas;
    const Tensor* given = p.delta();
    const Matrix o = core::q_matrix(p.o, s, head);
    const Matrix lse_rows = core::q_matrix(*p.lse, s, head);
    bool lse_ok = true;
    std::fill_n(lse, kBackwardBlockM, kInfinity);
    std::fill_n(delta, kBackwardBlockM, 0.0F);
    std::fill_n(log2_sum, kBackwardBlockM, 0.0F);
    for (std::int64_t r = 0; r < num_rows; ++r) {
      const double row_lse = core::load(lse_rows, row_begin + r, 0);
      if (row_lse != -kInfinity) lse[r] = static_cast<float>(row_lse);
      lse_ok &= row_lse < kInfinity;
      if (corrections.log2_sums != nullptr) {
        log2_sum[r] = corrections.log2_sums[delta_index(p, s, head, row_begin + r)];
      }
      if (deltas != nullptr || given != nullptr) {
        delta[r] = deltas != nullptr
                       ? deltas[delta_index(p, s, head, row_begin + r)]
                       : static_cast<float>(core::load(core::q_matrix(*given, s, head), row_begin + r, 0));
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

/// Up to 128 keys of one head, and their values.
struct KeyTile {
  std::int64_t key_begin = 0;
  std::int64_t num_keys = 0;
  FloatRows k;             // (128, head_dim); set if a product reads float keys
  FloatRows v;             // (128, head_dim_v); set if a product reads float values
  PairRows k_pairs;        // (128, head_dim); set if HeadRules::in_pairs
  float* k_buffer;         // (128, padded head_dim): memory for k, used if k must be converted to float
  float* v_buffer;         // (128, padded head_dim_v): memory for v, used if v must be converted to float
  std::uint32_t* k_words;  // memory for k_pairs
  // (num_keys, padded head_dim): sum of dS q over all query rows, not yet multiplied by the scale. Set only by
  // KeyTile::with_gradients.
  LongSum dk;
  // (num_keys, padded head_dim_v): sum of P dO over all query rows. Set only by KeyTile::with_gradients.
  LongSum dv;

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

  /// Makes a tile for at most num_keys keys. At most row_tiles tiles of query rows may be added to its dk and dv.
  static KeyTile with_gradients(const core::Problem& p, std::int64_t num_keys, std::int64_t row_tiles,
                                Scratch& scratch) {
    KeyTile tile = make(p, scratch);
    tile.dk = LongSum(num_keys * padded(p.head_dim), row_tiles, scratch);
    tile.dv = LongSum(num_keys * padded(p.head_dim_v), row_tiles, scratch);
    tile.dk.clear();
    tile.dv.clear();
    return tile;
  }

  /// Loads rows [begin, begin + count) of a key head.
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
    return !HeadRules::works_in_pairs(p) || !reads_pairs_directly(p.k, p.q);
  }
  static bool needs_float_v(const core::Problem& p) { return !reads_pairs_directly(p.v, p.dout); }

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

}  // namespace attend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
