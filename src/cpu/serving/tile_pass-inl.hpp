// A tile of query rows over one leaf of cached keys: scores, exponentials, and the sum of the values.
// Included once per SIMD target.
#if defined(ATTEND_CPU_TILE_PASS_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTEND_CPU_TILE_PASS_INL
#undef ATTEND_CPU_TILE_PASS_INL
#else
#define ATTEND_CPU_TILE_PASS_INL
#endif

#include <algorithm>

#include "core/elements.hpp"
#include "cpu/serving/cached_rows-inl.hpp"
#include "cpu/serving/state-inl.hpp"
#include "kernels/attention/score_transform.cuh"

HWY_BEFORE_NAMESPACE();
namespace attend::cpu::HWY_NAMESPACE {

using core::DecodeProblem;

/// How products become scores.
struct ScoreUnit {
  ScaleParts scale;
  bool products_are_scores;

  explicit ScoreUnit(const DecodeProblem& p)
      : scale(ScaleParts::of_floats(p.scale)), products_are_scores(!p.transforms_scores() && !p.alibi_slopes) {}

  /// What a finished score is multiplied by to be a natural one.
  [[nodiscard]] float nats_per_score() const { return products_are_scores ? scale.nats_per_product : 1.0F; }
  [[nodiscard]] float log2_per_score() const { return static_cast<float>(nats_per_score() * kLog2E); }
};

/// Where the keys of a leaf lie.
template <class T>
struct LeafKeys {
  std::int64_t begin = 0;  // of a vector of scores: which lane a key has follows from its position
  std::int64_t count = 0;
  bool some_missing = false;
  const T* k[kLeaf + kKeysAtOnce];
  const T* v[kLeaf];

  /// missing: a row of zeros, which stands for keys that do not exist.
  void find(const DecodeProblem& p, const DecodeTile& tile, const KeyRange& range, const T* missing) {
    begin = range.begin / kLanes * kLanes;
    count = range.end - begin;
    some_missing = false;
    std::fill(k, k + (range.begin - begin), missing);  // no row sees these
    std::fill(v, v + (range.begin - begin), missing);
    for (std::int64_t key = range.begin; key < range.end;) {
      const core::CacheRun run = p.run(tile.sequence, key);
      const std::int64_t end = std::min(range.end, key + run.count);
      some_missing |= run.block < 0;
      if (run.block < 0) {
        std::fill(k + (key - begin), k + (end - begin), missing);
        std::fill(v + (key - begin), v + (end - begin), missing);
        key = end;
        continue;
      }
      const auto* from_k = static_cast<const T*>(core::element(p.k, run.block, tile.key_head, run.row));
      const auto* from_v = static_cast<const T*>(core::element(p.v, run.block, tile.key_head, run.row));
      for (; key < end; ++key, from_k += p.k.stride[2], from_v += p.v.stride[2]) {
        k[key - begin] = from_k;
        v[key - begin] = from_v;
      }
    }
    std::fill(k + count, k + kLeaf + kKeysAtOnce, missing);
  }
};

constexpr int kValuesAtOnce = 64;  // rows of a cache that are read more than once stay close that long

/// A tile on its way over leaves.
template <class T>
class TilePass {
 public:
  TilePass(const DecodeProblem& p, const DecodeTile& tile, Scratch& scratch)
      : p_(p), tile_(tile), unit_(p), q_stride_(round_up(p.head_dim, kChunk)) {
    q_ = scratch.take(kTileRows * q_stride_);
    scores_ = scratch.take(kTileRows * kLeaf);
    missing_ = reinterpret_cast<T*>(scratch.take(missing_floats(p)));
    std::fill_n(missing_, std::max(p.head_dim, p.head_dim_v), T{});
    pack_queries();
  }

  [[nodiscard]] static std::int64_t floats(const DecodeProblem& p) {
    return Scratch::size_of(kTileRows * round_up(p.head_dim, kChunk)) + Scratch::size_of(kTileRows * kLeaf) +
           Scratch::size_of(missing_floats(p));
  }

  /// The result over the keys of leaf number `leaf`, into `state`.
  void visit(std::int64_t leaf, const State& state) {
    const KeyRange of_tile = tile_.keys(p_);
    keys_.find(p_, tile_, {std::max(of_tile.begin, leaf * kLeaf), std::min(of_tile.end, (leaf + 1) * kLeaf)}, missing_);
    for (std::int64_t j = 0; j < keys_.count; j += kKeysAtOnce) {
      for_row_blocks(tile_.rows, [&](int r, auto rows) HWY_ATTR {
        score_keys<T, rows.value>(keys_.k + j, p_.head_dim, q_ + r * q_stride_, q_stride_, scores_ + r * kLeaf + j);
      });
    }
    for (int r = 0; r < tile_.rows; ++r) softmax(r, state);
    const std::int64_t columns = state_columns(p_.head_dim_v);
    std::fill_n(state.o, tile_.rows * columns, 0.0F);
    for (std::int64_t j = 0; j < keys_.count; j += kValuesAtOnce) {
      const std::int64_t count = std::min<std::int64_t>(kValuesAtOnce, keys_.count - j);
      for_row_blocks(tile_.rows, [&](int r, auto rows) HWY_ATTR {
        add_values<T, rows.value>(keys_.v + j, count, p_.head_dim_v, scores_ + r * kLeaf + j, state.o + r * columns,
                                  columns);
      });
    }
    for (int r = 0; r < tile_.rows; ++r) {
      if (!is_finite(state.o + r * columns)) sum_seen_values(r, state.o + r * columns);
    }
  }

 private:
  [[nodiscard]] static std::int64_t missing_floats(const DecodeProblem& p) {
    return round_up(std::max(p.head_dim, p.head_dim_v), kChunk);
  }

  void pack_queries() {
    const Vector factor = hn::Set(kFloats, unit_.scale.product_factor);
    for (int r = 0; r < tile_.rows; ++r) {
      const core::Matrix rows = core::q_matrix(p_.q, tile_.sequence, tile_.head(p_, r));
      const T* from = static_cast<const T*>(rows.data) + tile_.row(p_, r) * rows.row_stride;
      for (std::int64_t c = 0; c < p_.head_dim; c += kChunk) {
        const Columns q = p_.head_dim - c >= kChunk ? load_columns(from + c) : load_columns(from + c, p_.head_dim - c);
        hn::StoreU(hn::Mul(q.a, factor), kFloats, q_ + r * q_stride_ + c);
        hn::StoreU(hn::Mul(q.b, factor), kFloats, q_ + r * q_stride_ + c + kLanes);
      }
    }
  }

  /// Whether the row sees key j of the leaf.
  [[nodiscard]] bool sees(int r, std::int64_t j) const {
    const std::int64_t i = tile_.row(p_, r);
    const std::int64_t key = keys_.begin + j;
    return p_.keys_of_row(tile_.sequence, i).contains(key) && keys_.k[j] != missing_ &&
           !p_.tree_hides(tile_.sequence, i, key);
  }

  /// Products to scores; those of keys that the row does not see to -inf. The last ones, up to whole vectors, are -inf.
  void finish_scores(int r) {
    float* s = scores_ + r * kLeaf;
    const std::int64_t whole = round_up(keys_.count, kLanes);
    if (!unit_.products_are_scores) transform(r, whole);
    const KeyRange seen = p_.keys_of_row(tile_.sequence, tile_.row(p_, r));
    const std::int64_t from = std::clamp<std::int64_t>(seen.begin - keys_.begin, 0, keys_.count);
    const std::int64_t to = std::clamp<std::int64_t>(seen.end - keys_.begin, from, keys_.count);
    std::fill(s, s + from, -kInfinity);
    std::fill(s + to, s + whole, -kInfinity);
    if (!keys_.some_missing && p_.tree_mask == nullptr) return;
    const std::int64_t tree_begin = tile_.sequence.seqlen_k - tile_.sequence.seqlen_q - keys_.begin;
    for (std::int64_t j = keys_.some_missing ? from : std::max(from, tree_begin); j < to; ++j) {
      if (!sees(r, j)) s[j] = -kInfinity;
    }
  }

  /// Natural scores: the transform, and the term by position.
  void transform(int r, std::int64_t whole) {
    float* s = scores_ + r * kLeaf;
    const core::DecodeSequence& seq = tile_.sequence;
    const Vector nats = hn::Set(kFloats, unit_.scale.nats_per_product);
    const Vector cap = hn::Set(kFloats, static_cast<float>(p_.transform_cap));
    const double slope_of_head = p_.alibi_slopes ? core::load(*p_.alibi_slopes, seq.index, tile_.head(p_, r), 0, 0) : 0;
    const Vector slope = hn::Set(kFloats, static_cast<float>(slope_of_head));
    const std::int64_t first = tile_.row(p_, r) + seq.seqlen_k - seq.seqlen_q - keys_.begin;
    for (std::int64_t j = 0; j < whole; j += kLanes) {
      Vector score = hn::Mul(hn::LoadU(kFloats, s + j), nats);
      if (p_.transforms_scores()) {
        const Vector x = hn::Div(score, cap);
        const auto is_small = hn::Lt(hn::Abs(x), hn::Set(kFloats, kNearlyLinear));
        score = hn::IfThenElse(is_small, score, hn::Mul(cap, hn::Tanh(kFloats, x)));
      }
      if (p_.alibi_slopes) {
        const auto distance = hn::Sub(hn::Set(kInts, static_cast<std::int32_t>(first - j)), hn::Iota(kInts, 0));
        score = hn::NegMulAdd(slope, hn::Abs(hn::ConvertTo(kFloats, distance)), score);
      }
      hn::StoreU(score, kFloats, s + j);
    }
  }

  /// Scores of the row to exponentials, their maximum and their sum.
  void softmax(int r, const State& state) {
    finish_scores(r);
    float* s = scores_ + r * kLeaf;
    Vector top = hn::Set(kFloats, -kInfinity);
    // A NaN score is Max's first operand, which it does not give back; its exponential is NaN all the same.
    for (std::int64_t j = 0; j < keys_.count; j += kLanes) top = hn::Max(hn::LoadU(kFloats, s + j), top);
    const float row_max = hn::GetLane(hn::MaxOfLanes(kFloats, top));
    const Vector base = hn::Set(kFloats, row_max == -kInfinity ? 0.0F : row_max);
    const Vector unit = hn::Set(kFloats, unit_.log2_per_score());
    Vector sum = hn::Zero(kFloats);
    for (std::int64_t j = 0; j < keys_.count; j += kLanes) {
      const Vector p = exp_above(hn::LoadU(kFloats, s + j), base, unit);
      hn::StoreU(p, kFloats, s + j);
      sum = hn::Add(sum, p);
    }
    state.row_max[r] = row_max;
    state.row_sum[r] = hn::GetLane(hn::SumOfLanes(kFloats, sum));
  }

  /// Looks at whole chunks: half of the columns of the last one may lie in its second vector.
  [[nodiscard]] bool is_finite(const float* o) const {
    Vector differences = hn::Zero(kFloats);  // x - x is 0 for finite x, NaN otherwise
    for (std::int64_t c = 0; c < round_up(p_.head_dim_v, kChunk); c += kLanes) {
      const Vector x = hn::LoadU(kFloats, o + c);
      differences = hn::Add(differences, hn::Sub(x, x));
    }
    return hn::AllTrue(kFloats, hn::Eq(differences, differences));
  }

  /// The row's sum of values anew, of the keys that it sees only: 0 * NaN of another key is NaN.
  void sum_seen_values(int r, float* o) const {
    const float* p = scores_ + r * kLeaf;
    std::fill_n(o, round_up(p_.head_dim_v, kChunk), 0.0F);
    for (std::int64_t j = 0; j < keys_.count; ++j) {
      if (!sees(r, j)) continue;
      const Vector weight = hn::Set(kFloats, p[j]);
      for (std::int64_t c = 0; c < p_.head_dim_v; c += kChunk) {
        const std::int64_t count = p_.head_dim_v - c;
        const Columns v = count >= kChunk ? load_columns(keys_.v[j] + c) : load_columns(keys_.v[j] + c, count);
        hn::StoreU(hn::MulAdd(weight, v.a, hn::LoadU(kFloats, o + c)), kFloats, o + c);
        hn::StoreU(hn::MulAdd(weight, v.b, hn::LoadU(kFloats, o + c + kLanes)), kFloats, o + c + kLanes);
      }
    }
  }

  const DecodeProblem& p_;
  const DecodeTile& tile_;
  ScoreUnit unit_;
  std::int64_t q_stride_;
  float* q_;
  float* scores_;
  T* missing_;
  LeafKeys<T> keys_;
};

}  // namespace attend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
