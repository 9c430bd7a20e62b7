// sm90_fp8_forward: computes o = softmax(s) v and lse from 8-bit floats (e4m3) on Hopper's tensor cores.
//
// Shapes   q (batch, heads, seqlen_q, d), k (batch, heads_k, seqlen_k, d), v (batch, heads_k, seqlen_k, d_v), o (batch,
//          heads, seqlen_q, d_v), or packed sequences. The last stride is 1. The other strides and the addresses are
//          multiples of 16 bytes. Factors of q, k and v (descales) belong to a sequence and KV head. Those of k and v
//          may also belong to blocks of 128 keys.
// Supports e4m3 q, k and v, and float32, float16 and bfloat16 o. d and d_v are 64, 96 or 128. Masks are full, causal
//          and windows. Requires sm_90a.
// Work     sm90_fp8_transpose.cuh writes v with neighbouring keys next to each other. The tensor cores keep 14 bits of
//          a sum, so the product p v of each key tile has a separate accumulator pv, which is added to o in float32.
//          The work is otherwise divided as in sm90_forward.cuh. For each key tile n, a consumer executes three steps:
//            1  Issue pv = p(n + 1) v(n + 1), and then s = q k(n)^T. The consumers take turns to issue (Sm90Turn).
//            2  Add pv to o while s is computed.
//            3  Compute p(n) as e4m3. Rescale o if the row maximum has risen.
// Memory   Sm90Fp8Storage holds q, and rings of k and of the transposed v, in shared memory.
// Design   docs/hopper_forward.md
// Called   by the backend 'sm90_fp8_forward' (src/cuda/launch/sm90_fp8_forward.cpp).
// Source   Shah et al., FlashAttention-3 (2024), section 3.3.
#pragma once

#include "../isa/setmaxnreg.cuh"
#include "sm90_fp8_epilogue.cuh"
#include "sm90_fp8_producer.cuh"
#include "sm90_fp8_products.cuh"
#include "sm90_fp8_softmax.cuh"
#include "sm90_scores.cuh"
#include "sm90_turn.cuh"

namespace attend {

// State of a consumer's query rows during the loop over key tiles.
template <class Config>
struct Fp8RowState {
  const Sm90Scores<Config>& scores;
  uint32 q_smem;           // shared-memory address of the warpgroup's first row of q
  float unit;              // factor that turns q k^T into exponents of 2. With kHasKeyBlocks, without the factor of k
  const float* k_descale;  // factors of the head's blocks of keys, or null. Read if kHasKeyBlocks is set, as v_descale
  const float* v_descale;
  Fp8Softmax<Config>& softmax;
  float (&o)[Sm90Fp8Shape<Config>::kOutputs];
  float (&p_sum)[kRowsOfThread];  // sum of the rounded p of each row, relative to the same maximum as o
};

// A consumer warpgroup. It has 64 query rows of each query tile of the block.
template <class Config>
struct Fp8Consumer {
  using Shape = Sm90Fp8Shape<Config>;
  using RowState = Fp8RowState<Config>;
  using Weights = uint32[Shape::kFours];
  using Place = RingPlace<Config::kStages>;
  Sm90Fp8Storage<Config>& smem;
  const Sm90Fp8ForwardArgs& args;
  Sm90Turn<Config> turn;
  RingPlace<1> q_at = {};
  Place at = {};  // position in the ring of k. Between query tiles it is also the position in the ring of v; within a
                  // query tile v is one behind
  static_assert(!Config::kHasKeyBlocks || Config::kBlockN == kFp8BlockKeys);

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

  // Returns the factor of key tile n. `of_head` is Fp8Descale::of_head(), or null.
  [[nodiscard]] static __device__ __forceinline__ float descale_of(const float* of_head, const Fp8Descale& descale,
                                                                   int n) {
    return of_head == nullptr ? 1.0f : __ldg(of_head + n * descale.block_stride);
  }
  // Returns the factor that turns q k^T of key tile n into exponents of 2.
  [[nodiscard]] __device__ __forceinline__ float unit_of(const RowState& rows, int n) const {
    constexpr float kLeast = 0x1p-100f;  // 0 * -inf would be NaN
    if constexpr (Config::kHasKeyBlocks) {
      return fmaxf(rows.unit * descale_of(rows.k_descale, args.k_descale, n), kLeast);
    }
    return rows.unit;
  }

  // Adds pv of key tile n to o. The product pv must be complete.
  __device__ __forceinline__ void add_products(RowState& rows, int n, const float (&pv)[Shape::kSums]) const {
    const float unit = Config::kHasKeyBlocks ? descale_of(rows.v_descale, args.v_descale, n) : 1.0f;
#pragma unroll
    for (int i = 0; i < Shape::kOutputs; ++i) {
      rows.o[i] = Config::kHasKeyBlocks ? fmaf(pv[i], unit, rows.o[i]) : rows.o[i] + pv[i];
    }
#pragma unroll
    for (int h = 0; h < kRowsOfThread; ++h) rows.p_sum[h] += pv[Shape::kOutputs + 2 * h];
  }

  // Turns the completed q k^T of key tile n into scores, and frees the buffers that the product read.
  template <bool kIsFirst>
  __device__ __forceinline__ void finish_scores(const RowState& rows, float (&s)[Shape::kScores], int n, bool is_last) {
    arrive_as_warp(smem.k_empty[at.buffer()]);
    if (is_last) arrive_as_warp(smem.q_empty);
    const uint32 no_terms[Sm90Scores<Config>::kTermsWords] = {};
    rows.scores.template finish<kIsFirst>(s, rows.scores.tile_at(n), false, no_terms);
  }

  // Processes key tile n. Its softmax overlaps with the other consumers' products.
  __device__ __forceinline__ void step(RowState& rows, int n, bool is_last, Weights& p) {
    const Place v_at = at;
    at.advance();
    smem.v_full[v_at.buffer()].wait(v_at.parity());  // wait until v of tile n + 1 has arrived
    smem.k_full[at.buffer()].wait(at.parity());      // wait until k of tile n has arrived
    float s[Shape::kScores];
    {
      float pv[Shape::kSums];
      turn.wait();
      fp8_begin_pv<Config>(pv, p, smem_address(&smem.v[v_at.buffer()]));
      fp8_begin_qk<Config>(s, rows.q_smem, smem_address(smem.k[at.buffer()]));
      turn.pass();
      wgmma_wait<1>(pv);  // pv is complete; s may still be computed
      arrive_as_warp(smem.v_empty[v_at.buffer()]);
      add_products(rows, n + 1, pv);
    }
    pin_registers(rows.o);  // the additions precede the wait for s
    wgmma_wait<0>(s);
    finish_scores<false>(rows, s, n, is_last);
    float factor[kRowsOfThread];
    if (rows.softmax.update(s, unit_of(rows, n), p, factor)) {
      scale_rows(rows.o, factor);
      rows.p_sum[0] *= factor[0];
      rows.p_sum[1] *= factor[1];
    }
  }

  // Computes o and the softmax state of the rows over the key tiles, from last to first. The range must not be empty.
  __device__ __forceinline__ void attend_keys(RowState& rows, Sm90KeyTiles tiles) {
    Weights p;
    int n = tiles.end - 1;
    {  // the first iteration issues only q k^T, because there is no p yet
      float s[Shape::kScores];
      smem.k_full[at.buffer()].wait(at.parity());  // wait until k of the tile has arrived
      turn.wait();
      fp8_begin_qk<Config>(s, rows.q_smem, smem_address(smem.k[at.buffer()]));
      turn.pass();
      wgmma_wait<0>(s);
      finish_scores<true>(rows, s, n, n == tiles.begin);
      rows.softmax.begin(s, unit_of(rows, n), p);
    }
#pragma unroll 1
    for (--n; n >= tiles.begin; --n) step(rows, n, n == tiles.begin, p);
    // Adds p v of the first key tile of the range, which is processed last.
    smem.v_full[at.buffer()].wait(at.parity());  // wait until v of that tile has arrived
    float pv[Shape::kSums];
    fp8_begin_pv<Config>(pv, p, smem_address(&smem.v[at.buffer()]));
    wgmma_wait<0>(pv);
    arrive_as_warp(smem.v_empty[at.buffer()]);
    at.advance();
    add_products(rows, tiles.begin, pv);
    rows.softmax.finish();
  }

  // Processes one query tile.
  __device__ __forceinline__ void consume(const Sm90Work& work) {
    const WindowMask mask = sm90_mask<Config>(args.options, work);
    const Sm90KeyTiles all = key_tiles_of_rows<Config, Shape::kBlockM>(mask, work, work.row);
    if (all.begin >= all.end) {
      fp8_store_nothing_seen<Config>(args, work, Sm90Rows::of(work, turn.consumer));
      __syncwarp();
      return;
    }
    const Sm90KeyTiles seen =
        key_tiles_of_rows<Config, kWarpgroupRows>(mask, work, work.row + turn.consumer * kWarpgroupRows);
    if (seen.begin >= seen.end) {
      skip(all.end - all.begin);
      fp8_store_nothing_seen<Config>(args, work, Sm90Rows::of(work, turn.consumer));
      smem.q_full.wait(q_at.parity());  // without this wait, the arrival at q_empty could be counted for the previous q
      arrive_as_warp(smem.q_empty);
    } else {
      skip(all.end - seen.end);
      attend_rows(work, mask, seen);
      if constexpr (Config::kMask == MaskKind::kWindow) skip(seen.begin - all.begin);
    }
    __syncwarp();
    q_at.advance();
  }

  // Returns the factor of the head's first block, or 1 if there are no factors.
  [[nodiscard]] static __device__ __forceinline__ float first_descale(const Fp8Descale& descale, const Sm90Work& work,
                                                                      int head_k) {
    return descale.data == nullptr ? 1.0f : __ldg(descale.of_head(work.sequence, head_k));
  }

  __device__ __forceinline__ void attend_rows(const Sm90Work& work, const WindowMask& mask, Sm90KeyTiles seen) {
    const int head_k = work.head / static_cast<int>(args.base.num_heads_q / args.base.num_heads_k);
    const Sm90Scores<Config> scores =
        Sm90Scores<Config>::of(args, work, turn.consumer, mask, sm90_key_list<Config>(args, work));
    Fp8Softmax<Config> softmax;
    float o[Shape::kOutputs] = {}, p_sum[kRowsOfThread] = {0.0f, 0.0f};
    RowState rows = {.scores = scores,
                     .q_smem = smem_address(smem.q) + turn.consumer * kWarpgroupRows * kSwizzleBytes,
                     .unit = args.scale_log2 * first_descale(args.q_descale, work, head_k),
                     .k_descale = nullptr,
                     .v_descale = nullptr,
                     .softmax = softmax,
                     .o = o,
                     .p_sum = p_sum};
    if constexpr (Config::kHasKeyBlocks) {
      if (args.k_descale.data != nullptr) rows.k_descale = args.k_descale.of_head(work.sequence, head_k);
      if (args.v_descale.data != nullptr) rows.v_descale = args.v_descale.of_head(work.sequence, head_k);
    } else {
      constexpr float kLeast = 0x1p-100f;  // 0 * -inf would be NaN
      rows.unit = fmaxf(rows.unit * first_descale(args.k_descale, work, head_k), kLeast);
    }
    smem.q_full.wait(q_at.parity());  // wait until q has arrived
    attend_keys(rows, seen);
    const float v_unit = Config::kHasKeyBlocks ? 1.0f : first_descale(args.v_descale, work, head_k);
    fp8_store_rows<Config>(args, work, Sm90Rows::of(work, turn.consumer), softmax, v_unit, p_sum, o);
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
__device__ void sm90_fp8_forward(const Sm90Fp8ForwardArgs& args) {
  using Shape = Sm90Fp8Shape<Config>;
  constexpr int kRegistersOfThreads = 65536 / Shape::kThreads / 8 * 8;
  static_assert(Config::kThreads == Shape::kThreads && Config::kBlockM == Shape::kBlockM);
  static_assert(Config::kProducerRegisters + Config::kConsumers * Config::kConsumerRegisters <=
                    (1 + Config::kConsumers) * kRegistersOfThreads,
                "taking registers would wait for ever");
  static_assert(sizeof(Sm90Fp8Storage<Config>) == Config::kSmemBytes);
  extern __shared__ __align__(kSwizzleAtom) unsigned char smem_bytes[];
  auto& smem = *reinterpret_cast<Sm90Fp8Storage<Config>*>(smem_bytes);

  if (threadIdx.x == 0) smem.init_barriers();
  smem.write_ones();
  __syncthreads();  // the barriers and the rows of ones are initialised, so all threads may use them
  // The shuffle places the value in a uniform register.
  const int group = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
  if (group == 0) {
    give_registers<Config::kProducerRegisters>();
    if (__shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kWarpThreads, 0) == 0) {
      Fp8Producer<Config>{smem, args}.run();
    }
  } else {
    take_registers<Config::kConsumerRegisters>();
    Fp8Consumer<Config>{smem, args, {group - 1}}.run();
  }
}

}  // namespace attend
