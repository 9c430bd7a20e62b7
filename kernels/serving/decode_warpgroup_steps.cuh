// Computes the steps of a piece with two warpgroups and wgmma (decode_warpgroup_leaf.cuh). Used if kByWarpgroup is set.
//
// Each warpgroup computes every second leaf of the piece. While one warpgroup multiplies, the other computes the
// softmax of its step. The two warpgroups share one stack, and access it alternately, after each leaf.
#pragma once

#include "decode_order.cuh"
#include "decode_team.cuh"
#include "decode_warpgroup_leaf.cuh"

namespace attend {

template <class Config>
class DecodeWarpgroupSteps : public DecodeTeam<Config> {
 protected:
  using Team = DecodeTeam<Config>;
  using Sizes = DecodeSizes<Config>;
  using State = DecodeState<Config>;
  using Place = typename DecodeRing<Config>::Place;
  using Team::block_;
  using Team::maxima_;
  using Team::place_;
  using Team::q_rows_;
  using Team::release;
  using Team::role_;
  using Team::rows_;
  using Team::scale_;
  using Team::stack_;

  __device__ __forceinline__ explicit DecodeWarpgroupSteps(const DecodeContext<Config>& block) : Team(block) {}

  // Computes the steps like DecodeSteps::compute(). Only one of the two warpgroups then has the last node; see
  // has_last().
  [[nodiscard]] __device__ __forceinline__ State compute(const KeysOfAll& of_all, int first) {
    const bool is_second = role_.part != 0;
    const int end = block_.cursor.piece.end_step;
    int unit = block_.cursor.piece.first_step;
    begin_stack();
    bool has_turn = !is_second;
#pragma unroll 1
    while (unit < end) {
      const LeafPair pair = LeafPair::of(unit, end);
      const int begin = pair.begin_of(is_second), units = pair.end_of(is_second) - begin;
      unit = pair.end;
      has_last_ = units > 0 && begin + units == end;
      if (units == 0) break;  // the piece ends with the other warpgroup's leaf
      leaf_.clear();
#pragma unroll 1
      for (int k = 0; k < units; ++k) step(begin + k, of_all);
      if (!has_turn) take_turn();
      has_turn = false;
      State state = leaf_.finished();
      const int level = leaf_level(begin, Sizes::kLeafShift);
      const int begin_of_all = stack_.complete(state, begin >> level << level, level, first);
      if (has_last_) return state;
      stack_.push(state, begin_of_all);
      give_turn();
    }
    return State::empty();
  }

  // Releases the slots of a step that was loaded according to an incorrect schedule. The step is the first one, so it
  // belongs to the first warpgroup.
  __device__ __forceinline__ void give_back(int slots) {
    if (role_.part != 0) return;
    for (; slots > 0; --slots) {
      block_.ring.full(place_.stage).wait(place_.parity);  // waits until the copies have arrived; the slot may then be
                                                           // released
      release(place_.stage);
      place_.advance();
    }
  }

  [[nodiscard]] __device__ __forceinline__ bool has_last() const {
    return has_last_;
  }
  // Prepares for merging the nodes of other blocks, which the first warpgroup does. All pieces must be done.
  __device__ __forceinline__ void begin_merging() {
    compute_barrier<Config>();  // waits until both warpgroups have read the ring, which may then receive nodes
    begin_stack();
  }

 private:
  using Control = typename DecodeStack<Config>::Control;
  using Leaf = DecodeWarpgroupLeaf<Config>;

  // Empties the stack. If the piece has no steps, the first warpgroup has the last node.
  __device__ __forceinline__ void begin_stack() {
    stack_.take_control({});
    has_last_ = role_.part == 0;
  }
  // Data that the warpgroups exchange, and data that the warps of each warpgroup exchange. This struct uses the memory
  // of the row maxima, which are not needed if kByWarpgroup is set.
  struct Told {
    Control control[2];  // one for each warpgroup
    uint32 words[2][2][kTeamWarps];
  };
  [[nodiscard]] __device__ __forceinline__ Told& told() const {
    static_assert(sizeof(Told) <= decode_team_stats(Sizes::kTile) * sizeof(float));
    return *reinterpret_cast<Told*>(maxima_);
  }
  __device__ __forceinline__ void take_turn() {
    barrier_wait<Sizes::kComputeThreads>(kTurnBarrier + role_.part);  // waits until the other warpgroup has finished
                                                                      // with the stack, which may then be read
    stack_.take_control(told().control[role_.part]);
  }
  __device__ __forceinline__ void give_turn() {
    if (role_.warp == 0 && role_.lane == 0) told().control[1 - role_.part] = stack_.control();
    __syncwarp();  // waits until the control state is written; the other warpgroup may then read it
    barrier_arrive<Sizes::kComputeThreads>(kTurnBarrier + 1 - role_.part);
  }
  // Returns the number of a slot in the warpgroup's part of the ring.
  [[nodiscard]] __device__ __forceinline__ int slot_of(const Place& place) const {
    return role_.part * DecodeRing<Config>::kSlots + place.stage;
  }

  __device__ __forceinline__ void step(int unit, const KeysOfAll& of_all) {
    const int first_key = unit * kStepKeys, keys = slot_of(place_);
    typename Leaf::Scores s;
    block_.ring.full(keys).wait(place_.parity);  // waits until the keys are in their slot, which may then be read
    leaf_.multiply(s, block_.ring.slot(keys), q_rows_);
    const uint2 words_of_existing = *reinterpret_cast<const uint2*>(block_.ring.existing(keys));
    const uint64 existing = static_cast<uint64>(words_of_existing.y) << 32 | words_of_existing.x;
    if constexpr (Sizes::kLoadsValues) {
      release(keys);
      place_.advance();
    }
    const uint64 seen_by_all = of_all.of_step(first_key);
    const bool some_see = (existing & ~seen_by_all) != 0, has_slopes = block_.args.alibi_slopes != nullptr;
    scale_.template apply<Config>(s);
    if (has_slopes || some_see) {
      leaf_.mask(s, rows_, has_slopes, (existing & seen_by_all) == ~uint64{0}, existing, first_key, role_.again());
    } else if (existing != ~uint64{0}) {
      leaf_.mask_missing(s, existing, role_.again().lane);
    }
    leaf_.weigh(s);
    typename Leaf::Probabilities p;
    leaf_.pack(s, p);
    const int values = slot_of(place_);
    // Waits until the values are in their slot, which may then be read.
    if constexpr (Sizes::kLoadsValues) block_.ring.full(values).wait(place_.parity);
    char* of_values = block_.ring.slot(values);
    if (existing != ~uint64{0}) leaf_.clear_missing(of_values, existing, role_.again());
    if (some_see) {  // Each warp has one word. Two buffers alternate, because a warp may be one step ahead of another
      uint32* words = told().words[role_.part][words_turn_];
      words_turn_ ^= 1;
      const auto weight = [&](int row, int key) { return Leaf::weight_of(p, row, key, role_.lane); };
      leaf_.add_nonfinite(weight, rows_, of_values, existing, first_key, words, role_.again());
    }
    leaf_.add_values(p, of_values);
    release(values);
    place_.advance();
  }

  Leaf leaf_;
  bool has_last_ = true;
  int words_turn_ = 0;
};

}  // namespace attend
