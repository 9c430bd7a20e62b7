// Partial results of a tile over some of its keys, and the function that merges them.
//
//   m = max(m_a, m_b),  l = e^(m_a - m) l_a + e^(m_b - m) l_b,  o = e^(m_a - m) o_a + e^(m_b - m) o_b
//
// Source: Milakov & Gimelshein, Online normalizer calculation for softmax (2018), section 3.1.
//
// Included once per SIMD target.
#if defined(ATTEND_CPU_STATE_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTEND_CPU_STATE_INL
#undef ATTEND_CPU_STATE_INL
#else
#define ATTEND_CPU_STATE_INL
#endif

#include <algorithm>
#include <utility>

#include "cpu/score-inl.hpp"
#include "cpu/serving/decode_tiles.hpp"

HWY_BEFORE_NAMESPACE();
namespace attend::cpu::HWY_NAMESPACE {

/// Unnormalised result of a tile over some keys. If a row has seen no key with a score above -inf, the row's sum is 0.
/// The row's o is then 0, or NaN if a visible key has a value that is not finite.
struct State {
  float* o;        // kTileRows rows of state_columns() floats
  float* row_max;  // row maximum of the scores
  float* row_sum;

  [[nodiscard]] static State at(float* memory, std::int64_t head_dim_v) {
    float* row_max = memory + kTileRows * state_columns(head_dim_v);
    return {memory, row_max, row_max + kTileRows};
  }
};

/// Merges `left` into `right`. The function is not inlined, so that all instances of TilePass share one copy of its
/// code.
HWY_NOINLINE inline void merge_into(const State& left, const State& right, int rows, std::int64_t columns,
                                    float log2_per_score) {
  const Vector unit = hn::Set(kFloats, log2_per_score);
  for (int r = 0; r < rows; ++r) {
    const float* from = left.o + r * columns;
    float* to = right.o + r * columns;
    // One of the two o is 0, or has a NaN that must reach the result.
    if (left.row_sum[r] == 0 || right.row_sum[r] == 0) {
      for (std::int64_t c = 0; c < columns; c += kLanes) {
        hn::StoreU(hn::Add(hn::LoadU(kFloats, from + c), hn::LoadU(kFloats, to + c)), kFloats, to + c);
      }
      if (left.row_sum[r] == 0) continue;
      right.row_max[r] = left.row_max[r];
      right.row_sum[r] = left.row_sum[r];
      continue;
    }
    const float top = std::max(left.row_max[r], right.row_max[r]);
    const Vector weight = exp_above(hn::Set(kFloats, left.row_max[r]), hn::Set(kFloats, top), unit);
    const Vector own = exp_above(hn::Set(kFloats, right.row_max[r]), hn::Set(kFloats, top), unit);
    for (std::int64_t c = 0; c < columns; c += kLanes) {
      const Vector mine = hn::Mul(own, hn::LoadU(kFloats, to + c));
      hn::StoreU(hn::MulAdd(weight, hn::LoadU(kFloats, from + c), mine), kFloats, to + c);
    }
    right.row_sum[r] = hn::GetLane(weight) * left.row_sum[r] + hn::GetLane(own) * right.row_sum[r];
    right.row_max[r] = top;
  }
}

/// Merges states along a binary tree. The states must arrive in ascending order of their numbers. The class works like
/// a binary counter. A digit of 1 means that a tree node of that level waits for its right neighbour. The functions are
/// not inlined, so that all instances of TilePass share one copy of their code.
class Fold {
 public:
  /// Makes a Fold for states with numbers less than 2^levels.
  HWY_NOINLINE Fold(const core::DecodeProblem& p, int rows, int levels, float log2_per_score, Scratch& scratch)
      : rows_(rows), columns_(state_columns(p.head_dim_v)), log2_per_score_(log2_per_score) {
    for (State& state : current_) state = State::at(scratch.take(state_floats(p.head_dim_v)), p.head_dim_v);
    for (int level = 0; level <= levels; ++level) {
      nodes_[level] = State::at(scratch.take(state_floats(p.head_dim_v)), p.head_dim_v);
    }
  }

  [[nodiscard]] static std::int64_t floats(const core::DecodeProblem& p, int levels) {
    return (levels + 1 + kLeavesAtOnce) * Scratch::size_of(state_floats(p.head_dim_v));
  }

  /// Returns memory for the next kLeavesAtOnce states.
  [[nodiscard]] const State* current() const { return current_; }

  /// Adds current()[n] as the state with number `number`.
  HWY_NOINLINE void push(std::int64_t number, int n = 0) {
    int level = 0;
    for (; (number >> level & 1) != 0; ++level) take_in(level, current_[n]);
    std::swap(nodes_[level], current_[n]);
    waits_[level] = true;
  }

  /// Merges all waiting nodes, starting with the highest numbers. If `current_is_last` is true, the merge starts with
  /// current()[0], a state that has not been added as a node.
  [[nodiscard]] HWY_NOINLINE const State& total(bool current_is_last) {
    State& result = current_[0];
    int level = 0;
    if (!current_is_last) {
      while (level < kMostLevels && !waits_[level]) ++level;
      if (level == kMostLevels) {  // there was no state
        std::fill_n(result.row_sum, kTileRows, 0.0F);
        return result;
      }
      std::swap(nodes_[level], result);
      waits_[level] = false;
    }
    for (; level < kMostLevels; ++level) take_in(level, result);
    return result;
  }

 private:
  /// If a node waits at `level`, merges it into its right neighbour.
  void take_in(int level, const State& right) {
    if (!waits_[level]) return;
    merge_into(nodes_[level], right, rows_, columns_, log2_per_score_);
    waits_[level] = false;
  }

  int rows_;
  std::int64_t columns_;
  float log2_per_score_;
  State current_[kLeavesAtOnce] = {};
  State nodes_[kMostLevels + 1] = {};
  bool waits_[kMostLevels + 1] = {};
};

}  // namespace attend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
