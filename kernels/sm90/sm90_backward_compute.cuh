// The computing warpgroups of the sm90 backward pass. Each warpgroup has 64 keys and iterates over all query tiles that
// see these keys. It computes:
//
//   p^T = exp2(scale_log2 k q^T - lse_log2)    dp^T = v dout^T    ds^T = p^T (dp^T - delta)
//   dv += p^T dout    dk += ds^T q
//
// p and ds are scaled by powers of two (Sm90BackwardUnits). A position term (ALiBi) is added to lse or to the exponent.
// With dropout, step 1 first decides which entries of the tile are kept, and dp starts at 0 instead of -delta. In step
// 2 the dropped entries of dp become 0, and afterwards the dropped entries of p.
//
// Keys are the rows of the products. So p^T and ds^T are computed in the registers from which the tensor cores read
// them as A operands. ds is also written to shared memory, transposed, for the dq product. A warpgroup executes these
// steps for query tile i:
//   1  Read delta(i) before any product is issued, because reads of shared memory are slow while products run. Issue
//      dp(i), which starts at -delta(i).
//   2  When dp(i) has completed, compute ds(i) = p dp, and write it to registers and shared memory.
//   3  Take the token. Issue dk(i), read lse(i + 1), and signal that ds(i) is in shared memory.
//   4  When dk(i) has completed, issue s(i + 1) and dv(i).
//   5  When s(i + 1) has completed, pass the token. Compute p(i + 1) = exp2(s) in place, while dv(i) runs.
//   6  When dv(i) has completed, pack p(i + 1).
// The warpgroups pass a token to each other, so that they execute different steps at the same time. While one warpgroup
// is in steps 5, 6, 1 and 2, the products of another one occupy the tensor cores. Without the token all warpgroups
// would compute exponentials at the same time. docs/hopper_backward.md explains how the registers determine this order,
// and has measurements of other orders.
#pragma once

#include "packed_drop.cuh"
#include "sm90_backward_ds.cuh"
#include "sm90_backward_key_sums.cuh"
#include "sm90_backward_p.cuh"
#include "sm90_backward_partial.cuh"
#include "sm90_backward_products.cuh"
#include "sm90_backward_scores.cuh"
#include "sm90_backward_storage.cuh"
#include "sm90_backward_store.cuh"
#include "sm90_backward_token.cuh"
#include "sm90_backward_units.cuh"

namespace attend {

template <class Config>
class BackwardComputer {
 public:
  using Shape = BackwardShape<Config>;
  using Element = ElementOf<Config>;
  using Storage = Sm90BackwardStorage<Config>;
  using PositionTerm = BackwardPositionTerm<Config>;

  // `warpgroup` is the index among the computing warpgroups and must be uniform.
  __device__ __forceinline__ BackwardComputer(Storage& smem, const Sm90BackwardArgs& args, int warpgroup)
      : smem_(smem), args_(args), base_(MatrixDescriptor::along_rows(smem_address(&smem))), warpgroup_(warpgroup) {
    ds_place_ = ds_place(threadIdx.x);
    if constexpr (Score<Config>::kMayBeLowest) has_coarse_rows_ = uniform(static_cast<int>(*args.has_coarse_rows)) != 0;
    token().begin();
  }

  // Ends the exchange of the token. Must be called after the last work item.
  __device__ __forceinline__ void finish() { token().end(); }

  // Runs all steps of a work item, then stores dk and dv. keys_parity is the parity of the barrier phase in which k and
  // v of the item arrive.
  __device__ __forceinline__ void compute(const Sm90BackwardItem& item, uint32 keys_parity) {
    fill_zero(dk_);
    fill_zero(dv_);
    const int end = uniform(item.end);
    int step = uniform(item.begin);
    if (step == end) {
      if constexpr (kHasLoader) {
        // There is no query tile to compute, but the barrier's phase must advance once per item.
        smem_.v_full.wait(keys_parity);
        arrive_as_warp(smem_.v_empty);
      }
    }
#pragma unroll 1
    while (step < end) {
      const BackwardSegment segment = BackwardSegment::at(item, step).as_uniform();
      step = segment.step_end;
      rules_ = rules_of_head<Config>(args_, item, segment.head);
      number_end_ = number_ + static_cast<uint32>(segment.tile_end - segment.tile);
      first_tile_ = uniform(segment.tile - static_cast<int>(number_));
      masked_ = MaskedTiles::of<Config>(args_, item, first_key(item), segment.tile, number_, number_end_);
      compute_head(item, kSkipsTiles<Config> ? skipped_tiles(item, segment.tile) : 0, step == end, keys_parity);
    }
    store(item);
  }

 private:
  // Whether a separate warpgroup loads tiles. If so, this warpgroup must release buffers for it.
  static constexpr bool kHasLoader = Shape::kTile.is_persistent;

  [[nodiscard]] static __device__ __forceinline__ int lane_of_warpgroup() {
    return static_cast<int>(threadIdx.x % kWarpgroup);
  }
  // Returns the same value as lane_of_warpgroup(). It is recomputed at each use, so that values derived from it occupy
  // no registers between uses.
  [[nodiscard]] static __device__ __forceinline__ int recomputed_lane() {
    return static_cast<int>(recomputed(threadIdx.x) % kWarpgroup);
  }
  [[nodiscard]] __device__ __forceinline__ BackwardToken<Config> token() const {
    return {warpgroup_};
  }

  // Returns the buffer of the query tile with this number. Numbers count tiles through all work items. A number may
  // wrap around, because the number of buffers is a power of two.
  [[nodiscard]] static __device__ __forceinline__ uint32 stage_of(uint32 number) {
    return number % Config::kStages;
  }
  [[nodiscard]] static __device__ __forceinline__ uint32 parity_of(uint32 number) {
    return number / Config::kStages & 1;
  }
  // Returns the shared-memory address to which this thread writes ds in the first buffer. The thread writes a 16-byte
  // row of a transposed 8 x 8 matrix.
  [[nodiscard]] __device__ __forceinline__ uint32 ds_place(uint32 thread) const {
    const uint32 row = thread % 32 / 16 * 8 + thread % 8;  // query row
    const uint32 piece = thread % kWarpgroup / 32 * 2 + thread / 8 % 2;
    // This expression equals swizzled_offset() for a single panel.
    return smem_address(smem_.ds[0][warpgroup_]) + row * kSwizzleBytes + (piece ^ row % 8) * 16;
  }
  // Waits until the dq product has read the previous tile from this buffer of ds. Afterwards the buffer may be
  // overwritten.
  __device__ __forceinline__ void wait_for_ds_buffer() {
    smem_.ds_empty[number_ % Config::kDsBuffers].wait(number_ / Config::kDsBuffers & 1 ^ 1);
  }

  // Computes the query tiles of one query head up to number_end_. The first `skipped` tiles (0 or 1) are left out.
  __device__ __forceinline__ void compute_head(const Sm90BackwardItem& item, int skipped, bool is_last_head,
                                               uint32 keys_parity) {
    if constexpr (kSkipsTiles<Config>) {
      if (skipped != 0) skip_tile();
      number_ += static_cast<uint32>(skipped);
    }
    if (number_ != number_end_) {
      compute_tiles(item, is_last_head, keys_parity);
    } else if (kHasLoader && is_last_head) {
      arrive_as_warp(smem_.v_empty);
    }
    number_ = number_end_;
  }

  // Computes query tiles number_ to number_end_ - 1. There is at least one.
  __device__ __forceinline__ void compute_tiles(const Sm90BackwardItem& item, bool is_last_head, uint32 keys_parity) {
    smem_.k_full.wait(keys_parity);                            // wait until k has arrived
    smem_.q_full[stage_of(number_)].wait(parity_of(number_));  // wait until q and lse of the tile have arrived
    read_row_statistics(lse_, smem_.lse_log2[stage_of(number_)]);
    read_seen(stage_of(number_));
    add_position_term(item, number_);
    wgmma_fence();
    issue_s();
    wait_for_ds_buffer();
    smem_.v_full.wait(keys_parity);  // wait until v has arrived
    wgmma_wait<0>(s_);
    exponentials(item);
    pack_p();
#pragma unroll 1
    while (number_ + 1 < number_end_) {
      compute_dk(item);  // steps 1, 2 and 3
      wgmma_fence();
      const uint32 stage = stage_of(number_++);
      issue_s();  // step 4 starts
      issue_dv(stage);
      read_seen(stage_of(number_));
      wgmma_wait<1>(s_);  // step 5: s may be read while dv still runs
      token().pass();
      exponentials(item);
      if constexpr (!Score<Config>::kTransforms) pin_registers(s_);
      // The next ds needs this buffer, so the thread waits for it here. The wait contains a branch. Without a branch,
      // ptxas moves the exponentials behind wgmma_wait<0>.
      wait_for_ds_buffer();
      wgmma_wait<0>(dv_);
      if constexpr (kHasLoader) arrive_as_warp(smem_.dout_empty[stage_of(number_ - 1)]);
      pack_p();
    }
    compute_last_dk(item, is_last_head);
    wgmma_fence();
    issue_dv(stage_of(number_));
    token().pass();
    wgmma_wait<0>(dv_);
    pin_registers(dk_);
    if constexpr (kHasLoader) arrive_as_warp(smem_.dout_empty[stage_of(number_)]);
  }

  // Runs steps 1 to 3 of a query tile, unless it is the last one of the head.
  __device__ __forceinline__ void compute_dk(const Sm90BackwardItem& item) {
    const uint32 stage = stage_of(number_);
    compute_dp(item, stage);
    store_ds(smem_.delta[stage]);
    smem_.q_full[stage_of(number_ + 1)].wait(parity_of(number_ + 1));  // wait until the next q has arrived
    token().take();
    issue_dk(stage);
    read_row_statistics(lse_, smem_.lse_log2[stage_of(number_ + 1)]);
    announce_ds();
    add_position_term(item, number_ + 1);
    finish_dk(stage);
  }

  // Runs steps 1 to 3 of a head's last query tile. There is no next tile whose lse it must read.
  __device__ __forceinline__ void compute_last_dk(const Sm90BackwardItem& item, bool is_last_head) {
    const uint32 stage = stage_of(number_);
    compute_dp(item, stage);
    if (kHasLoader && is_last_head) arrive_as_warp(smem_.v_empty);
    store_ds(smem_.delta[stage]);
    token().take();
    issue_dk(stage);
    announce_ds();
    finish_dk(stage);
  }

  // Issues the product s = k q^T of query tile number_.
  __device__ __forceinline__ void issue_s() {
    begin_scores<Config, Config::kHeadDim>(s_, keys(smem_.k), along_rows(q_tile(stage_of(number_))));
  }
  __device__ __forceinline__ void issue_dv(uint32 stage) {
    begin_gradient<Config, Shape::kDepthV>(dv_, p_, down_columns(dout_tile(stage)));
  }
  // Runs step 1: computes dp, which starts at -delta, or at 0 with dropout.
  __device__ __forceinline__ void compute_dp(const Sm90BackwardItem& item, uint32 stage) {
    smem_.dout_full[stage].wait(parity_of(number_));  // wait until dout and delta have arrived
    if constexpr (Score<Config>::kDrops) {
      decide(item);
      wgmma_fence();
      begin_scores<Config, Config::kHeadDimV>(dp_, keys(smem_.v), along_rows(dout_tile(stage)));
    } else {
      begin_at_minus_delta(smem_.delta[stage]);
      wgmma_fence();
      add_scores<Config, Config::kHeadDimV>(dp_, keys(smem_.v), along_rows(dout_tile(stage)));
    }
    wgmma_wait<0>(dp_);
  }
  __device__ __forceinline__ void issue_dk(uint32 stage) {
    wgmma_fence();
    begin_gradient<Config, Shape::kDepth>(dk_, ds_, down_columns(q_tile(stage)));
  }
  __device__ __forceinline__ void finish_dk(uint32 stage) {
    wgmma_wait<0>(dk_);
    if constexpr (kHasLoader) arrive_as_warp(smem_.q_empty[stage]);
  }
  // Signals that this warp has stored its ds. When all warps have arrived, the tensor cores may read ds for dq.
  __device__ __forceinline__ void announce_ds() {
    fence_smem_for_async();
    __syncwarp();
    arrive_as_warp(smem_.ds_full[number_ % Config::kDsBuffers][warpgroup_]);
  }

  // Handles a query tile whose rows see none of this warpgroup's keys. Waits and arrives at the same barriers as for
  // other tiles, but computes nothing.
  __device__ __forceinline__ void skip_tile() {
    const uint32 stage = stage_of(number_);
    smem_.q_full[stage].wait(parity_of(number_));
    smem_.dout_full[stage].wait(parity_of(number_));
    wait_for_ds_buffer();
    token().take();
    token().pass();
    arrive_as_warp(smem_.ds_full[number_ % Config::kDsBuffers][warpgroup_]);
    if constexpr (kHasLoader) {
      arrive_as_warp(smem_.q_empty[stage]);
      arrive_as_warp(smem_.dout_empty[stage]);
    }
  }

  // Returns 1 if the rows of the first query tile see none of this warpgroup's keys, otherwise 0. The dq warpgroup
  // skips the same tiles.
  [[nodiscard]] __device__ __forceinline__ int skipped_tiles(const Sm90BackwardItem& item, int tile) const {
    const BackwardBand band = BackwardBand::of<Config>(args_.options);
    return uniform(warpgroup_ == 1 && item.is_above_band(band, tile, 1) ? 1 : 0);
  }

  // Returns the descriptor of a tile at byte offset `bytes` in the storage. All descriptors are computed from one
  // descriptor by additions. This is possible because address and stride are separate fields and a shared memory
  // address never overflows its field.
  [[nodiscard]] __device__ __forceinline__ MatrixDescriptor along_rows(uint32 bytes) const {
    return base_.advance(bytes);
  }
  [[nodiscard]] __device__ __forceinline__ MatrixDescriptor down_columns(uint32 bytes) const {
    const uint64 stride =
        MatrixDescriptor::down_columns(0, Shape::kPanelBytesM).bits - MatrixDescriptor::along_rows(0).bits;
    return {base_.advance(bytes).bits + stride};
  }
  [[nodiscard]] __device__ __forceinline__ uint32 offset_of(const void* place) const {
    return smem_address(place) - smem_address(&smem_);
  }
  [[nodiscard]] __device__ __forceinline__ uint32 q_tile(uint32 stage) const {
    return offset_of(smem_.q) + stage * static_cast<uint32>(sizeof(smem_.q[0]));
  }
  [[nodiscard]] __device__ __forceinline__ uint32 dout_tile(uint32 stage) const {
    return offset_of(smem_.dout) + stage * static_cast<uint32>(sizeof(smem_.dout[0]));
  }
  // Returns the descriptor of this warpgroup's first row of k or v. The offset `zero` is always 0, but the compiler
  // cannot prove that. This stops ptxas from keeping the descriptors in registers from tile to tile.
  [[nodiscard]] __device__ __forceinline__ MatrixDescriptor keys(const Bits16* tensor) const {
    const uint32 zero = kHasLoader ? (number_ >> 31) * kSwizzleAtom : 0;
    return along_rows(offset_of(tensor) + static_cast<uint32>(warpgroup_) * (kWarpgroupRows * kSwizzleBytes) + zero);
  }

  // Initialises dp to -delta, so that the product adds to it. Thus delta needs no registers in addition to those of p
  // and dp.
  __device__ __forceinline__ void begin_at_minus_delta(const float* stats) {
    float delta[16];
    read_row_statistics(delta, stats);
#pragma unroll
    for (int i = 0; i < 32; ++i) dp_[i] = -delta[backward_statistic(i)];
  }

  // Turns s into p. Hidden entries become 0, even if they held NaN. The branch of mask() must directly follow
  // token().pass(), because ptxas delays that arrival until the next branch, which would delay the next warpgroup. When
  // the branch followed the exponentials, the kernel was 8 to 20 % slower.
  __device__ __forceinline__ void exponentials(const Sm90BackwardItem& item) {
    if constexpr (Score<Config>::kTransforms) return transformed_exponentials(item);
    mask(item, unseen());
    if constexpr (Score<Config>::kIsCustom) return custom_exponentials(item);
    PositionTerm term = {rules_.slope, 0.0f};
    if constexpr (PositionTerm::kIsOn && !PositionTerm::kIsLinear) term = position_term(item, number_);
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      s_[i] = exp2_fast(term.exponent(i, s_[i], args_.scale_log2, lse_[backward_statistic(i)]));
    }
  }
  // Computes p of scores with a transform. Also computes p times a quarter of the transform's derivative. This product
  // overwrites the registers of lse, which is read again after the next ds.
  __device__ __forceinline__ void transformed_exponentials(const Sm90BackwardItem& item) {
    if (is_masked()) {
      pin_registers(s_);  // otherwise the compiler would move the common code of both branches before the branch
      make_reciprocals(s_, args_.transform);
      mask(item, kUnseenReciprocal);
      probabilities_of_reciprocals<Element>(next_p_, sloped_p_, s_, lse_, args_.transform);
    } else {
      make_reciprocals(s_, args_.transform);
      probabilities_of_reciprocals<Element>(next_p_, sloped_p_, s_, lse_, args_.transform);
    }
    pin_registers(next_p_);
    pin_registers(sloped_p_);
  }
  // Computes p of a custom score. A custom score may return any value for hidden entries, so p must be masked as well.
  // Only the few tiles with hidden entries mask p, which saves two instructions per entry in all other tiles.
  __device__ __forceinline__ void custom_exponentials(const Sm90BackwardItem& item) {
    static_assert(!Score<Config>::kHasSlopes);  // there are no registers for derivatives of the score
    TileRules<Config> tile = rules_of_tile(item);
    if (CustomScoreCode::kHolds && uniform(tile.template hold<kBackwardRows, kWarpgroupRows>())) {
      custom_probabilities<true>(s_, lse_, tile, args_.base.scale, recomputed_lane());
    } else {
      custom_probabilities<false>(s_, lse_, tile, args_.base.scale, recomputed_lane());
    }
    mask(item, 0.0f);
    if constexpr (Score<Config>::kMayBeLowest) {
      if (has_coarse_rows_) divide_by_sums(item);
    }
  }
  // Divides p by the row's sum of p if lse of the row is coarse. lse_rounding.cuh explains why.
  __device__ __forceinline__ void divide_by_sums(const Sm90BackwardItem& item) {
    const auto head = static_cast<int>(rules_.place.head);
    const float* sums = args_.log2_sums + backward_stats_row(args_, item, head, tile_of_rows(number_));
#pragma unroll
    for (int i = 0; i < 16; i += 4) {
      const float4 of_rows = *reinterpret_cast<const float4*>(sums + recomputed_lane() % 4 * 4 + i * 4);
      const float log2_sum[4] = {of_rows.x, of_rows.y, of_rows.z, of_rows.w};
#pragma unroll
      for (int n = 0; n < 32; ++n) {
        const int statistic = backward_statistic(n) - i;
        if (statistic >= 0 && statistic < 4) s_[n] *= exp2_fast(-log2_sum[statistic]);
      }
    }
  }
  [[nodiscard]] __device__ __forceinline__ PositionTerm position_term(const Sm90BackwardItem& item,
                                                                      uint32 number) const {
    return PositionTerm::of(rules_, item, tile_of_rows(number), first_key(item), recomputed_lane());
  }
  // Adds the position term to lse_, which must hold lse of query tile `number`.
  __device__ __forceinline__ void add_position_term(const Sm90BackwardItem& item, uint32 number) {
    if constexpr (PositionTerm::kIsOn && PositionTerm::kIsLinear) position_term(item, number).add_to_rows(lse_);
  }

  // Returns whether some row of the query tile does not see all of this warpgroup's keys.
  [[nodiscard]] __device__ __forceinline__ bool is_masked() const {
    if (has_block_mask<Config>() && pattern_ != kAllSeen) return true;
    return masked_.has<Config>(number_, number_end_);
  }
  // Sets hidden entries to the value of the argument `hidden`.
  __device__ __forceinline__ void mask(const Sm90BackwardItem& item, float hidden) {
    if (masked_.has<Config>(number_, number_end_)) {
      mask_scores<Config>(s_, item, BackwardBand::of<Config>(args_.options), tile_of_rows(number_), first_key(item),
                          hidden);
    }
    if constexpr (has_block_mask<Config>()) {
      if (pattern_ != kAllSeen) hide_unseen(s_, seen_, hidden);
    }
  }
  // Reads which scores of the query tile in buffer `stage` are visible, if there is a block mask. The read overlaps
  // with the products s and dv. An earlier call, before ds is complete, would delay dq.
  __device__ __forceinline__ void read_seen(uint32 stage) {
    if constexpr (has_block_mask<Config>()) {
      if constexpr (Score<Config>::kIsCustom) row_tile_ = uniform(smem_.seen.of_stage[stage].number());
      pattern_ = smem_.seen.of_stage[stage].pattern(warpgroup_);
      seen_ = 0;
      if (pattern_ < 0) return;
      seen_ = __ldg(args_.options.block_mask.patterns + int64{pattern_} * kPatternWords + recomputed_lane());
    }
  }
  // Returns the infinity whose sign makes p 0. scale_log2 is never 0.
  [[nodiscard]] __device__ __forceinline__ float unseen() const {
    return -kInfinity * args_.scale_log2;
  }

  __device__ __forceinline__ void pack_p() {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      p_[i] = Score<Config>::kTransforms ? next_p_[i] ^ (number_ >> 31) : Element::pack(s_[2 * i], s_[2 * i + 1]);
    }
    pin_registers(p_);
  }

  // Writes ds of the tile to registers and shared memory. With dropout, it then sets the dropped entries of p to 0 for
  // the dv product.
  __device__ __forceinline__ void store_ds(const float* stats) {
    const uint32 place = Score<Config>::kTransforms ? ds_place(recomputed(threadIdx.x)) : ds_place_;
    const uint32 to = place + number_ % Config::kDsBuffers * static_cast<uint32>(sizeof(smem_.ds[0]));
    if constexpr (Score<Config>::kDrops) {
      make_kept_ds<Config>(ds_, to, p_, dp_, kept_[0], stats);
      drop_pairs<32>(p_, kept_);
    } else {
      make_ds<Config>(ds_, to, Score<Config>::kTransforms ? sloped_p_ : p_, dp_);
    }
    pin_registers(p_);
    pin_registers(ds_);
  }

  // Returns the first key of this warpgroup.
  [[nodiscard]] __device__ __forceinline__ int first_key(const Sm90BackwardItem& item) const {
    return item.key + warpgroup_ * kWarpgroupRows;
  }
  // Returns the index of the query tile in the head, for the tile with this number.
  [[nodiscard]] __device__ __forceinline__ int tile_of_rows(uint32 number) const {
    if constexpr (has_block_mask<Config>() && Score<Config>::kIsCustom) return row_tile_;
    if constexpr (has_block_mask<Config>()) return uniform(smem_.seen.of_stage[stage_of(number)].number());
    return first_tile_ + static_cast<int>(number);
  }
  [[nodiscard]] __device__ __forceinline__ TileRules<Config> rules_of_tile(const Sm90BackwardItem& item) const {
    return rules_.tile(int64{tile_of_rows(number_)} * kBackwardRows, first_key(item));
  }
  // Decides which entries of the tile dropout keeps. No products run meanwhile, because their results need the same
  // registers.
  __device__ __forceinline__ void decide(const Sm90BackwardItem& item) {
    kept_bits_transposed<32>(rules_of_tile(item), kept_, recomputed_lane());
  }

  // Writes dk and dv to memory, or adds them to sums in memory. If a work item is split between two thread blocks, the
  // block with the later steps stores float sums. The block with the first steps adds these sums to its own.
  __device__ __forceinline__ void store(const Sm90BackwardItem& item) {
    if constexpr (Config::kAddsUp) {
      if (item.begin < item.end) BackwardKeySums<Config>::add(args_, item, warpgroup_, dk_, dv_);
      return;
    }
    if constexpr (Sm90BackwardList<Config>::kLeavesSums) {
      const BackwardPartialSums<Config> partial = {args_, warpgroup_};
      if (item.partial_out >= 0) return partial.leave(item.partial_out, dk_, dv_);
      if (item.partial_in >= 0) partial.add(item.partial_in, dk_, dv_);
    }
    const int row = first_key(item) + lane_of_warpgroup() / 32 * 16;
    store_key_gradients<Config>(args_, dk_, dv_, item.span().keys(), item.head_k, row, item.seqlen_k - row);
  }

  Storage& smem_;
  const Sm90BackwardArgs& args_;
  MatrixDescriptor base_;  // descriptor of the start of shared memory
  int warpgroup_;
  uint32 ds_place_;        // result of ds_place(); not used with a transform, which recomputes the address
  uint32 number_ = 0;      // number of the current query tile, counted through all items; it determines the tile's
                           // buffers and their parities
  uint32 number_end_ = 0;  // number of the head's last tile, plus one
  int first_tile_ = 0;     // the query tile with number n has index first_tile_ + n in the head
  MaskedTiles masked_ = {};
  int row_tile_ = 0, pattern_ = kAllSeen;  // index and pattern of the current query tile, used with a block mask
  uint32 seen_ = 0;                        // one bit for each score of this thread, set if the score is visible. Used
                                           // with a block mask
  float dk_[Shape::kDepth / 2], dv_[Shape::kDepthV / 2];
  float s_[32];  // s, which is later overwritten by p. With a transform, the reciprocals r overwrite s
  float dp_[32];
  uint32 p_[16], ds_[16];
  // p of the next tile, and p times a quarter of the derivative. Used with a transform.
  uint32 next_p_[16], sloped_p_[16];
  float lse_[16];
  uint32 kept_[kKeptWords<32>] = {};  // one bit for each entry of the tile, set if dropout keeps the entry
  ScoreRules<Config> rules_ = {};     // score modifications of the head; members that no modification reads occupy no
                                      // registers
  bool has_coarse_rows_ = false;      // whether any row of the launch has a coarse lse (lse_rounding.cuh). Used if
                                      // kMayBeLowest is set
};

}  // namespace attend
