// sm90_forward: computes o = softmax(s) v and lse on Hopper's tensor cores, with every option of the interface.
//
// Shapes   q (batch, heads, seqlen_q, d), k (batch, heads_k, seqlen_k, d), v (batch, heads_k, seqlen_k, d_v), o (batch,
//          heads, seqlen_q, d_v), or packed sequences. The last stride is 1. The other strides and the addresses are
//          multiples of 16 bytes, as TMA requires. The host refuses other tensors.
// Supports float16 and bfloat16, d and d_v multiples of 8 up to 256, and every option. Requires sm_90a.
// Work     The grid has one block per multiprocessor. Each block processes tiles of kBlockM query rows, one after
//          another. In warpgroup 0 one warp loads q, k and v (sm90_producer.cuh). With dropout another warp of
//          warpgroup 0 prepares random words (sm90_random_words.cuh). Each of the kConsumers other warpgroups has 64
//          query rows. For each key tile n, a consumer warpgroup executes three steps:
//            1  Issue s = q k(n)^T and o += p(n + 1) v(n + 1). The consumers take turns to issue (Sm90Turn).
//            2  Apply score modifications and masks (sm90_scores.cuh). Work that needs no s overlaps with the products.
//            3  Compute p(n) by the online softmax, without waiting for a row maximum if possible (sm90_softmax.cuh).
//          If kOverlap is set, steps 2 and 3 overlap with o += p v. Key tiles are processed from the last to the first,
//          so masked tiles come first.
// Memory   Sm90Storage holds q and the rings of k and v in shared memory. The buffer of q later serves to store o.
// Measured in docs/hopper_forward.md.
// Called   by the backend 'sm90_forward' (src/cuda/launch/sm90_forward.cpp). If keys are in a cache (kIsCached),
//          decode() launches this kernel for sequences with many query rows (src/cuda/serving/long_rows.cpp).
// Source   Shah et al., FlashAttention-3 (2024), Algorithms 1 and 2. FlashAttention-4 (2025) introduced row maxima that
//          lag behind.
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

// State of a consumer's query rows during the loop over key tiles.
template <class Config>
struct Sm90RowState {
  const Sm90Scores<Config>& scores;
  uint32 q_smem;  // shared-memory address of the warpgroup's first row of q
  Sm90Softmax<Config>& softmax;
  Sm90LongSum<Config>& long_sum;
  float (&o)[Sm90Fragments<Config>::kOutputs];
};

// A consumer warpgroup. It has 64 query rows of each query tile of the block.
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
  Place at = {};    // position in the ring of k. Between query tiles it is also the position in the ring of v; within a
                    // query tile the position of v is one behind
  int stored = -1;  // buffer of q from which a store of o may still read, or -1. Valid only in the thread that issues
                    // stores

  // Waits until a tile of keys or values has arrived. If lanes copied the tile with cp.async, a fence makes it visible
  // to the tensor cores.
  static __device__ __forceinline__ void wait_for(Mbarrier& full, Place place) {
    full.wait(place.parity());
    if constexpr (Shape::kCopiesKeys) fence_smem_for_async();
  }

  // Waits until the store of o has finished reading its buffer, then frees the buffer for the next q. Only the thread
  // that issues stores calls it.
  __device__ __forceinline__ void release_stored() {
    if constexpr (Shape::kStagesO) {
      if (stored < 0) return;
      tma_store_wait_read();
      smem.q_empty[stored].arrive();
      stored = -1;
    }
  }
  // Frees the buffer of q after this warp's last product with q. If o is stored from the same buffer, release_stored()
  // frees it instead.
  __device__ __forceinline__ void release_q() {
    if constexpr (!Shape::kStagesO) arrive_as_warp(smem.q_empty[q_at.buffer()]);
  }

  // Reads the bias tile that was loaded together with k, and then frees the buffer of k. The product s = q k^T of the
  // tile must be complete.
  __device__ __forceinline__ void take_products(const Sm90Scores<Config>& scores, float (&s)[Fragments::kScores]) {
    if constexpr (Config::kTermsTiles) scores.add_terms_tile(s, smem_address(smem.terms[at.buffer()]));
    // All lanes must have read the bias or random words that were loaded with k, before k is released.
    if constexpr (Config::kTermsTiles || Score<Config>::kDrops) __syncwarp();
    arrive_as_warp(smem.k_empty[at.buffer()]);
  }

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

  // Issues s = q k^T for key tile n and o += p v for key tile n + 1, when this consumer has its turn. Returns the ring
  // position of that v.
  [[nodiscard]] __device__ __forceinline__ Place issue_products(RowState& rows, float (&s)[Fragments::kScores],
                                                                const uint32 (&p)[Fragments::kPairs]) {
    const Place v_at = at;
    at.advance();
    wait_for(smem.k_full[at.buffer()], at);  // k of tile n has arrived
    turn.wait();
    sm90_begin_qk<Config>(s, rows.q_smem, smem_address(smem.k[at.buffer()]));
    wait_for(smem.v_full[v_at.buffer()], v_at);  // v of tile n + 1 has arrived
    sm90_begin_pv<Config>(rows.o, p, smem_address(smem.v[v_at.buffer()]));
    turn.pass();
    return v_at;
  }

  // Prepares o for key tile n. Rescales o if the row maximum was raised, and moves long sums to memory.
  __device__ __forceinline__ void prepare_sums(RowState& rows, int n, bool rescales,
                                               const float (&factor)[kRowsOfThread]) {
    if (rescales) {
      scale_rows(rows.o, factor);
      rows.long_sum.rescale(factor);
    }
    rows.long_sum.move_to_memory(rows.o, n);
  }

  // Processes key tile n with overlap: o += p v of tile n + 1 runs during the softmax of tile n. If kSpeculate is off,
  // p_next may be the same array as p, because p_next is written after the products have read p.
  __device__ __forceinline__ void step_overlapped(RowState& rows, int place, bool is_last,
                                                  uint32 (&p)[Fragments::kPairs], uint32 (&p_next)[Fragments::kPairs]) {
    float s[Fragments::kScores];
    const Place v_at = issue_products(rows, s, p);
    uint32 kept[kKeptWords<Fragments::kScores>];
    const SeenKeyTile<Config> tile = rows.scores.tile_at(place);
    rows.scores.decide(kept, smem, at.buffer());
    uint32 terms[Sm90Scores<Config>::kTermsWords];
    const bool has_terms = rows.scores.load_terms(terms, tile.number);
    wgmma_wait<1>(s);  // s = q k^T is complete; o += p v may still run
    take_products(rows.scores, s);
    if (is_last) release_q();
    rows.scores.template finish<false>(s, tile, has_terms, terms);
    rows.scores.hide(s, smem, at.count);
    float factor[kRowsOfThread];
    const bool rescales = rows.softmax.update_under_products(s, rows.scores.multiplier(), p_next, factor);
    wgmma_wait<0>(rows.o);  // o += p v is complete, so o may be rescaled and p overwritten
    arrive_as_warp(smem.v_empty[v_at.buffer()]);
    rows.softmax.pack_late(s, p_next);
    prepare_sums(rows, place, rescales, factor);
    rows.scores.drop(p_next, kept);
  }

  // Processes key tile n without overlap: q k^T and p v are complete before the softmax of the tile starts.
  __device__ __forceinline__ void step_in_order(RowState& rows, int place, bool is_last,
                                                uint32 (&p)[Fragments::kPairs]) {
    float s[Fragments::kScores];
    const Place v_at = issue_products(rows, s, p);
    uint32 kept[kKeptWords<Fragments::kScores>];
    const SeenKeyTile<Config> tile = rows.scores.tile_at(place);
    rows.scores.decide(kept, smem, at.buffer());
    uint32 terms[Sm90Scores<Config>::kTermsWords];
    const bool has_terms = rows.scores.load_terms(terms, tile.number);
    wgmma_wait<0>(s);  // s and o are complete
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

  // Processes the key tiles at list positions n down to `begin`, with two register arrays for p. While the products of
  // one tile read one array, p of the next tile is written to the other.
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

  // Adds p v of the first key tile of the range, which is processed last.
  __device__ __forceinline__ void finish_products(RowState& rows, const uint32 (&p)[Fragments::kPairs]) {
    wait_for(smem.v_full[at.buffer()], at);  // v of that tile has arrived
    sm90_begin_pv<Config>(rows.o, p, smem_address(smem.v[at.buffer()]));
    wgmma_wait<0>(rows.o);
    arrive_as_warp(smem.v_empty[at.buffer()]);
    at.advance();
  }

  // Computes o and the softmax state of the rows over the key tiles at these list positions, from last to first. The
  // range must not be empty.
  __device__ __forceinline__ void attend_keys(const Sm90Scores<Config>& scores, Sm90KeyTiles tiles, uint32 q_smem,
                                              Sm90Softmax<Config>& softmax, float (&o)[Fragments::kOutputs]) {
    Sm90LongSum<Config> long_sum = {args, scores.work.seqlen_k};
    RowState rows = {scores, q_smem, softmax, long_sum, o};
    uint32 p[Fragments::kPairs];
    int place = tiles.end - 1;
    {  // the first iteration issues only q k^T, because there is no p yet
      float s[Fragments::kScores];
      wait_for(smem.k_full[at.buffer()], at);  // wait until k of the tile has arrived
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

  // Processes one query tile.
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
      // Without this wait, the arrival at q_empty could be counted for the previous q in this buffer.
      smem.q_full[q_at.buffer()].wait(q_at.parity());
      release_q();
      // One thread frees the buffer for all warps. Before that, every warp must have observed that this q arrived.
      // Otherwise the next q could arrive first, and a late warp would wait on the wrong phase.
      if constexpr (Shape::kStagesO) barrier_wait<kWarpgroup>(kSm90StoreBarrier + turn.consumer);
      if (Shape::kStagesO && reread_thread() == 0) {
        release_stored();
        smem.q_empty[q_at.buffer()].arrive();
      }
    } else {
      skip(all.end - seen.end);
      Sm90Softmax<Config> softmax;
      float o[Fragments::kOutputs] = {};
      smem.q_full[q_at.buffer()].wait(q_at.parity());  // q has arrived
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
      // Wait until the producer has written the next query tile.
      smem.work_full[work_at.buffer()].wait(work_at.parity());
      const Sm90Work& work = smem.work[work_at.buffer()];
      if (work.sequence == Sm90Work::kNoWork) break;
      consume(work);
      // consume() ends with __syncwarp(), so all lanes have read the query tile.
      arrive_as_warp(smem.work_empty[work_at.buffer()]);
      work_at.advance();
    }
    if (reread_thread() == 0) release_stored();  // shared memory must stay valid until the stores of o have read it
  }
};

// Computes o and lse. The grid may have any number of blocks. The blocks share args.total_tiles query tiles, or the
// number that follows from the sequence lengths on the device. Warpgroup 0 loads, and the other warpgroups compute.
template <class Config>
__device__ void sm90_forward(const Sm90ForwardArgs& args) {
  using Shape = Sm90Shape<Config>;
  constexpr int kRegistersOfThreads = 65536 / Shape::kThreads / 8 * 8;  // registers per thread if one block uses all
                                                                        // registers of an SM
  static_assert(Config::kThreads == Shape::kThreads && Config::kBlockM == Shape::kBlockM);
  static_assert(Config::kProducerRegisters + Config::kConsumers * Config::kConsumerRegisters <=
                    (1 + Config::kConsumers) * kRegistersOfThreads,
                "taking registers would wait for ever");
  static_assert(sizeof(Sm90Storage<Config>) == Config::kSmemBytes);
  extern __shared__ __align__(kSwizzleAtom) unsigned char smem_bytes[];
  auto& smem = *reinterpret_cast<Sm90Storage<Config>*>(smem_bytes);

  if (threadIdx.x == 0) smem.init_barriers();
  __syncthreads();  // the barriers are initialised, so all threads may use them
  // The shuffle places the value in a uniform register.
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
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
