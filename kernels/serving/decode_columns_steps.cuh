// Computes the steps of a piece with two warpgroups, each with half of the columns of o. Used if kColumnParts is 2, for
// tiles whose o does not fit into the registers of one warpgroup. A pair of steps consists of an even unit and the next
// unit. The first warpgroup computes the scores of the even unit (a), and the second those of the odd unit (b). An
// arrow shows that a warpgroup sends or receives the maxima m and the probabilities P:
//
//   first    S_a = Q K_a^T, m_a, P_a ->            o += P_a V_a             <- m_b, P_b, o += P_b V_b
//   second   S_b = Q K_b^T           <- m_a, P_a, (o += P_a V_a) m_b, P_b ->             o += P_b V_b
//
// So one warpgroup keeps the tensor cores busy while the other computes its probabilities. decode_columns_leaf.cuh
// describes the data that they exchange.
#pragma once

#include "decode_columns_leaf.cuh"
#include "decode_team.cuh"

namespace attend {

template <class Config>
class DecodeColumnsSteps : public DecodeTeam<Config> {
 protected:
  using Team = DecodeTeam<Config>;
  using Sizes = DecodeSizes<Config>;
  using State = DecodeState<Config>;
  using Place = typename DecodeRing<Config>::Place;
  using Team::block_;
  using Team::maxima_;
  using Team::place_;
  using Team::q_rows_;
  using Team::role_;
  using Team::rows_;
  using Team::scale_;
  using Team::stack_;

  __device__ __forceinline__ explicit DecodeColumnsSteps(const DecodeContext<Config>& block) : Team(block) {}

  // Computes all steps of the cursor's piece. Has the same contract as DecodeSteps::compute().
  [[nodiscard]] __device__ __forceinline__ State compute(const KeysOfAll& of_all, int first) {
    const int end = block_.cursor.piece.end_step;
    int unit = block_.cursor.piece.first_step;
    if (unit >= end) return State::empty();
#pragma unroll 1
    while (true) {
      const int end_of_leaf = min(leaf_end(unit, Sizes::kLeafShift), end);
      const int level = leaf_level(unit, Sizes::kLeafShift), begin = unit >> level << level;
      leaf_.clear();
#pragma unroll 1
      while (unit < end_of_leaf) {
        if (uniform(role_.part == 0)) {
          first_of_pair(unit, end_of_leaf, of_all);
        } else {
          second_of_pair(unit, end_of_leaf, of_all);
        }
        unit = unit / 2 * 2 + 2;
      }
      unit = end_of_leaf;
      State state = leaf_.finished();
      const int begin_of_all = stack_.complete(state, begin, level, first);
      if (unit == end) return state;
      stack_.push(state, begin_of_all);
    }
  }

  __device__ __forceinline__ void give_back(int slots) {
    const Part own = role_.part == 0 ? kFirst : kSecond;
    for (; slots > 0; --slots) {
      const Step step = take_step(0);
      if (own == kFirst) wait_for_first_part(step);
      block_.ring.full(step.place.stage, 1).wait(step.place.parity);  // waits until the copies have arrived; the slot
                                                                      // may then be released
      release_step(step, own);
    }
  }
  [[nodiscard]] __device__ __forceinline__ bool has_last() const {
    return true;
  }

 private:
  using Leaf = DecodeColumnsLeaf<Config>;
  enum Part { kFirst, kSecond };

  // Broadcasts a condition that is the same in all lanes of a warp. Without the broadcast the compiler cannot prove
  // that, and would insert waits between the products.
  [[nodiscard]] static __device__ __forceinline__ bool uniform(bool condition) {
    return __shfl_sync(kAllLanes, static_cast<int>(condition), 0) != 0;
  }

  // A step of the pair, with its slot and its keys.
  struct Step {
    int unit;
    Place place;
    char* slot;
    uint64 existing;  // one bit for each key of the step
    bool some_see;    // whether some rows see a key that other rows do not see
  };

  // Returns the step in the next slot of the ring. Both warpgroups call it for each step.
  [[nodiscard]] __device__ __forceinline__ Step take_step(int unit) {
    Step step = {unit, place_, block_.ring.slot(place_.stage), 0, false};
    place_.advance();
    return step;
  }
  __device__ __forceinline__ void wait_for_first_part(const Step& step) const {
    block_.ring.full(step.place.stage, 0).wait(step.place.parity);  // waits until the slot holds the columns of its
                                                                    // first part
    if constexpr (!Config::kHasBoxes) fence_smem_for_async();       // orders ordinary copies before wgmma's reads
  }
  // Waits until the columns of the second part are in the slot. Reads the bits of the existing keys.
  __device__ __forceinline__ void wait_for_second_part(Step& step, const KeysOfAll& of_all) const {
    block_.ring.full(step.place.stage, 1).wait(step.place.parity);  // waits until the second part's columns are in the
                                                                    // slot
    if constexpr (!Config::kHasBoxes) fence_smem_for_async();       // orders ordinary copies before wgmma's reads
    const uint2 words = *reinterpret_cast<const uint2*>(block_.ring.existing(step.place.stage));
    step.existing = static_cast<uint64>(words.y) << 32 | words.x;
    step.some_see = (step.existing & ~of_all.of_step(step.unit * kStepKeys)) != 0;
  }
  // Releases the step's slot for one warpgroup. Only the first warpgroup releases the first part of the slot.
  __device__ __forceinline__ void release_step(const Step& step, Part own) const {
    __syncwarp();  // waits until all lanes have read the slot; the warp may then release it
    if (own == kFirst) arrive_as_warp(block_.ring.empty(step.place.stage, 0));
    arrive_as_warp(block_.ring.empty(step.place.stage, 1));
  }

  // Computes the scores of the step that belongs to this warpgroup. Returns a factor by which the caller must still
  // multiply them.
  [[nodiscard]] __device__ __forceinline__ float multiply(typename Leaf::Scores& s, Step& step,
                                                          const KeysOfAll& of_all) {
    wait_for_first_part(step);
    Leaf::template start_scores<0>(s, step.slot, q_rows_);
    wait_for_second_part(step, of_all);
    Leaf::template start_scores<1>(s, step.slot, q_rows_);
    Leaf::finish_scores(s);
    const int first_key = step.unit * kStepKeys;
    const bool has_slopes = block_.args.alibi_slopes != nullptr;
    // With a factor of at most 1 no product becomes infinite. An infinite score would be mistaken for the score of a
    // hidden key
    const bool is_plain = scale_.of_cap == 0.0f && scale_.log2 > 0.0f && scale_.log2 <= 1.0f && !has_slopes;
    if (!is_plain) scale_.template apply<Config>(s);
    if (has_slopes || step.some_see) {
      const bool all_visible = (step.existing & of_all.of_step(first_key)) == ~uint64{0};
      leaf_.mask(s, rows_, has_slopes, all_visible, step.existing, first_key, role_.again());
    } else if (step.existing != ~uint64{0}) {
      leaf_.mask_missing(s, step.existing, role_.again().lane);
    }
    team_barrier(role_);  // waits until the warpgroup has read the keys; P may then overwrite some of them
    return is_plain ? scale_.log2 : 1.0f;
  }

  // Returns the row maxima that warpgroup `part` has found, in shared memory. The other warpgroup reads them.
  [[nodiscard]] __device__ __forceinline__ float* maxima_of(Part part) const {
    static_assert(2 * Config::kRows <= decode_team_stats(Sizes::kTile));
    return maxima_ + part * Config::kRows;
  }
  __device__ __forceinline__ void tell(Part part, const float (&top)[2]) const {
    if (role_.lane % 4 != 0) return;
    maxima_of(part)[Leaf::row_of(role_, 0)] = top[0];
    maxima_of(part)[Leaf::row_of(role_, 1)] = top[1];
  }
  __device__ __forceinline__ void hear(Part part, float (&top)[2]) const {
    top[0] = maxima_of(part)[Leaf::row_of(role_, 0)];
    top[1] = maxima_of(part)[Leaf::row_of(role_, 1)];
  }
  // Sends the step's P and row maxima to the other warpgroup.
  __device__ __forceinline__ void send(Part part, const typename Leaf::Probabilities& p, const float (&top)[2],
                                       const Step& step) const {
    Leaf::store(p, Leaf::p_of(step.slot), role_);
    tell(part, top);
    __syncwarp();  // waits until all lanes have written, because one arrival stands for the warp
    barrier_arrive<Sizes::kComputeThreads>(kTurnBarrier + part);
  }
  __device__ __forceinline__ void receive(Part part) const {
    barrier_wait<Sizes::kComputeThreads>(kTurnBarrier + part);  // waits until the other warpgroup has sent its P and
                                                                // row maxima, which may then be read
  }

  // Computes P of this warpgroup's step, relative to the new row maxima.
  __device__ __forceinline__ void find_probabilities(typename Leaf::Scores& s, float factor,
                                                     typename Leaf::Probabilities& p, float (&top)[2],
                                                     float (&sums)[2]) const {
    leaf_.find_maxima(s, factor, top);
    Leaf::weigh(s, factor, top, sums);
    Leaf::pack(s, p);
  }
  // Prepares the values of a step for the product. If some row does not see a key, all values of this key are finite
  // afterwards.
  __device__ __forceinline__ void clean(const Step& step) {
    char* values = Leaf::values_of(step.slot, role_.part);
    if (step.existing != ~uint64{0}) leaf_.clear_missing(values, step.existing, role_.again());
    if (!step.some_see) return;
    const char* p_rows = Leaf::p_of(step.slot);
    const auto weight = [&](int row, int key) { return Leaf::stored(p_rows, Leaf::row_of(role_, row), key); };
    uint32* words = reinterpret_cast<uint32*>(maxima_ + 2 * Config::kRows) + (role_.part * 2 + turn_) * kTeamWarps;
    turn_ ^= 1;  // alternates between two buffers, because a warp may be one step ahead of another
    leaf_.add_nonfinite(weight, rows_, values, step.existing, step.unit * kStepKeys, words, role_.again());
  }

  // Computes o += P V for the step whose P this warpgroup computed.
  __device__ __forceinline__ void multiply_own(const typename Leaf::Probabilities& p, const float (&top)[2],
                                               const float (&sums)[2], const Step& step, Part part) {
    leaf_.take_maxima(top);
    leaf_.add_sums(sums);
    clean(step);
    leaf_.start_products(p, Leaf::values_of(step.slot, part));
    leaf_.finish_products();
    release_step(step, part);
  }

  __device__ __forceinline__ void first_of_pair(int unit, int end, const KeysOfAll& of_all) {
    float top[2];
    if (uniform(unit % 2 == 0)) {
      Step own = take_step(unit);
      typename Leaf::Scores s;
      typename Leaf::Probabilities p;
      float sums[2];
      const float factor = multiply(s, own, of_all);
      find_probabilities(s, factor, p, top, sums);
      send(kFirst, p, top, own);
      multiply_own(p, top, sums, own, kFirst);
      ++unit;
    }
    if (uniform(unit >= end)) return;
    Step other = take_step(unit);
    receive(kSecond);
    wait_for_first_part(other);
    wait_for_second_part(other, of_all);
    hear(kSecond, top);
    leaf_.take_maxima(top);
    clean(other);
    leaf_.start_products(Leaf::p_of(other.slot), Leaf::values_of(other.slot, kFirst));
    leaf_.finish_products();
    release_step(other, kFirst);
  }

  __device__ __forceinline__ void second_of_pair(int unit, int end, const KeysOfAll& of_all) {
    const bool has_first = uniform(unit % 2 == 0), has_second = uniform(unit / 2 * 2 + 1 < end);
    Step other = {}, own = {};
    typename Leaf::Scores s;
    typename Leaf::Probabilities p;
    float factor = 1.0f, top[2], sums[2];
    if (has_first) other = take_step(unit);
    if (has_second) {
      own = take_step(unit / 2 * 2 + 1);
      factor = multiply(s, own, of_all);
    } else {
      leaf_.mask_missing(s, 0, 0);
    }
    if (has_first) {
      receive(kFirst);
      wait_for_second_part(other, of_all);
      hear(kFirst, top);
      leaf_.take_maxima(top);
      clean(other);
      leaf_.start_products(Leaf::p_of(other.slot), Leaf::values_of(other.slot, kSecond));
      find_probabilities(s, factor, p, top, sums);
      if (has_second) send(kSecond, p, top, own);
      leaf_.finish_products();
      release_step(other, kSecond);
    } else {
      find_probabilities(s, factor, p, top, sums);
      send(kSecond, p, top, own);
    }
    if (!has_second) return;
    multiply_own(p, top, sums, own, kSecond);
  }

  Leaf leaf_;
  int turn_ = 0;
};

}  // namespace attend
