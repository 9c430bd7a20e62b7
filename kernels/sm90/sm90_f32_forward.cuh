// sm90_f32_forward: computes o = softmax(s) v and lse for float32 tensors on Hopper's tensor cores, with the accuracy
// of float32 arithmetic.
//
// Shapes   q (batch, heads, seqlen_q, d), k (batch, heads_k, seqlen_k, d), v (batch, heads_k, seqlen_k, d_v), o (batch,
//          heads, seqlen_q, d_v), or packed sequences. Any strides and addresses are allowed, because a preparing
//          kernel reads q, k and v.
// Supports float32, d and d_v from 8 to 128, and every option except dropout and parts of larger problems (rings).
//          Requires sm_90a.
// Work     sm90_f32_split.cuh writes each operand as two float16 pieces. A product of two operands consists of three
//          products of pieces (sm90_f32_products.cuh). Tensor cores truncate their sums, so each product that is added
//          to o could lose 2^-24 of o. To avoid this, the product p v of each key tile has a separate accumulator pv,
//          which is added to o in float32. The work is otherwise divided as in sm90_forward.cuh. For each key tile n, a
//          consumer executes three steps:
//            1  Issue s = q k(n)^T and pv = p(n + 1) v(n + 1). The consumers take turns to issue (Sm90Turn).
//            2  Add pv to o.
//            3  Compute the scores, and p(n) as two pieces. Rescale o if the row maximum has risen.
// Memory   Sm90F32Storage holds both pieces of q, and rings of both pieces of k and v, in shared memory.
// Measured in docs/hopper_forward.md.
// Called   by the backend 'sm90_f32_forward' (src/cuda/launch/sm90_f32_forward.cpp).
// Source   Shah et al., FlashAttention-3 (2024), Algorithm 1; Ootomo and Yokota, Recovering single precision accuracy
//          from Tensor Cores while surpassing the FP32 theoretical peak performance (2022)
#pragma once

#include "../isa/setmaxnreg.cuh"
#include "sm90_f32_epilogue.cuh"
#include "sm90_f32_producer.cuh"
#include "sm90_f32_products.cuh"
#include "sm90_f32_softmax.cuh"
#include "sm90_scores.cuh"
#include "sm90_turn.cuh"

namespace attend {

// State of a consumer's query rows during the loop over key tiles.
template <class Config>
struct F32RowState {
  const Sm90Scores<Config>& scores;
  uint32 q_smem;           // shared-memory address of the warpgroup's first row of q
  float q_unit;            // factor of the pieces of q
  const float* key_units;  // factors of the head's key tiles (F32Pieces::key_units)
  F32Softmax<Config>& softmax;
  float v_unit = 0.0f;  // factor of v in the tile whose product p v is added next
  float (&o)[Sm90F32Shape<Config>::kOutputs];
  float (&pv)[Sm90F32Shape<Config>::kOutputs];
};

// A consumer warpgroup. It has 64 query rows of each query tile of the block.
template <class Config>
struct F32Consumer {
  using Shape = Sm90F32Shape<Config>;
  using RowState = F32RowState<Config>;
  using Weights = F32Weights<Config>;
  using Place = RingPlace<Config::kStages>;
  using ScoreTile = float[Shape::kScores];
  Sm90F32Storage<Config>& smem;
  const Sm90F32ForwardArgs& args;
  Sm90Turn<Config> turn;
  RingPlace<1> q_at = {};
  Place at = {};  // position in the ring of k. Between query tiles it is also the position in the ring of v; within a
                  // query tile v is one behind

  // Skips key tiles that this warpgroup does not need but other warpgroups of the block do.
  __device__ __forceinline__ void skip(int tiles) {
#pragma unroll 1
    for (; tiles > 0; --tiles) {
      turn.wait();
      turn.pass();
      // Without this wait, the arrival at k_empty could be counted for the previous tile in this buffer.
      smem.k_full[at.buffer()].wait(at.parity());
      arrive_as_warp(smem.k_empty[at.buffer()]);
      smem.v_full[at.buffer()].wait(at.parity());
      arrive_as_warp(smem.v_empty[at.buffer()]);
      at.advance();
    }
  }

  // Issues s = q k^T for key tile n and pv for key tile n + 1, when this consumer has its turn. Returns the ring
  // position of that v.
  [[nodiscard]] __device__ __forceinline__ Place issue_products(RowState& rows, ScoreTile& s, const Weights& p) {
    const Place v_at = at;
    at.advance();
    smem.k_full[at.buffer()].wait(at.parity());  // wait until k of tile n has arrived
    turn.wait();
    f32_begin_qk<Config>(s, rows.q_smem, smem_address(smem.k[at.buffer()]));
    smem.v_full[v_at.buffer()].wait(v_at.parity());  // wait until v of tile n + 1 has arrived
    f32_begin_pv<Config>(rows.pv, p, smem_address(smem.v[v_at.buffer()]));
    turn.pass();
    return v_at;
  }

  // Factors of a key tile. s is the factor of q k^T, and v that of the pieces of v.
  struct Units {
    float s;
    float v;
  };
  [[nodiscard]] __device__ __forceinline__ Units units_of(const RowState& rows, int n) const {
    const float2 of_keys = __ldg(reinterpret_cast<const float2*>(rows.key_units) + n);
    return {rows.q_unit * of_keys.x, of_keys.y};
  }

  // Turns the completed products of pieces into scores. Returns the factor that turns these scores into exponents of 2.
  template <bool kIsFirst>
  [[nodiscard]] __device__ __forceinline__ float finish_scores(const RowState& rows, ScoreTile& s,
                                                               const SeenKeyTile<Config>& tile, float unit) {
    arrive_as_warp(smem.k_empty[at.buffer()]);
    constexpr bool kHasRules = Sm90Scores<Config>::kHasRules;  // score modifications need q k^T itself, so the products
                                                               // are multiplied by `unit`
    if constexpr (kHasRules) {
#pragma unroll
      for (int i = 0; i < Shape::kScores; ++i) s[i] *= unit;
    }
    const uint32 no_terms[Sm90Scores<Config>::kTermsWords] = {};
    rows.scores.template finish<kIsFirst>(s, tile, false, no_terms);
    if constexpr (kScoreUnits<Config> == ScoreUnits::kNatural) F32Softmax<Config>::limit(s);
    constexpr float kLeast = 0x1p-100f;  // the same bound as in sm90_folded_scale, because 0 * -inf would be NaN
    return kHasRules ? rows.scores.multiplier() : fmaxf(rows.scores.multiplier() * unit, kLeast);
  }

  // Adds pv to o. The product pv must be complete.
  __device__ __forceinline__ void add_products(RowState& rows) {
#pragma unroll
    for (int i = 0; i < Shape::kOutputs; ++i) rows.o[i] = fmaf(rows.pv[i], rows.v_unit, rows.o[i]);
  }

  // Processes key tile n. Its softmax overlaps with the other consumer's products.
  __device__ __forceinline__ void step(RowState& rows, int place, bool is_last, Weights& p) {
    ScoreTile s;
    const Place v_at = issue_products(rows, s, p);
    const SeenKeyTile<Config> tile = rows.scores.tile_at(place);
    const Units units = units_of(rows, tile.number);
    wgmma_wait<0>(s);  // s and pv are complete
    pin_registers(rows.pv);
    arrive_as_warp(smem.v_empty[v_at.buffer()]);
    if (is_last) arrive_as_warp(smem.q_empty);
    add_products(rows);
    const float c = finish_scores<false>(rows, s, tile, units.s);
    float factor[kRowsOfThread];
    if (rows.softmax.update(s, c, p, factor)) scale_rows(rows.o, factor);
    rows.v_unit = units.v;
  }

  // Adds p v of the first key tile of the range, which is processed last.
  __device__ __forceinline__ void finish_products(RowState& rows, const Weights& p) {
    smem.v_full[at.buffer()].wait(at.parity());  // wait until v of that tile has arrived
    f32_begin_pv<Config>(rows.pv, p, smem_address(smem.v[at.buffer()]));
    wgmma_wait<0>(rows.pv);
    arrive_as_warp(smem.v_empty[at.buffer()]);
    at.advance();
    add_products(rows);
  }

  // Computes o and the softmax state of the rows over the key tiles at these list positions, from last to first. The
  // range must not be empty.
  __device__ __forceinline__ void attend_keys(RowState& rows, Sm90KeyTiles tiles) {
    Weights p;
    int place = tiles.end - 1;
    {  // the first iteration issues only q k^T, because there is no p yet
      ScoreTile s;
      smem.k_full[at.buffer()].wait(at.parity());  // wait until k of the tile has arrived
      turn.wait();
      f32_begin_qk<Config>(s, rows.q_smem, smem_address(smem.k[at.buffer()]));
      turn.pass();
      const SeenKeyTile<Config> tile = rows.scores.tile_at(place);
      const Units units = units_of(rows, tile.number);
      wgmma_wait<0>(s);
      if (place == tiles.begin) arrive_as_warp(smem.q_empty);
      const float c = finish_scores<true>(rows, s, tile, units.s);
      float factor[kRowsOfThread];
      (void)rows.softmax.update(s, c, p, factor);
      rows.v_unit = units.v;
    }
#pragma unroll 1
    for (--place; place >= tiles.begin; --place) step(rows, place, place == tiles.begin, p);
    finish_products(rows, p);
    rows.softmax.finish();
  }

  // Processes one query tile.
  __device__ __forceinline__ void consume(const Sm90Work& work) {
    const WindowMask mask = sm90_mask<Config>(args.options, work);
    const Sm90KeyList<Config> list = sm90_key_list<Config>(args, work);
    const Sm90KeyTiles all = places_of_rows<Config, Shape::kBlockM>(list, mask, work, work.row);
    const int first = work.row + turn.consumer * kWarpgroupRows;
    if (all.begin >= all.end) {
      f32_store_nothing_seen<Config>(args, work, Sm90Rows::of(work, turn.consumer));
      __syncwarp();
      return;
    }
    const Sm90KeyTiles seen = places_of_rows<Config, kWarpgroupRows>(list, mask, work, first);
    if (seen.begin >= seen.end) {
      skip(all.end - all.begin);
      f32_store_nothing_seen<Config>(args, work, Sm90Rows::of(work, turn.consumer));
      smem.q_full.wait(q_at.parity());  // without this wait, the arrival at q_empty could be counted for the previous q
      arrive_as_warp(smem.q_empty);
    } else {
      skip(all.end - seen.end);
      attend_rows(work, mask, list, seen);
      if constexpr (Config::kMask == MaskKind::kWindow) skip(seen.begin - all.begin);
    }
    __syncwarp();
    q_at.advance();
  }

  __device__ __forceinline__ void attend_rows(const Sm90Work& work, const WindowMask& mask,
                                              const Sm90KeyList<Config>& list, Sm90KeyTiles seen) {
    const F32Place<Config> place = F32Place<Config>::of(args, work);
    const int first = work.row + turn.consumer * kWarpgroupRows;
    const auto units_before = [](int head, int64 rows, int row, int block) {
      return (static_cast<int64>(head) * rows + row) / block;
    };
    const Sm90Scores<Config> scores = Sm90Scores<Config>::of(args, work, turn.consumer, mask, list);
    F32Softmax<Config> softmax;
    float o[Shape::kOutputs] = {}, pv[Shape::kOutputs];
    RowState rows = {.scores = scores,
                     .q_smem = smem_address(smem.q) + turn.consumer * kWarpgroupRows * kSwizzleBytes,
                     .q_unit = __ldg(args.pieces.q_units + units_before(place.head_q, args.pieces.q_rows,
                                                                        place.first_q + first, kSm90ConsumerRows)),
                     .key_units = args.pieces.key_units +
                                  2 * units_before(place.head_k, args.pieces.k_rows, place.first_k, Config::kBlockN),
                     .softmax = softmax,
                     .o = o,
                     .pv = pv};
    smem.q_full.wait(q_at.parity());  // wait until q has arrived
    attend_keys(rows, seen);
    f32_store_rows<Config>(args, work, Sm90Rows::of(work, turn.consumer), softmax, o);
  }

  __device__ __forceinline__ void run() {
    if constexpr (Config::kPingPong) turn.begin();
    RingPlace<kSm90WorkSlots> work_at;
    for (;;) {
      // Wait until the producer has written the next query tile.
      smem.work_full[work_at.buffer()].wait(work_at.parity());
      const Sm90Work& work = smem.work[work_at.buffer()];
      if (work.sequence == Sm90Work::kNoWork) break;
      consume(work);
      // consume() ends with __syncwarp(), so all lanes have read the query tile.
      arrive_as_warp(smem.work_empty[work_at.buffer()]);
      work_at.advance();
    }
  }
};

// Computes o and lse. The grid may have any number of blocks, which share all query tiles. Warpgroup 0 loads, and the
// other warpgroups compute.
template <class Config>
__device__ void sm90_f32_forward(const Sm90F32ForwardArgs& args) {
  using Shape = Sm90F32Shape<Config>;
  constexpr int kRegistersOfThreads = 65536 / Shape::kThreads / 8 * 8;
  static_assert(Config::kThreads == Shape::kThreads && Config::kBlockM == Shape::kBlockM);
  static_assert(Config::kProducerRegisters + Config::kConsumers * Config::kConsumerRegisters <=
                    (1 + Config::kConsumers) * kRegistersOfThreads,
                "taking registers would wait for ever");
  static_assert(sizeof(Sm90F32Storage<Config>) == Config::kSmemBytes);
  extern __shared__ __align__(kSwizzleAtom) unsigned char smem_bytes[];
  auto& smem = *reinterpret_cast<Sm90F32Storage<Config>*>(smem_bytes);

  if (threadIdx.x == 0) smem.init_barriers();
  __syncthreads();  // the barriers are initialised, so all threads may use them
  // The shuffle places the value in a uniform register.
  const int group = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
  if (group == 0) {
    give_registers<Config::kProducerRegisters>();
    if (__shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kWarpThreads, 0) == 0) {
      F32Producer<Config>{smem, args}.run();
    }
  } else {
    take_registers<Config::kConsumerRegisters>();
    F32Consumer<Config>{smem, args, {group - 1}}.run();
  }
}

}  // namespace attend
