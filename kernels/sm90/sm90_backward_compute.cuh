// The computing warpgroups of the sm90 backward pass: 64 keys each, over all query tiles that see them.
//
//   p^T = exp2(scale_log2 k q^T - lse_log2)    dp^T = v dout^T    ds^T = p^T (dp^T - delta)
//   dv += p^T dout    dk += ds^T q
//
// p and ds are too large by powers of two, Sm90BackwardUnits. ALiBi's part of a score is added beside lse. Dropout
// decides on a tile before step 1, keeps delta out of dp, and takes what it drops out of dp in step 2 and out of p
// behind it.
// Keys are rows of the products, so that p^T and ds^T are A operands in registers, as they come. ds also goes to shared
// memory, transposed, for dq. Tile i; | all products drained:
//   1  issue dp(i), which starts as -delta(i): read before it, since reads of shared memory starve beside products
//   2  | ds(i) = p dp, to registers and shared memory
//   3  take the token; issue dk(i); read lse(i + 1); announce ds(i)
//   4  | issue s(i + 1) and dv(i)
//   5  s(i + 1) done: pass the token; p(i + 1) = exp2(s) in place, beside dv(i)
//   6  | pack p(i + 1)
// The token goes round the warpgroups and keeps their phases apart, so that one has products for the tensor cores while
// another is in 5, 6, 1 and 2: without it they fall into step, and both wait for their exponentials.
// docs/hopper_backward.md has the budget of registers, which decides this order, and what others gave.
#pragma once

#include "../attention/online_softmax.cuh"
#include "../isa/stmatrix.cuh"
#include "../isa/thread_barrier.cuh"
#include "fast_dropout.cuh"
#include "sm90_backward_key_sums.cuh"
#include "sm90_backward_partial.cuh"
#include "sm90_backward_products.cuh"
#include "sm90_backward_scores.cuh"
#include "sm90_backward_storage.cuh"
#include "sm90_backward_store.cuh"
#include "sm90_backward_units.cuh"

namespace attend {

template <class Config>
class BackwardComputer {
 public:
  using Shape = BackwardShape<Config>;
  using Element = ElementOf<Config>;
  using Storage = Sm90BackwardStorage<Config>;
  using Alibi = BackwardPositionTerm<Config>;

  // warpgroup: of those that compute; uniform.
  __device__ __forceinline__ BackwardComputer(Storage& smem, const Sm90BackwardArgs& args, int warpgroup)
      : smem_(smem), args_(args), base_(MatrixDescriptor::along_rows(smem_address(&smem))), warpgroup_(warpgroup) {
    const uint32 thread = threadIdx.x;
    const uint32 row = thread % 32 / 16 * 8 + thread % 8;  // of queries
    const uint32 piece = thread % kWarpgroup / 32 * 2 + thread / 8 % 2;
    // swizzled_offset(), of what fits one panel
    ds_place_ = smem_address(smem.ds[0][warpgroup]) + row * kSwizzleBytes + (piece ^ row % 8) * 16;
    if (warpgroup == Shape::kWarpgroups - 1) thread_barrier_arrive(token_id(0), 2 * kWarpgroup);
  }

  // After the last item: takes back the token that the last warpgroup passed on.
  __device__ __forceinline__ void finish() {
    if (warpgroup_ == 0) thread_barrier_sync(token_id(0), 2 * kWarpgroup);
  }

  // dk and dv of an item, all its steps, to memory. keys_parity: of the phase in which its k and v come.
  __device__ __forceinline__ void compute(const Sm90BackwardItem& item, uint32 keys_parity) {
    fill_zero(dk_);
    fill_zero(dv_);
    const int end = uniform(item.end);
    int step = uniform(item.begin);
    if (step == end) {
      if constexpr (kHasLoader) {
        smem_.v_full.wait(keys_parity);  // keeps the phase
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
      compute_head(item, kSkipsTiles ? skipped_tiles(item, segment.tile) : 0, step == end, keys_parity);
    }
    store(item);
  }

 private:
  static constexpr bool kHasLoader = Shape::kTile.is_persistent;  // it waits for buffers to be released
  static constexpr bool kSkipsTiles = kHasLoader && Config::kMask != MaskKind::kFull;
  // ds as a product of pairs: dp - delta is rounded before it, which makes errors of dq and dk 15 % larger. At 64
  // columns arithmetic limits the kernel (3 % faster), at 128 it does not. Not with dropout: all entries of a row that
  // are dropped have the same -delta, so that its rounding would add up in dq.
  static constexpr bool kPacksDs = !kHasLoader && Config::kElement == ElementType::kBF16 && !Score<Config>::kDrops;
  static constexpr Sm90BackwardUnits kUnits = sm90_backward_units(Config::kElement);
  static constexpr int kTokenId = 8;  // named barriers 8, 9, ...

  [[nodiscard]] static __device__ __forceinline__ int lane_of_warpgroup() {
    return static_cast<int>(threadIdx.x % kWarpgroup);
  }
  // The same, where what follows from it would else be kept in registers that are wanted elsewhere.
  [[nodiscard]] static __device__ __forceinline__ int recomputed_lane() {
    return static_cast<int>(recomputed(threadIdx.x) % kWarpgroup);
  }
  [[nodiscard]] static __device__ __forceinline__ int token_id(int warpgroup) {
    return kTokenId + warpgroup;
  }
  __device__ __forceinline__ void take_token() {
    thread_barrier_sync(token_id(warpgroup_), 2 * kWarpgroup);
  }
  __device__ __forceinline__ void pass_token() {
    const int next = warpgroup_ + 1;
    thread_barrier_arrive(token_id(next == Shape::kWarpgroups ? 0 : next), 2 * kWarpgroup);
  }

  // The buffers of the tile that is numbered `number` through all items: every power of two of them goes round.
  [[nodiscard]] static __device__ __forceinline__ uint32 stage_of(uint32 number) {
    return number % Config::kStages;
  }
  [[nodiscard]] static __device__ __forceinline__ uint32 parity_of(uint32 number) {
    return number / Config::kStages & 1;
  }
  __device__ __forceinline__ void wait_for_ds_buffer() {  // until dq of the tile before in this buffer has read it
    smem_.ds_empty[number_ % Config::kDsBuffers].wait(number_ / Config::kDsBuffers & 1 ^ 1);
  }

  // The tiles of one query head, up to number_end_, but for the first `skipped`: 0 or 1.
  __device__ __forceinline__ void compute_head(const Sm90BackwardItem& item, int skipped, bool is_last_head,
                                               uint32 keys_parity) {
    if constexpr (kSkipsTiles) {
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

  // Tiles number_ to number_end_, at least one.
  __device__ __forceinline__ void compute_tiles(const Sm90BackwardItem& item, bool is_last_head, uint32 keys_parity) {
    smem_.k_full.wait(keys_parity);                            // k has landed
    smem_.q_full[stage_of(number_)].wait(parity_of(number_));  // q and lse of the tile have
    read_statistics(lse_, smem_.lse_log2[stage_of(number_)]);
    add_alibi(item, number_);
    wgmma_fence();
    begin_scores<Config, Config::kHeadDim>(s_, keys(smem_.k), along_rows(q_tile(stage_of(number_))));
    wait_for_ds_buffer();
    smem_.v_full.wait(keys_parity);  // v has landed
    wgmma_wait<0>(s_);
    exponentials(item);
    pack_p();
#pragma unroll 1
    while (number_ + 1 < number_end_) {
      first_half<false>(item, is_last_head);  // 1, 2, 3
      wgmma_fence();
      const uint32 stage = stage_of(number_++);
      begin_scores<Config, Config::kHeadDim>(s_, keys(smem_.k), along_rows(q_tile(stage_of(number_))));
      begin_gradient<Config, Shape::kDepthV>(dv_, p_, down_columns(dout_tile(stage)));
      wgmma_wait<1>(s_);  // 5: s may be read, dv is under way
      pass_token();
      exponentials(item);
      pin_registers(s_);
      // For the next ds. The wait is here since it is a branch: without one ptxas moves the exponentials behind the
      // drain.
      wait_for_ds_buffer();
      wgmma_wait<0>(dv_);
      if constexpr (kHasLoader) arrive_as_warp(smem_.dout_empty[stage_of(number_ - 1)]);
      pack_p();
    }
    first_half<true>(item, is_last_head);
    wgmma_fence();
    begin_gradient<Config, Shape::kDepthV>(dv_, p_, down_columns(dout_tile(stage_of(number_))));
    pass_token();
    wgmma_wait<0>(dv_);
    pin_registers(dk_);
    if constexpr (kHasLoader) arrive_as_warp(smem_.dout_empty[stage_of(number_)]);
  }

  // Steps 1 to 3. kIsLast: of its head; the next tile has its own start.
  template <bool kIsLast>
  __device__ __forceinline__ void first_half(const Sm90BackwardItem& item, bool is_last_head) {
    const uint32 stage = stage_of(number_);
    smem_.dout_full[stage].wait(parity_of(number_));  // dout and delta have landed
    if constexpr (Score<Config>::kDrops) {
      decide(item);
    } else {
      begin_at_minus_delta(smem_.delta[stage]);
    }
    wgmma_fence();
    if constexpr (Score<Config>::kDrops) {
      begin_scores<Config, Config::kHeadDimV>(dp_, keys(smem_.v), along_rows(dout_tile(stage)));
    } else {
      add_scores<Config, Config::kHeadDimV>(dp_, keys(smem_.v), along_rows(dout_tile(stage)));
    }
    wgmma_wait<0>(dp_);
    if (kHasLoader && kIsLast && is_last_head) arrive_as_warp(smem_.v_empty);
    store_ds(smem_.delta[stage]);
    if constexpr (!kIsLast) smem_.q_full[stage_of(number_ + 1)].wait(parity_of(number_ + 1));  // the next q has landed
    take_token();
    wgmma_fence();
    begin_gradient<Config, Shape::kDepth>(dk_, ds_, down_columns(q_tile(stage)));
    if constexpr (!kIsLast) read_statistics(lse_, smem_.lse_log2[stage_of(number_ + 1)]);
    fence_smem_for_async();  // ds is for the tensor cores
    __syncwarp();
    arrive_as_warp(smem_.ds_full[number_ % Config::kDsBuffers][warpgroup_]);
    if constexpr (!kIsLast) add_alibi(item, number_ + 1);
    wgmma_wait<0>(dk_);
    if constexpr (kHasLoader) arrive_as_warp(smem_.q_empty[stage]);
  }

  // A tile whose rows see none of this warpgroup's keys: keeps step with the others and uses nothing.
  __device__ __forceinline__ void skip_tile() {
    const uint32 stage = stage_of(number_);
    smem_.q_full[stage].wait(parity_of(number_));
    smem_.dout_full[stage].wait(parity_of(number_));
    wait_for_ds_buffer();
    take_token();
    pass_token();
    arrive_as_warp(smem_.ds_full[number_ % Config::kDsBuffers][warpgroup_]);
    if constexpr (kHasLoader) {
      arrive_as_warp(smem_.q_empty[stage]);
      arrive_as_warp(smem_.dout_empty[stage]);
    }
  }

  // 1 if the first tile's rows see none of this warpgroup's keys, else 0. dq does likewise.
  [[nodiscard]] __device__ __forceinline__ int skipped_tiles(const Sm90BackwardItem& item, int tile) const {
    const BackwardBand band = BackwardBand::of<Config>(args_.options);
    return uniform(warpgroup_ == 1 && item.is_above_band(band, tile, 1) ? 1 : 0);
  }

  // A tile `bytes` behind the start of shared memory. All descriptors follow from one by additions: address and stride
  // have fields of their own, and shared memory ends before the address field does.
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
  // This warpgroup's first row of k or v. What is added is 0, but the compiler does not know that: it computes what
  // follows anew in each tile, instead of keeping it in registers that are wanted elsewhere.
  [[nodiscard]] __device__ __forceinline__ MatrixDescriptor keys(const Bits16* tensor) const {
    const uint32 nothing = kHasLoader ? (number_ >> 31) * kSwizzleAtom : 0;
    return along_rows(offset_of(tensor) + static_cast<uint32>(warpgroup_) * (kWarpgroupRows * kSwizzleBytes) + nothing);
  }

  // The 16 of the tile's rows that this thread's columns of the products belong to.
  __device__ __forceinline__ void read_statistics(float (&x)[16], const float* stats) {
#pragma unroll
    for (int i = 0; i < 4; ++i) read_statistics(*reinterpret_cast<float(*)[4]>(x + 4 * i), stats, i);
  }
  // Four of them: statistics 4 i to 4 i + 3.
  __device__ __forceinline__ void read_statistics(float (&x)[4], const float* stats, int i) {
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
                 : "r"(smem_address(stats) + threadIdx.x % 4 * 16 + i * 64));
  }

  // dp starts as -delta: the product adds to it, and no registers hold delta beside p and dp.
  __device__ __forceinline__ void begin_at_minus_delta(const float* stats) {
    float delta[16];
    read_statistics(delta, stats);
#pragma unroll
    for (int i = 0; i < 32; ++i) dp_[i] = -delta[backward_statistic(i)];
  }

  // s becomes p; entries that are not seen become 0, whatever stood there. The branch stands first, right behind the
  // token's passing: ptxas moves that behind everything up to the next branch, and with it the other warpgroup's start.
  // With the branch behind the exponentials the kernel was 8 to 20 % slower.
  __device__ __forceinline__ void exponentials(const Sm90BackwardItem& item) {
    if (masked_.has<Config>(number_)) mask(item);
    Alibi alibi = {rules_.slope, 0.0f};
    if constexpr (Alibi::kIsOn && !Alibi::kIsLinear) alibi = alibi_of(item, number_);
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      s_[i] = exp2_fast(alibi.exponent(i, s_[i], args_.scale_log2, lse_[backward_statistic(i)]));
    }
  }
  [[nodiscard]] __device__ __forceinline__ Alibi alibi_of(const Sm90BackwardItem& item, uint32 number) const {
    return Alibi::of(rules_, item, tile_of_rows(number), first_key(item), recomputed_lane());
  }
  // To lse_, which has been read for the tile with this number.
  __device__ __forceinline__ void add_alibi(const Sm90BackwardItem& item, uint32 number) {
    if constexpr (Alibi::kIsOn && Alibi::kIsLinear) alibi_of(item, number).add_to_rows(lse_);
  }

  __device__ __forceinline__ void mask(const Sm90BackwardItem& item) {
    const float unseen = -kInfinity * args_.scale_log2;  // of the sign that makes p 0; scale_log2 is not 0
    mask_scores<Config>(s_, item, BackwardBand::of<Config>(args_.options), tile_of_rows(number_), first_key(item),
                        unseen);
  }

  __device__ __forceinline__ void pack_p() {
#pragma unroll
    for (int i = 0; i < 16; ++i) p_[i] = Element::pack(s_[2 * i], s_[2 * i + 1]);
    pin_registers(p_);
  }

  // ds^T = p^T (dp^T - delta), kept as an A operand and stored transposed, 16 query rows at a time.
  __device__ __forceinline__ void store_ds(const float* stats) {
    const uint32 to = ds_place_ + number_ % Config::kDsBuffers * static_cast<uint32>(sizeof(smem_.ds[0]));
    float delta[2][4];
    if constexpr (Score<Config>::kDrops) read_statistics(delta[0], stats, 0);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (Score<Config>::kDrops && i < 3) read_statistics(delta[(i + 1) % 2], stats, i + 1);
#pragma unroll
      for (int j = 4 * i; j < 4 * i + 4; ++j) {
        const float low = score_gradient(2 * j, delta[i % 2]);
        const float high = score_gradient(2 * j + 1, delta[i % 2]);
        if constexpr (kPacksDs) {
          ds_[j] = multiply_bf16_pairs(p_[j], Element::pack(low, high));
        } else {
          ds_[j] = Element::pack(Element::low(p_[j]) * low, Element::high(p_[j]) * high);
        }
      }
      stmatrix_transposed(to + i * 16 * kSwizzleBytes, ds_[4 * i], ds_[4 * i + 1], ds_[4 * i + 2], ds_[4 * i + 3]);
    }
    if constexpr (Score<Config>::kDrops) drop_pairs<32>(p_, kept_);
    pin_registers(p_);
    pin_registers(ds_);
  }

  // dp - delta of number i of the accumulator, in what units ds wants. With dropout dp is not there yet with -delta,
  // which an entry keeps that is dropped, and the scale of what is kept is left out: it is a factor of dq, dk and dv.
  [[nodiscard]] __device__ __forceinline__ float score_gradient(int i, const float (&delta)[4]) const {
    float gradient = dp_[i];
    if constexpr (Score<Config>::kDrops) {
      gradient = ((kept_[0] >> i & 1u) != 0 ? gradient : 0.0f) - delta[backward_statistic(i) % 4];
    }
    return gradient * sm90_backward_unit(kUnits.p_bits - kUnits.ds_bits);
  }

  [[nodiscard]] __device__ __forceinline__ int first_key(const Sm90BackwardItem& item) const {  // of this warpgroup
    return item.key + warpgroup_ * kWarpgroupRows;
  }
  // The tile of rows that has this number.
  [[nodiscard]] __device__ __forceinline__ int tile_of_rows(uint32 number) const {
    return first_tile_ + static_cast<int>(number);
  }
  [[nodiscard]] __device__ __forceinline__ TileRules<Config> rules_of_tile(const Sm90BackwardItem& item) const {
    return rules_.tile(int64{tile_of_rows(number_)} * kBackwardRows, first_key(item));
  }
  // Dropout's decisions on the tile. No products are under way, whose registers these would take.
  __device__ __forceinline__ void decide(const Sm90BackwardItem& item) {
    kept_bits<32, true>(rules_of_tile(item), kept_, recomputed_lane());
  }

  // To dk and dv, or to their sums in memory, or as float sums to where the block that has the item's first steps looks
  // for them.
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
    store_key_gradients<Config>(args_, dk_, dv_, item.batch, item.head_k, item.k_begin + row, item.seqlen_k - row);
  }

  template <int kCount>
  __device__ __forceinline__ void fill_zero(float (&x)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) x[i] = 0.0f;
  }

  Storage& smem_;
  const Sm90BackwardArgs& args_;
  MatrixDescriptor base_;  // of the start of shared memory
  int warpgroup_;
  uint32 ds_place_;        // this lane's row of 16 bytes in the first buffer of ds: of transposed 8 x 8 matrices
  uint32 number_ = 0;      // of the tile, through all items: its buffers and their phases follow from it
  uint32 number_end_ = 0;  // of the head's tiles
  int first_tile_ = 0;     // number 0 would be this tile of the head's rows
  MaskedTiles masked_ = {};
  float dk_[Shape::kDepth / 2], dv_[Shape::kDepthV / 2];
  float s_[32];  // s, then p
  float dp_[32];
  uint32 p_[16], ds_[16];
  float lse_[16];
  uint32 kept_[kKeptWords<32>] = {};  // by dropout, of the tile
  ScoreRules<Config> rules_ = {};     // of the head; what no option needs takes no registers
};

}  // namespace attend
