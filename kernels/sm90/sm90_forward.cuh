// sm90_forward: o = dropout(softmax(s)) v and lse, with every option of the interface, on Hopper's tensor cores.
//
// Shapes   q (batch, heads, seqlen_q, d), k (batch, heads_k, seqlen_k, d), v (batch, heads_k, seqlen_k, d_v) and o;
//          packed sequences. Strides whose last is 1 and whose others are multiples of 16 bytes, addresses likewise:
//          what the copy engine takes. The host refuses others
// Supports float16 and bfloat16, d and d_v multiples of 8 up to 256, every option. sm_90a
// Work     a block has tiles of kBlockM query rows, one after the other, as many blocks as multiprocessors. Warpgroup 0
//          loads (sm90_producer.cuh), and for dropout prepares (sm90_dropout.cuh); kConsumers others have 64 rows each.
//          Their step for a tile n of keys:
//            1  issue s = q k(n)^T and o += p(n + 1) v(n + 1), in turns with the other consumers (Sm90Turn)
//            2  scores: options and masks (sm90_scores.cuh), under the products as far as they need no s
//            3  softmax: p(n), without waiting for a maximum where it can be done without (sm90_softmax.cuh)
//          kOverlap: 2 and 3 run while o += p v does. Tiles go from the last to the first: the masked ones come first
// Memory   q, rings of k and v: Sm90Storage. o leaves from the place of its q
// Measured bf16, 16384 tokens, heads * d = 2048, H200, CUDA 13.0, TFLOP/s for S = 512, 2048, 8192, 16384
//          d  64: full 429 549 599 605, causal 271 444 558 578
//          d 128: full 515 673 748 756, causal 328 556 694 712
//          d 256: full 529 673 745 763, causal 340 596 701 740       (docs/hopper_forward.md: beside others, and why)
// Called   by compute 'sm90_forward': src/cuda/launch/sm90_forward.cpp
// Source   Shah et al., FlashAttention-3 (2024), Algorithms 1 and 2; the lagging maximum: FlashAttention-4 (2025)
#pragma once

#include "../isa/setmaxnreg.cuh"
#include "sm90_dropout.cuh"
#include "sm90_epilogue.cuh"
#include "sm90_long_sum.cuh"
#include "sm90_producer.cuh"
#include "sm90_scores.cuh"

namespace attend {

// Consumers take turns in giving the tensor cores their products, so that one's softmax runs under another's products.
template <class Config>
struct Sm90Turn {
  static constexpr int kFirstBarrier = 1;
  static constexpr int kThreads = 2 * kWarpgroup;  // who waits, and who passes
  int consumer;

  // The first consumer's first turn has nobody before it: the last one passes it.
  __device__ __forceinline__ void begin() const {
    if (consumer == Config::kConsumers - 1) pass();
  }
  __device__ __forceinline__ void wait() const {
    if constexpr (Config::kPingPong) barrier_wait<kThreads>(kFirstBarrier + consumer);
  }
  __device__ __forceinline__ void pass() const {
    if constexpr (Config::kPingPong) {
      barrier_arrive<kThreads>(kFirstBarrier + (consumer == Config::kConsumers - 1 ? 0 : consumer + 1));
    }
  }
};

// A consumer warpgroup: 64 query rows of each of the block's tiles.
template <class Config>
struct Sm90Consumer {
  using Shape = Sm90Shape<Config>;
  using Fragments = Sm90Fragments<Config>;
  Sm90Storage<Config>& smem;
  const Sm90ForwardArgs& args;
  Sm90Turn<Config> turn;
  RingPlace<Config::kQBuffers> q_at = {};
  RingPlace<Config::kStages> at = {};  // of k, and of v between tiles of rows; in attend_keys v is one behind
  int stored = -1;                     // buffer of q from which a store may still read; only in the thread that stores

  // Says that o has left the place of q. By the thread that stores.
  __device__ __forceinline__ void release_stored() {
    if constexpr (Shape::kStagesO) {
      if (stored < 0) return;
      tma_store_wait_read();
      smem.q_empty[stored].arrive();
      stored = -1;
    }
  }
  // The warp's last scores of these rows are made: if o does not take q's place, the next q may.
  __device__ __forceinline__ void release_q() {
    if constexpr (!Shape::kStagesO) arrive_as_warp(smem.q_empty[q_at.buffer()]);
  }

  // s of the tile is made: what came with k, and then k's place.
  __device__ __forceinline__ void take_products(const Sm90Scores<Config>& scores, float (&s)[Fragments::kScores]) {
    if constexpr (Config::kBiasTiles) scores.add_bias_tile(s, smem_address(smem.bias[at.buffer()]));
    if constexpr (Config::kBiasTiles || Score<Config>::kDrops) __syncwarp();  // all lanes have read bias and quads
    arrive_as_warp(smem.k_empty[at.buffer()]);
  }

  // Tiles of keys that others of the block want.
  __device__ __forceinline__ void skip(int tiles) {
#pragma unroll 1
    for (; tiles > 0; --tiles) {
      turn.wait();
      turn.pass();
      smem.k_full[at.buffer()].wait(at.parity());  // or the release could count for the tile before
      arrive_as_warp(smem.k_empty[at.buffer()]);
      smem.v_full[at.buffer()].wait(at.parity());
      arrive_as_warp(smem.v_empty[at.buffer()]);
      at.advance();
    }
  }

  // Tile n: s = q k^T together with o += p v of tile n + 1, then the softmax: p_next. Where nothing overlaps, p and
  // p_next are the same registers.
  __device__ __forceinline__ void step(const Sm90Scores<Config>& scores, int n, bool is_last, uint32 q_smem,
                                       Sm90Softmax<Config>& softmax, Sm90LongSum<Config>& long_sum,
                                       float (&o)[Fragments::kOutputs], uint32 (&p)[Fragments::kPairs],
                                       uint32 (&p_next)[Fragments::kPairs]) {
    const RingPlace<Config::kStages> v_at = at;
    at.advance();
    float s[Fragments::kScores];
    smem.k_full[at.buffer()].wait(at.parity());  // k of tile n has landed
    turn.wait();
    sm90_begin_qk<Config>(s, q_smem, smem_address(smem.k[at.buffer()]));
    smem.v_full[v_at.buffer()].wait(v_at.parity());  // v of tile n + 1 has landed
    sm90_begin_pv<Config>(o, p, smem_address(smem.v[v_at.buffer()]));
    turn.pass();
    uint32 kept[kKeptWords<Fragments::kScores>];
    scores.decide(kept, smem, at.buffer());
    uint32 bias[Sm90Scores<Config>::kBiasWords];
    const bool has_bias = scores.load_bias(bias, n);
    if constexpr (Config::kOverlap) {
      wgmma_wait<1>(s);  // s is there; p v of tile n + 1 runs under the softmax of tile n
      take_products(scores, s);
    } else {
      wgmma_wait<0>(s);
      pin_registers(o);
      take_products(scores, s);
      arrive_as_warp(smem.v_empty[v_at.buffer()]);
    }
    if (is_last) release_q();
    scores.template finish<false>(s, n, has_bias, bias);
    float rescale[kRowsOfThread];
    const bool rescales = softmax.update(s, scores.multiplier(), p_next, rescale);
    if constexpr (Config::kOverlap) {
      wgmma_wait<0>(o);  // o may be scaled, p overwritten
      arrive_as_warp(smem.v_empty[v_at.buffer()]);
      softmax.pack_late(s, p_next);
    }
    if (rescales) {
      scale_rows(o, rescale);
      long_sum.rescale(rescale);
    }
    long_sum.put_aside(o, n);
    scores.drop(p_next, kept);
  }

  // o and softmax of the rows for the tiles of keys, last to first. At least one.
  __device__ __forceinline__ void attend_keys(const Sm90Scores<Config>& scores, Sm90KeyTiles tiles, uint32 q_smem,
                                              Sm90Softmax<Config>& softmax, float (&o)[Fragments::kOutputs]) {
    Sm90LongSum<Config> long_sum = {args};
    uint32 p[Fragments::kPairs];
    int n = tiles.end - 1;
    {
      float s[Fragments::kScores];
      smem.k_full[at.buffer()].wait(at.parity());  // k of tile n has landed
      turn.wait();
      sm90_begin_qk<Config>(s, q_smem, smem_address(smem.k[at.buffer()]));
      turn.pass();
      release_stored();
      uint32 kept[kKeptWords<Fragments::kScores>];
      scores.decide(kept, smem, at.buffer());
      uint32 bias[Sm90Scores<Config>::kBiasWords];
      const bool has_bias = scores.load_bias(bias, n);
      wgmma_wait<0>(s);
      take_products(scores, s);
      if (n == tiles.begin) release_q();
      scores.template finish<true>(s, n, has_bias, bias);
      softmax.begin(s, scores.multiplier(), p);
      scores.drop(p, kept);
    }
    if constexpr (Config::kOverlap && Config::kSpeculate) {
      uint32 p_other[Fragments::kPairs];  // p of one tile is in the products while that of the next comes into being
      for (--n;;) {
        if (n < tiles.begin) {
          finish_products(o, p);
          break;
        }
        step(scores, n, n == tiles.begin, q_smem, softmax, long_sum, o, p, p_other);
        --n;
        if (n < tiles.begin) {
          finish_products(o, p_other);
          break;
        }
        step(scores, n, n == tiles.begin, q_smem, softmax, long_sum, o, p_other, p);
        --n;
      }
    } else {
#pragma unroll 1
      for (--n; n >= tiles.begin; --n) step(scores, n, n == tiles.begin, q_smem, softmax, long_sum, o, p, p);
      finish_products(o, p);
    }
    long_sum.add_to(o);
    softmax.finish(scores.multiplier());
  }

  // o += p v of the first tile of keys, which comes last.
  __device__ __forceinline__ void finish_products(float (&o)[Fragments::kOutputs],
                                                  const uint32 (&p)[Fragments::kPairs]) {
    smem.v_full[at.buffer()].wait(at.parity());  // its v has landed
    sm90_begin_pv<Config>(o, p, smem_address(smem.v[at.buffer()]));
    wgmma_wait<0>(o);
    arrive_as_warp(smem.v_empty[at.buffer()]);
    at.advance();
  }

  // One tile of query rows.
  __device__ __forceinline__ void consume(const Sm90Work& work) {
    const WindowMask mask = sm90_mask<Config>(args.options, work);
    const Sm90KeyTiles all = key_tiles_of_rows<Config, Shape::kBlockM>(mask, work.row);
    const int first = work.row + turn.consumer * kWarpgroupRows;
    if (all.begin >= all.end) {
      store_nothing_seen<Config>(args, work, Sm90Rows::of(work, turn.consumer));
      __syncwarp();
      return;
    }
    const uint32 q_smem = smem_address(smem.q[q_at.buffer()]) + turn.consumer * kWarpgroupRows * kSwizzleBytes;
    Sm90KeyTiles own = key_tiles_of_rows<Config, kWarpgroupRows>(mask, first);
    if (own.begin >= own.end) {
      skip(all.end - all.begin);
      store_nothing_seen<Config>(args, work, Sm90Rows::of(work, turn.consumer));
      smem.q_full[q_at.buffer()].wait(q_at.parity());  // or the release could count for the tile before
      release_q();
      if (Shape::kStagesO && thread_of_group_again() == 0) {
        release_stored();
        smem.q_empty[q_at.buffer()].arrive();
      }
    } else {
      skip(all.end - own.end);
      Sm90Softmax<Config> softmax;
      float o[Fragments::kOutputs] = {};
      smem.q_full[q_at.buffer()].wait(q_at.parity());  // q has landed
      attend_keys(Sm90Scores<Config>::of(args, work, turn.consumer, mask), own, q_smem, softmax, o);
      if constexpr (Config::kMask == MaskKind::kWindow) skip(own.begin - all.begin);
      const Sm90Rows rows = Sm90Rows::of(work, turn.consumer);
      store_rows<Config>(args, work, rows, q_smem, softmax, Sm90Scores<Config>::lse_offset(args), o);
      if (rows.thread == 0) stored = q_at.buffer();
    }
    __syncwarp();
    q_at.advance();
  }

  __device__ __forceinline__ void run() {
    if constexpr (Config::kPingPong) turn.begin();
    RingPlace<kSm90WorkSlots> work_at;
    for (;;) {
      smem.work_full[work_at.buffer()].wait(work_at.parity());  // the next tile is announced
      const Sm90Work& work = smem.work[work_at.buffer()];
      if (work.sequence == Sm90Work::kNoWork) break;
      consume(work);
      arrive_as_warp(smem.work_empty[work_at.buffer()]);  // consume() ends with __syncwarp: all lanes have read it
      work_at.advance();
    }
    if (thread_of_group_again() == 0) release_stored();  // shared memory lives until the stores have read it
  }
};

// Grid: any number of blocks; they share out args.total_tiles. Warpgroup 0 loads, the others compute.
template <class Config>
__device__ void sm90_forward(const Sm90ForwardArgs& args) {
  using Shape = Sm90Shape<Config>;
  constexpr int kRegistersOfThreads =
      65536 / Shape::kThreads / 8 * 8;  // what a block gets that fills the register file
  static_assert(Config::kThreads == Shape::kThreads && Config::kBlockM == Shape::kBlockM);
  static_assert(Config::kProducerRegisters + Config::kConsumers * Config::kConsumerRegisters <=
                    (1 + Config::kConsumers) * kRegistersOfThreads,
                "taking registers would wait for ever");
  static_assert(sizeof(Sm90Storage<Config>) == Config::kSmemBytes);
  extern __shared__ __align__(kSwizzleAtom) unsigned char smem_bytes[];
  auto& smem = *reinterpret_cast<Sm90Storage<Config>*>(smem_bytes);

  if (threadIdx.x == 0) smem.init_barriers();
  __syncthreads();  // the barriers are there for all: whoever sees them may wait, arrive and load
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / kWarpgroup, 0);  // uniform register
  if (group == 0) {
    give_registers<Config::kProducerRegisters>();
    const int warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / 32, 0);
    if (warp == 0) Sm90Producer<Config>{smem, args}.run();
    if constexpr (Score<Config>::kDrops) {
      if (warp == 1) Sm90DropoutPreparer<Config>{smem, args}.run();
    }
  } else {
    take_registers<Config::kConsumerRegisters>();
    Sm90Consumer<Config>{smem, args, {group - 1}}.run();
  }
}

}  // namespace attend
