// sm90_forward: o = softmax(s) v and lse, with every option of the interface, on Hopper's tensor cores.
//
// Shapes   q (batch, heads, seqlen_q, d), k (batch, heads_k, seqlen_k, d), v (batch, heads_k, seqlen_k, d_v) and o;
//          packed sequences. The last stride is 1, the others and the addresses are multiples of 16 bytes, as the copy
//          engine takes them. The host refuses others
// Supports float16 and bfloat16, d and d_v multiples of 8 up to 256, every option. sm_90a
// Work     A block has tiles of kBlockM query rows, one after the other; there are as many blocks as multiprocessors.
//          In warpgroup 0 one warp loads (sm90_producer.cuh), and if entries are dropped another prepares random words
//          (sm90_random_words.cuh). The kConsumers other warpgroups have 64 rows each. Their step for a tile n of keys:
//            1  issue s = q k(n)^T and o += p(n + 1) v(n + 1), in turns with the other consumers (Sm90Turn)
//            2  scores: modifications and masks (sm90_scores.cuh), under the products as far as they need no s
//            3  softmax: p(n), without waiting for a maximum if possible (sm90_softmax.cuh)
//          kOverlap: 2 and 3 run while o += p v does. Tiles go from the last to the first: the masked ones come first
// Memory   q, rings of k and v: Sm90Storage. o leaves from the place of its q
// Measured bf16, 16384 tokens, heads * d = 2048, H200, CUDA 13.0, TFLOP/s for S = 512, 2048, 8192, 16384
//          d  64: full 429 549 599 605, causal 271 444 558 578
//          d 128: full 515 673 748 756, causal 328 556 694 712
//          d 256: full 529 673 745 763, causal 340 596 701 740       (comparisons and reasons: docs/hopper_forward.md)
// Called   by compute 'sm90_forward': src/cuda/launch/sm90_forward.cpp. With keys in a cache (kIsCached) by decode(),
//          for sequences with many rows: src/cuda/serving/long_rows.cpp
// Source   Shah et al., FlashAttention-3 (2024), Algorithms 1 and 2; the lagging maximum: FlashAttention-4 (2025)
#pragma once

#include "../isa/setmaxnreg.cuh"
#include "sm90_epilogue.cuh"
#include "sm90_long_sum.cuh"
#include "sm90_producer.cuh"
#include "sm90_random_words.cuh"
#include "sm90_scores.cuh"
#include "sm90_softmax.cuh"
#include "sm90_turn.cuh"

namespace attend {

// What a consumer has of its rows while it walks over the tiles of keys.
template <class Config>
struct Sm90RowState {
  const Sm90Scores<Config>& scores;
  uint32 q_smem;  // the warpgroup's first row
  Sm90Softmax<Config>& softmax;
  Sm90LongSum<Config>& long_sum;
  float (&o)[Sm90Fragments<Config>::kOutputs];
};

// A consumer warpgroup: 64 query rows of each of the block's tiles.
template <class Config>
struct Sm90Consumer {
  using Shape = Sm90Shape<Config>;
  using Fragments = Sm90Fragments<Config>;
  using RowState = Sm90RowState<Config>;
  using Place = RingPlace<Config::kStages>;
  Sm90Storage<Config>& smem;
  const Sm90ForwardArgs& args;
  Sm90Turn<Config> turn;
  RingPlace<Config::kQBuffers> q_at = {};
  Place at = {};    // of k, and of v between tiles of rows; inside of one, v is one behind
  int stored = -1;  // buffer of q from which a store may still read; only in the thread that stores

  // Until a tile of keys or values is there, also for the tensor cores: what lanes copied came by another way.
  static __device__ __forceinline__ void wait_for(Mbarrier& full, Place place) {
    full.wait(place.parity());
    if constexpr (Shape::kCopiesKeys) fence_smem_for_async();
  }

  // Says that o has left the place of q. By the thread that stores.
  __device__ __forceinline__ void release_stored() {
    if constexpr (Shape::kStagesO) {
      if (stored < 0) return;
      tma_store_wait_read();
      smem.q_empty[stored].arrive();
      stored = -1;
    }
  }
  // The warp's last scores of these rows are made. If o does not take q's place, the next q may.
  __device__ __forceinline__ void release_q() {
    if constexpr (!Shape::kStagesO) arrive_as_warp(smem.q_empty[q_at.buffer()]);
  }

  // s of the tile is made. Takes what came with k, then releases k.
  __device__ __forceinline__ void take_products(const Sm90Scores<Config>& scores, float (&s)[Fragments::kScores]) {
    if constexpr (Config::kTermsTiles) scores.add_terms_tile(s, smem_address(smem.terms[at.buffer()]));
    if constexpr (Config::kTermsTiles || Score<Config>::kDrops) __syncwarp();  // all lanes have read what came with k
    arrive_as_warp(smem.k_empty[at.buffer()]);
  }

  // Tiles of keys that only other warpgroups of the block want.
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

  // Issues s = q k^T of tile n and o += p v of tile n + 1, in this consumer's turn. Returns the place of that v.
  [[nodiscard]] __device__ __forceinline__ Place issue_products(RowState& rows, float (&s)[Fragments::kScores],
                                                                const uint32 (&p)[Fragments::kPairs]) {
    const Place v_at = at;
    at.advance();
    wait_for(smem.k_full[at.buffer()], at);  // k of tile n has landed
    turn.wait();
    sm90_begin_qk<Config>(s, rows.q_smem, smem_address(smem.k[at.buffer()]));
    wait_for(smem.v_full[v_at.buffer()], v_at);  // v of tile n + 1 has landed
    sm90_begin_pv<Config>(rows.o, p, smem_address(smem.v[v_at.buffer()]));
    turn.pass();
    return v_at;
  }

  // Before tile n is added: o becomes relative to the new maximum, and long sums move to memory.
  __device__ __forceinline__ void prepare_sums(RowState& rows, int n, bool rescales,
                                               const float (&factor)[kRowsOfThread]) {
    if (rescales) {
      scale_rows(rows.o, factor);
      rows.long_sum.rescale(factor);
    }
    rows.long_sum.move_to_memory(rows.o, n);
  }

  // Tile n with overlap: o += p v of tile n + 1 runs under the softmax of tile n. Without kSpeculate p_next may be p,
  // since it is written when the products have read p.
  __device__ __forceinline__ void step_overlapped(RowState& rows, int place, bool is_last,
                                                  uint32 (&p)[Fragments::kPairs], uint32 (&p_next)[Fragments::kPairs]) {
    float s[Fragments::kScores];
    const Place v_at = issue_products(rows, s, p);
    uint32 kept[kKeptWords<Fragments::kScores>];
    const SeenKeyTile<Config> tile = rows.scores.tile_at(place);
    rows.scores.decide(kept, smem, at.buffer());
    uint32 terms[Sm90Scores<Config>::kTermsWords];
    const bool has_terms = rows.scores.load_terms(terms, tile.number);
    wgmma_wait<1>(s);  // s is there
    take_products(rows.scores, s);
    if (is_last) release_q();
    rows.scores.template finish<false>(s, tile, has_terms, terms);
    rows.scores.hide(s, smem, at.count);
    float factor[kRowsOfThread];
    const bool rescales = rows.softmax.update_under_products(s, rows.scores.multiplier(), p_next, factor);
    wgmma_wait<0>(rows.o);  // o may be scaled, p overwritten
    arrive_as_warp(smem.v_empty[v_at.buffer()]);
    rows.softmax.pack_late(s, p_next);
    prepare_sums(rows, place, rescales, factor);
    rows.scores.drop(p_next, kept);
  }

  // Tile n without overlap: both products are done before its softmax.
  __device__ __forceinline__ void step_in_order(RowState& rows, int place, bool is_last,
                                                uint32 (&p)[Fragments::kPairs]) {
    float s[Fragments::kScores];
    const Place v_at = issue_products(rows, s, p);
    uint32 kept[kKeptWords<Fragments::kScores>];
    const SeenKeyTile<Config> tile = rows.scores.tile_at(place);
    rows.scores.decide(kept, smem, at.buffer());
    uint32 terms[Sm90Scores<Config>::kTermsWords];
    const bool has_terms = rows.scores.load_terms(terms, tile.number);
    wgmma_wait<0>(s);  // s and o are there
    pin_registers(rows.o);
    take_products(rows.scores, s);
    arrive_as_warp(smem.v_empty[v_at.buffer()]);
    if (is_last) release_q();
    rows.scores.template finish<false>(s, tile, has_terms, terms);
    rows.scores.hide(s, smem, at.count);
    float factor[kRowsOfThread];
    const bool rescales = rows.softmax.update(s, rows.scores.multiplier(), p, factor);
    prepare_sums(rows, place, rescales, factor);
    rows.scores.drop(p, kept);
  }

  // The tiles at places n down to begin, with a second p: while p of a tile is in the products, that of the next tile
  // is made.
  __device__ __forceinline__ void attend_in_pairs(RowState& rows, int n, int begin, uint32 (&p)[Fragments::kPairs]) {
    uint32 p_other[Fragments::kPairs];
    for (;;) {
      if (n < begin) return finish_products(rows, p);
      step_overlapped(rows, n, n == begin, p, p_other);
      --n;
      if (n < begin) return finish_products(rows, p_other);
      step_overlapped(rows, n, n == begin, p_other, p);
      --n;
    }
  }

  // o += p v of the first tile of keys, which comes last.
  __device__ __forceinline__ void finish_products(RowState& rows, const uint32 (&p)[Fragments::kPairs]) {
    wait_for(smem.v_full[at.buffer()], at);  // its v has landed
    sm90_begin_pv<Config>(rows.o, p, smem_address(smem.v[at.buffer()]));
    wgmma_wait<0>(rows.o);
    arrive_as_warp(smem.v_empty[at.buffer()]);
    at.advance();
  }

  // o and softmax of the rows for the tiles of keys at these places, last to first. At least one.
  __device__ __forceinline__ void attend_keys(const Sm90Scores<Config>& scores, Sm90KeyTiles tiles, uint32 q_smem,
                                              Sm90Softmax<Config>& softmax, float (&o)[Fragments::kOutputs]) {
    Sm90LongSum<Config> long_sum = {args, scores.work.seqlen_k};
    RowState rows = {scores, q_smem, softmax, long_sum, o};
    uint32 p[Fragments::kPairs];
    int place = tiles.end - 1;
    {  // the first tile: there is no p v yet
      float s[Fragments::kScores];
      wait_for(smem.k_full[at.buffer()], at);  // k of tile n has landed
      turn.wait();
      sm90_begin_qk<Config>(s, q_smem, smem_address(smem.k[at.buffer()]));
      turn.pass();
      release_stored();
      uint32 kept[kKeptWords<Fragments::kScores>];
      scores.decide(kept, smem, at.buffer());
      uint32 terms[Sm90Scores<Config>::kTermsWords];
      const SeenKeyTile<Config> tile = scores.tile_at(place);
      const bool has_terms = scores.load_terms(terms, tile.number);
      wgmma_wait<0>(s);
      take_products(scores, s);
      if (place == tiles.begin) release_q();
      scores.template finish<true>(s, tile, has_terms, terms);
      scores.hide(s, smem, at.count);
      softmax.begin(s, scores.multiplier(), p);
      scores.drop(p, kept);
    }
    if constexpr (Config::kOverlap && Config::kSpeculate) {
      attend_in_pairs(rows, place - 1, tiles.begin, p);
    } else {
#pragma unroll 1
      for (--place; place >= tiles.begin; --place) {
        if constexpr (Config::kOverlap) {
          step_overlapped(rows, place, place == tiles.begin, p, p);
        } else {
          step_in_order(rows, place, place == tiles.begin, p);
        }
      }
      finish_products(rows, p);
    }
    long_sum.add_to(o);
    softmax.finish(scores.multiplier());
  }

  // One tile of query rows.
  __device__ __forceinline__ void consume(const Sm90Work& work) {
    const WindowMask mask = sm90_mask<Config>(args.options, work);
    const Sm90KeyList<Config> list = sm90_key_list<Config>(args, work);
    const Sm90KeyTiles all = places_of_block<Config>(args, list, mask, work);
    const int first = work.row + turn.consumer * kWarpgroupRows;
    if (all.begin >= all.end) {
      store_nothing_seen<Config>(args, work, Sm90Rows::of(work, turn.consumer));
      __syncwarp();
      return;
    }
    const uint32 q_smem = smem_address(smem.q[q_at.buffer()]) + turn.consumer * kWarpgroupRows * kSwizzleBytes;
    const Sm90KeyTiles seen = places_of_warpgroup<Config>(all, list, mask, work, first);
    if (seen.begin >= seen.end) {
      skip(all.end - all.begin);
      store_nothing_seen<Config>(args, work, Sm90Rows::of(work, turn.consumer));
      smem.q_full[q_at.buffer()].wait(q_at.parity());  // or the release could count for the tile before
      release_q();
      // One thread releases it for all: the next q must not land twice before a slow warp has seen that this one did.
      if constexpr (Shape::kStagesO) barrier_wait<kWarpgroup>(kSm90StoreBarrier + turn.consumer);
      if (Shape::kStagesO && reread_thread() == 0) {
        release_stored();
        smem.q_empty[q_at.buffer()].arrive();
      }
    } else {
      skip(all.end - seen.end);
      Sm90Softmax<Config> softmax;
      float o[Fragments::kOutputs] = {};
      smem.q_full[q_at.buffer()].wait(q_at.parity());  // q has landed
      attend_keys(Sm90Scores<Config>::of(args, work, turn.consumer, mask, list), seen, q_smem, softmax, o);
      if constexpr (Config::kMask == MaskKind::kWindow) skip(seen.begin - all.begin);
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
    if (reread_thread() == 0) release_stored();  // shared memory lives until the stores have read it
  }
};

// Grid: any number of blocks, which share all tiles: args.total_tiles, or as many as lengths on the device say.
// Warpgroup 0 loads, the others compute.
template <class Config>
__device__ void sm90_forward(const Sm90ForwardArgs& args) {
  using Shape = Sm90Shape<Config>;
  constexpr int kRegistersOfThreads = 65536 / Shape::kThreads / 8 * 8;  // if one block has all of a multiprocessor's
  static_assert(Config::kThreads == Shape::kThreads && Config::kBlockM == Shape::kBlockM);
  static_assert(Config::kProducerRegisters + Config::kConsumers * Config::kConsumerRegisters <=
                    (1 + Config::kConsumers) * kRegistersOfThreads,
                "taking registers would wait for ever");
  static_assert(sizeof(Sm90Storage<Config>) == Config::kSmemBytes);
  extern __shared__ __align__(kSwizzleAtom) unsigned char smem_bytes[];
  auto& smem = *reinterpret_cast<Sm90Storage<Config>*>(smem_bytes);

  if (threadIdx.x == 0) smem.init_barriers();
  __syncthreads();  // the barriers are there: all may wait, arrive and load
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / kWarpgroup, 0);  // uniform register
  if (group == 0) {
    give_registers<Config::kProducerRegisters>();
    const int warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / 32, 0);
    if (warp == 0) Sm90Producer<Config>{smem, args}.run();
    if constexpr (Score<Config>::kDrops) {
      if (warp == 1) Sm90RandomWords<Config>{smem, args}.run();
    }
    if constexpr (Config::kIsCached) {
      static_assert(!Score<Config>::kDrops);
      const auto& cached_args = static_cast<const Sm90CachedArgs&>(args);
      if (warp > 0 && warp < Shape::kKeyLoaders) Sm90CachedHelper<Config>{smem, cached_args}.run(warp);
    }
  } else {
    take_registers<Config::kConsumerRegisters>();
    Sm90Consumer<Config>{smem, args, {group - 1}}.run();
  }
}

}  // namespace attend
