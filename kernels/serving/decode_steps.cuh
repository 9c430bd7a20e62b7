// The steps of a piece, computed by teams of four warps with mma.sync (decode_leaf.cuh).
#pragma once

#include "decode_leaf.cuh"
#include "decode_team.cuh"

namespace attend {

template <class Config>
class DecodeSteps : public DecodeTeam<Config> {
 protected:
  using Team = DecodeTeam<Config>;
  using Sizes = DecodeSizes<Config>;
  using State = DecodeState<Config>;
  using Place = typename DecodeRing<Config>::Place;
  using Team::block_;
  using Team::exponents_;
  using Team::maxima_;
  using Team::p_rows_;
  using Team::place_;
  using Team::q_rows_;
  using Team::release;
  using Team::role_;
  using Team::rows_;
  using Team::scale_;
  using Team::stack_;

  __device__ __forceinline__ explicit DecodeSteps(const DecodeContext<Config>& block) : Team(block) {}

  // Computes all steps of the cursor's piece. The query rows must have been loaded. Returns the last node, and leaves
  // all other nodes on the stack. Nodes that begin before unit `first` belong to another block.
  [[nodiscard]] __device__ __forceinline__ State compute(const KeysOfAll& of_all, int first) {
    take_queries();
    const DecodePiece& piece = block_.cursor.piece;
    const int end = piece.end_step;
    int unit = piece.first_step;
    if (unit >= end) return State::empty();
    if constexpr (Sizes::kAhead) take_keys();
#pragma unroll 1
    while (true) {
      const int end_of_leaf = min(leaf_end(unit, Sizes::kLeafShift), end);
      const int level = leaf_level(unit, Sizes::kLeafShift), begin = unit >> level << level;
      leaf_.clear();
#pragma unroll 1
      for (; unit < end_of_leaf; ++unit) {
        step(unit, of_all, unit + 1 < end);
      }
      State state = leaf_.finished(of_values_);
      const int begin_of_all = stack_.complete(state, begin, level, first);
      if (unit == end) return state;
      stack_.push(state, begin_of_all);
    }
  }

  // Releases the slots of a step that was loaded according to an incorrect schedule.
  __device__ __forceinline__ void give_back(int slots) {
    for (; slots > 0; --slots) {
      block_.ring.full(place_.stage).wait(place_.parity);  // waits until the copies have arrived; the slot may then be
                                                           // released
      release(place_.stage);
      place_.advance();
    }
  }

  // Returns whether this thread holds the stack and the last node of the piece.
  [[nodiscard]] __device__ __forceinline__ bool has_last() const {
    return true;
  }

 private:
  // Whether the slot of the keys contains neither values nor factors. If so, it can be released after the product with
  // the keys.
  static constexpr bool kLeavesKeys = Sizes::kLoadsValues && !Sizes::kRowFactors;

  __device__ __forceinline__ void take_queries() {
    if constexpr (Sizes::kHasFactors && !Sizes::kRowFactors) {
      const int sequence = block_.cursor.item.span.index, head = block_.cursor.piece.head;
      of_keys_ = factor(block_.args.cache.k_descale, sequence, head, {});
      of_values_ = factor(block_.args.cache.v_descale, sequence, head, {});
    }
    if constexpr (kConvertsQueries<Config>) {
      convert_queries(q_rows_, rows_ + role_.first_row(), role_);
      team_barrier(role_);  // waits until the queries are converted to f16; they may then be read
    }
    products_.take_queries(q_rows_, role_.lane);
  }

  // Multiplies q by the keys in slot `keys`, for the next step.
  __device__ __forceinline__ void multiply(int keys) {
    const char* slot = block_.ring.slot(keys);
    products_.scores(next_.s, slot + role_.warp * kWarpKeys * Sizes::KRows::kPitch, q_rows_, role_.lane);
    const uint2 words = *reinterpret_cast<const uint2*>(block_.ring.existing(keys));
    next_.existing = static_cast<uint64>(words.y) << 32 | words.x;
    next_.keys = keys;
  }
  // Waits for the next step's keys and multiplies q by them. No other work overlaps the product.
  __device__ __forceinline__ void take_keys() {
    const int keys = place_.stage;
    block_.ring.full(keys).wait(place_.parity);  // waits until the keys are in their slot, which may then be read
    multiply(keys);
    if constexpr (kLeavesKeys) release(keys);
    place_.advance();
  }

  // Computes one step. If kAhead is set, the products with the next step's keys overlap the other work of this step. If
  // there is no next step (has_next is false), the slot of the values is multiplied instead, and the result is ignored.
  __device__ __forceinline__ void step(int unit, const KeysOfAll& of_all, bool has_next) {
    const int first_key = unit * kStepKeys, own_key = first_key + role_.warp * kWarpKeys;
    const DecodeRow* of_team = rows_ + role_.first_row();
    if constexpr (!Sizes::kAhead) take_keys();
    const int keys = next_.keys;
    const uint64 existing = next_.existing;
    const Place values = Sizes::kLoadsValues ? place_ : Place{keys, 0};
    if constexpr (Sizes::kLoadsValues) place_.advance();
    const uint64 seen_by_all = of_all.of_step(first_key);
    const bool all_visible = (existing & seen_by_all) == ~uint64{0};
    const float2* factors = block_.ring.factors(keys) + role_.warp * kWarpKeys;
    float s[Sizes::kEights][4];
#pragma unroll
    for (int i = 0; i < Sizes::kEights * 4; ++i) s[i / 4][i % 4] = next_.s[i / 4][i % 4];
    if constexpr (Sizes::kRowFactors) {
      leaf_.multiply_keys(s, factors[role_.lane / 4].x, factors[role_.lane / 4 + 8].x, of_team, role_.lane);
    } else if constexpr (Sizes::kHasFactors) {
      leaf_.multiply_keys(s, of_keys_, of_keys_, of_team, role_.lane);
    }
    scale_.template apply<Config>(s);
    const bool has_slopes = block_.args.alibi_slopes != nullptr;
    if (!has_slopes && (existing & ~seen_by_all) == 0) {
      if (existing != ~uint64{0})
        leaf_.mask_missing(s, static_cast<uint32>(existing >> role_.warp * kWarpKeys), role_.lane);
    } else {
      leaf_.mask(s, of_team, has_slopes, all_visible, static_cast<uint32>(existing >> role_.warp * kWarpKeys), own_key,
                 role_.lane);
    }
    leaf_.share_maxima(s, maxima_, role_);
    if constexpr (Sizes::kRowFactors) leaf_.share_exponents(s, factors, all_visible, exponents_, role_);
    const Place ahead = has_next ? place_ : values;
    if constexpr (Sizes::kAhead) {  // waits until the slot that multiply() reads below is full
      if (has_next || Sizes::kLoadsValues) block_.ring.full(ahead.stage).wait(ahead.parity);
    }
    team_barrier(role_);  // waits until the maxima are written and P of the previous step has been read; P may then be
                          // overwritten
    leaf_.take_maxima(s, maxima_, role_);
    if constexpr (Sizes::kRowFactors) {
      leaf_.weigh(s, factors, exponents_, of_team, all_visible, own_key, role_.lane);
      if constexpr (Sizes::kLoadsValues) release(keys);
    } else if constexpr (Sizes::kHasFactors) {
      leaf_.raise(s);
    }
    if constexpr (Sizes::kAhead) multiply(ahead.stage);
    DecodeP<Config>::store(s, p_rows_, role_);
    team_barrier(role_);  // waits until P is written and the maxima have been read; P may then be read, and the maxima
                          // overwritten
    if (Sizes::kAhead && has_next) {
      if constexpr (kLeavesKeys) release(ahead.stage);
      place_.advance();
    }
    if constexpr (Sizes::kLoadsValues)
      block_.ring.full(values.stage).wait(values.parity);  // waits until the values are in their slot, which may then
                                                           // be read
    char* of_values = block_.ring.slot(values.stage);
    if (Config::kHasBoxes && existing != ~uint64{0}) {
      leaf_.clear_missing(of_values, existing, role_.again());
    }
    if ((existing & ~seen_by_all) != 0) {
      leaf_.add_nonfinite(p_rows_, of_team, of_values, existing, first_key, role_.again());
    }
    products_.add_values(leaf_.o, p_rows_, of_values, role_);
    release(values.stage);
  }

  DecodeProducts<Config> products_;
  DecodeLeaf<Config> leaf_;
  float of_keys_ = 1.0f, of_values_ = 1.0f;  // descale factors of all keys and all values of the piece. Used without
                                             // kRowFactors
  struct {
    float s[Sizes::kEights][4];
    uint64 existing;
    int keys;  // number of the slot of the keys
  } next_;     // products of q with the keys of the step that has not begun
};

}  // namespace attend
