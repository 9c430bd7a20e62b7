// sm90, backward beyond 128 columns, or if scores are transformed or have terms from memory: dq. sm90_backward.cuh has
// the equations; dk and dv are made by sm90_backward_wide_keys.cuh, whose header says what is supported and what the
// limits are.
//
// Work     A block has 128 query rows of a head and walks over the tiles of 64 keys that they see: dq stays in
//          registers. s and dp are computed a second time, which makes seven products of five; but nothing is added up
//          in memory, whose L2 cache could not take the sums of key blocks as short as these
// Roles    warpgroup 0: one warp loads q and k, one dout and v. Warpgroups 1 and 2: 64 rows each, all of p, ds and dq
// Source   Dao, FlashAttention-2 (2023), Algorithm 2; docs/hopper_backward.md
#pragma once

#include "../attention/online_softmax.cuh"
#include "../isa/setmaxnreg.cuh"
#include "fast_dropout.cuh"
#include "sm90_backward_dbias.cuh"
#include "sm90_backward_products.cuh"
#include "sm90_backward_scores.cuh"
#include "sm90_backward_store.cuh"
#include "sm90_backward_wide_queries_load.cuh"
#include "sm90_backward_wide_scores.cuh"
#include "sm90_backward_wide_storage.cuh"

namespace attend {

// A computing warpgroup. Tile i; | its products are drained:
//   1  issue dq(i - 1), s(i) and dp(i)
//   2  s is done: p = exp2(s), beside dp
//   3  | ds = p (dp - delta), packed
// dq goes first: then k of the tile before is free early. While a warpgroup is in 3 the tensor cores have the other's.
template <class Config>
class WideQueryWarpgroup {
 public:
  using Shape = BackwardShape<Config>;
  using Element = ElementOf<Config>;
  using Storage = Sm90BackwardWideQueriesStorage<Config>;

  __device__ __forceinline__ WideQueryWarpgroup(Storage& smem, const Sm90BackwardArgs& args, int warpgroup)
      : smem_(smem), args_(args), warpgroup_(warpgroup), dbias_(smem, args, warpgroup) {}

  __device__ __forceinline__ void run() {
#pragma unroll
    for (float& x : dq_) x = 0.0f;
    const uint32 end = begin_rows();
    if (end > 0) compute(end);
    const auto all = static_cast<uint32>(uniform(smem_.block.rows.tile_end - smem_.block.rows.tile));
#pragma unroll 1
    for (uint32 number = end; number < all; ++number) {  // the other warpgroup's: keeps step and uses nothing
      smem_.k_ring().wait(number);
      smem_.v_ring().wait(number);
      smem_.k_ring().release(number);
      smem_.v_ring().release(number);
      if constexpr (Score<Config>::kAddsFromMemory) {
        // It has landed: that of the tile before has been read by all. Where the bias has fewer buffers than v, an
        // arrival any earlier could count for that tile.
        const uint32 stage = stage_of<Storage::kStagesBias>(number);
        smem_.bias_full[stage].wait(parity_of<Storage::kStagesBias>(number));
        arrive_as_warp(smem_.bias_empty[stage]);
      }
    }
    store();
    if constexpr (Config::kDbiasBlocks > 0) dbias_.store_zeros(end);
  }

 private:
  // What these options need is too much beside ds: it is read before the other products begin.
  static constexpr bool kDrainsDq =
      (Shape::kDepth == 256 && (Score<Config>::kDrops || Config::kMask == MaskKind::kWindow ||
                                (Score<Config>::kTransforms && Config::kMask == MaskKind::kFull))) ||
      (Shape::kDepth == 192 && Score<Config>::kDrops && Config::kDbiasBlocks > 1);

  // To 128 columns there are registers for these beside the products.
  static constexpr bool kHoldsQ = Shape::kDepth <= 128;
  static constexpr bool kHoldsDout =
      kHoldsQ && Shape::kDepth + Shape::kDepthV <= (Config::kDbiasBlocks > 0 ? 192 : 256);
  // A operands. No members: the object's registers are at the limit of what the compiler takes apart.
  struct Held {
    uint32 q[kHoldsQ ? Shape::kDepth / 4 : 1];
    uint32 dout[kHoldsDout ? Shape::kDepthV / 4 : 1];
  };

  // Everything that holds for all tiles. They are numbered from the block's first on; returns the number behind the
  // warpgroup's last. Those before its own first are masked.
  [[nodiscard]] __device__ __forceinline__ uint32 begin_rows() {
    const BackwardRowBlock& block = smem_.block;
    const BackwardRows rows = block.of_warpgroup<Config>(warpgroup_);
    diagonal_ = uniform(rows.row + block.offset());
    first_key_ = uniform(block.rows.tile * Config::kBlockN);
    int seen_by_all = static_cast<int>(block.span.seqlen_k);  // from here on not
    if constexpr (Config::kMask != MaskKind::kFull) seen_by_all = min(seen_by_all, diagonal_ + block.band.right + 1);
    masked_from_ = uniform(max(0, (seen_by_all - first_key_) / Config::kBlockN));
    if constexpr (Config::kMask == MaskKind::kWindow) {
      const int first = diagonal_ + kWarpgroupRows - 1 - block.band.left - first_key_;  // that all rows see
      masked_before_ = uniform(first <= 0 ? 0 : (first - 1) / Config::kBlockN + 1);
    }
    read_statistics(rows);
    if constexpr (Score<Config>::kAddsByPosition || Score<Config>::kDrops) {
      rules_ = ScoreRules<Config>::make(args_.options, args_.base.scale, block.span, block.sequence,
                                        static_cast<uint32>(block.head), args_.base.num_heads_q);
      rules_.slope *= kLog2E;
    }
    return static_cast<uint32>(uniform(rows.tile_end > rows.tile ? rows.tile_end - block.rows.tile : 0));
  }

  __device__ __forceinline__ void compute(uint32 end) {
    smem_.q_full.wait(0);  // q has landed
    Held held;
    if constexpr (kHoldsQ) hold_rows(held.q, part(smem_.q, 0), thread());
    decide(0);
    smem_.k_ring().wait(0);  // k has landed
    wgmma_fence();
    begin_s(held, 0);
    smem_.dout_full.wait(0);  // dout has landed
    if constexpr (kHoldsDout) hold_rows(held.dout, part(smem_.dout, 0), thread());
    smem_.v_ring().wait(0);  // v has landed
    wgmma_fence();
    begin_dp(held, 0);
    end_tile(0);
#pragma unroll 1
    for (uint32 number = 1; number < end; ++number) {
      decide(number);
      wgmma_fence();
      begin_gradient<Config, Shape::kDepth>(dq_, ds_, down_columns(smem_.k_ring().tile(number - 1)));
      if constexpr (kDrainsDq) wgmma_wait<0>(dq_);
      smem_.k_ring().wait(number);
      wgmma_fence();
      begin_s(held, number);
      smem_.v_ring().wait(number);
      wgmma_fence();
      begin_dp(held, number);
      if constexpr (Config::kDbiasBlocks > 0) dbias_.store(number - 1);
      wgmma_wait<2>(dq_);
      smem_.k_ring().release(number - 1);
      end_tile(number);
    }
    wgmma_fence();
    begin_gradient<Config, Shape::kDepth>(dq_, ds_, down_columns(smem_.k_ring().tile(end - 1)));
    if constexpr (Config::kDbiasBlocks > 0) dbias_.store(end - 1);
    wgmma_wait<0>(dq_);
    smem_.k_ring().release(end - 1);
  }

  __device__ __forceinline__ void begin_s(const Held& held, uint32 number) {
    const MatrixDescriptor k = along_rows(smem_.k_ring().tile(number));
    if constexpr (kHoldsQ) {
      begin_held_scores<Config, Config::kHeadDim>(s_, held.q, k);
    } else {
      begin_scores<Config, Config::kHeadDim>(s_, rows_of(smem_.q, number), k);
    }
  }
  __device__ __forceinline__ void begin_dp(const Held& held, uint32 number) {
    const MatrixDescriptor v = along_rows(smem_.v_ring().tile(number));
    if constexpr (kHoldsDout) {
      begin_held_scores<Config, Config::kHeadDimV>(dp_, held.dout, v);
    } else {
      begin_scores<Config, Config::kHeadDimV>(dp_, rows_of(smem_.dout, number), v);
    }
  }

  // Dropout's decisions on the tile. No products are under way, whose registers these would take.
  __device__ __forceinline__ void decide(uint32 number) {
    if constexpr (Score<Config>::kDrops) {
      const int row = diagonal_ - smem_.block.offset();
      TileRules<Config> rules = rules_.tile(row, first_key_ + static_cast<int>(number) * Config::kBlockN);
      rules.dropout.key0 = recomputed(rules.dropout.key0);  // nor are the keys of all rounds to be kept
      rules.dropout.key1 = recomputed(rules.dropout.key1);
      kept_bits<32>(rules, kept_, thread());
    }
  }

  // s and dp of the tile are under way: ds.
  __device__ __forceinline__ void end_tile(uint32 number) {
    wgmma_wait<1>(s_);
    const int key = first_key_ + static_cast<int>(number) * Config::kBlockN;
    values(number);
    if (is_masked(static_cast<int>(number))) mask(key);
    exponentials(key);
    pin_registers(s_);
    // v landed long ago. But without a branch here ptxas moves the exponentials behind the drain.
    smem_.v_ring().wait(number);
    wgmma_wait<0>(dp_);
    smem_.v_ring().release(number);
    if constexpr (Score<Config>::kDrops) drop(dp_, kept_);
    if constexpr (Config::kDbiasBlocks > 0) dbias_.begin(number);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float4 ds = make_float4(score_gradient(4 * i), score_gradient(4 * i + 1), score_gradient(4 * i + 2),
                                    score_gradient(4 * i + 3));
      ds_[2 * i] = Element::pack(ds.x, ds.y);
      ds_[2 * i + 1] = Element::pack(ds.z, ds.w);
      if constexpr (Config::kDbiasBlocks > 0) dbias_.put(number, i, ds);
    }
    pin_registers(ds_);
  }

  // s becomes what masks and exponents are taken of: r, or scores with their bias.
  __device__ __forceinline__ void values(uint32 number) {
    if constexpr (Score<Config>::kTransforms) {
      const auto transform = ReciprocalTransform::of(args_.options, args_.scale_log2);
#pragma unroll
      for (float& x : s_) x = transform.r(x);
    }
    if constexpr (Score<Config>::kAddsFromMemory) {
      WideBias<Config, false> bias;
      const uint32 stage = stage_of<Storage::kStagesBias>(number);
      smem_.bias_full[stage].wait(parity_of<Storage::kStagesBias>(number));  // it has landed
      bias.read(smem_address(smem_.bias[stage * Storage::kWarpgroups + warpgroup_]), thread());
      bias.add(s_, args_.base.scale);
      __syncwarp();
      arrive_as_warp(smem_.bias_empty[stage]);
    }
  }

  // s becomes p (of a transform, p times its derivative); entries that are not seen become 0, whatever stood there.
  __device__ __forceinline__ void exponentials(int key) {
    if constexpr (Score<Config>::kTransforms || Score<Config>::kAddsFromMemory) {
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        const float lse = lse_[i / 2 % 2];
        if constexpr (Score<Config>::kAddsFromMemory) {
          s_[i] = biased_probability<Config>(s_[i], lse);
        } else {
          s_[i] = ReciprocalTransform::of(args_.options, args_.scale_log2).probability(s_[i], lse) *
                  ReciprocalTransform::quarter_slope(s_[i]);
        }
      }
      if constexpr (Score<Config>::kAddsFromMemory) {
        if (has_coarse_rows_) divide_by_sums();
      }
      return;
    }
    const float distance = static_cast<float>(first_diagonal() - key - accumulator_column(thread()));
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      // Without keys behind the diagonal ALiBi is linear, and what belongs to the row is added to its lse.
      constexpr bool kIsLinear = Config::kMask != MaskKind::kFull;
      const float base =
          Score<Config>::kAddsByPosition && kIsLinear ? fmaf(rules_.slope, distance + h * kRowHalf, lse_[h]) : lse_[h];
#pragma unroll
      for (int i = 2 * h; i < 32; i += i % 2 == 0 ? 1 : 3) {
        const auto column = static_cast<float>(backward_column(i));
        float addend = -base;
        if constexpr (Score<Config>::kAddsByPosition) {
          addend = kIsLinear ? fmaf(rules_.slope, column, -base)
                             : fmaf(-rules_.slope, fabsf(distance + (h * kRowHalf - column)), -base);
        }
        s_[i] = exp2_fast(fmaf(s_[i], args_.scale_log2, addend));
      }
    }
  }

  // i + off of the thread's first row: the key that it has the distance 0 to.
  [[nodiscard]] __device__ __forceinline__ int first_diagonal() const {
    return diagonal_ + accumulator_row(thread());
  }
  // Has the tile entries that are not seen? Rows that do not exist do not count.
  [[nodiscard]] __device__ __forceinline__ bool is_masked(int number) const {
    return number >= masked_from_ || (Config::kMask == MaskKind::kWindow && number < masked_before_);
  }
  __device__ __forceinline__ void mask(int key) {
    const float unseen = wide_unseen<Config>(args_);
    const BackwardRowBlock& block = smem_.block;
    const int first = key + accumulator_column(thread());
    const int keys_left = static_cast<int>(block.span.seqlen_k) - first;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      int end = keys_left;  // the row sees columns [begin, end) of those that the thread counts
      int begin = 0;
      if constexpr (Config::kMask != MaskKind::kFull) {
        end = min(end, first_diagonal() + h * kRowHalf + block.band.right + 1 - first);
      }
      if constexpr (Config::kMask == MaskKind::kWindow) {
        begin = first_diagonal() + h * kRowHalf - block.band.left - first;
      }
#pragma unroll
      for (int i = 2 * h; i < 32; i += 4) {
#pragma unroll
        for (int b = 0; b < 2; ++b) {
          const int column = backward_column(i + b);
          if (column >= end || (Config::kMask == MaskKind::kWindow && column < begin)) s_[i + b] = unseen;
        }
      }
    }
  }

  [[nodiscard]] __device__ __forceinline__ float score_gradient(int i) const {
    return wide_score_gradient<Config>(s_[i], dp_[i], delta_[i / 2 % 2]);
  }

  // The statistics of the head's row `row`, the first of a tile.
  [[nodiscard]] __device__ __forceinline__ int64 first_statistic(int row) const {
    const BackwardRowBlock& block = smem_.block;
    return (int64{block.span.batch} * args_.base.num_heads_q + block.head) * args_.stats_rows +
           backward_stats_begin<Config>(block.span, block.sequence) + row;
  }
  __device__ __forceinline__ void read_statistics(const BackwardRows& rows) {
    const int64 first = first_statistic(rows.row);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = accumulator_row(thread()) + h * kRowHalf;
      lse_[h] = kInfinity;  // rows that do not exist: their tile may lie behind the statistics' end
      delta_[h] = 0.0f;
      if (row >= rows.count) continue;
      const int64 place = first + row / 16 * 16 + sm90_backward_stats_place(row);
      lse_[h] = args_.lse_log2[place];
      if constexpr (Score<Config>::kTransforms) lse_[h] -= ReciprocalTransform::lse_offset(args_.options);
      delta_[h] = args_.delta[place] * kScoreGradientUnit<Config>;
    }
    if constexpr (Score<Config>::kAddsFromMemory) {
      has_coarse_rows_ = __any_sync(kAllLanes, is_coarse(lse_[0]) || is_coarse(lse_[1]));
    }
  }
  // p of rows whose lse is coarse, by what they sum to: lse_rounding.cuh.
  __device__ __forceinline__ void divide_by_sums() {
    const int64 first = first_statistic(smem_.block.rows.row + warpgroup_ * kWarpgroupRows);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (!is_coarse(lse_[h])) continue;
      const int row = accumulator_row(thread()) + h * kRowHalf;
      const float factor = exp2_fast(-args_.log2_sums[first + row / 16 * 16 + sm90_backward_stats_place(row)]);
#pragma unroll
      for (int i = 2 * h; i < 32; i += i % 2 == 0 ? 1 : 3) s_[i] *= factor;
    }
  }

  __device__ __forceinline__ void store() const {
    const BackwardRowBlock& block = smem_.block;
    const BackwardArgs& base = args_.base;
    const int row = block.rows.row + warpgroup_ * kWarpgroupRows + thread() / 32 * 16;
    auto* to =
        static_cast<Bits16*>(base.dq) + base.dq_stride.offset(block.span.batch, block.head, block.span.q_begin + row);
    store_accumulator<Element, Config::kHeadDim>(dq_, base.gradient_scale, to, base.dq_stride.row,
                                                 static_cast<int>(block.span.seqlen_q) - row);
  }

  // This warpgroup's part of q or dout. What is added is 0, but the compiler does not know that: it computes what
  // follows anew in each tile, instead of keeping it in registers that are wanted elsewhere.
  template <int kElements>
  [[nodiscard]] __device__ __forceinline__ uint32 part(const Bits16 (&parts)[Storage::kWarpgroups][kElements],
                                                       uint32 number) const {
    return smem_address(parts[warpgroup_]) + (number >> 31) * kSwizzleAtom;
  }
  template <int kElements>
  [[nodiscard]] __device__ __forceinline__ MatrixDescriptor
  rows_of(const Bits16 (&parts)[Storage::kWarpgroups][kElements], uint32 number) const {
    return MatrixDescriptor::along_rows(part(parts, number));
  }
  // All rows of a tile of keys along its columns, or down its columns.
  [[nodiscard]] static __device__ __forceinline__ MatrixDescriptor along_rows(const Bits16* tile) {
    return MatrixDescriptor::along_rows(smem_address(tile));
  }
  [[nodiscard]] static __device__ __forceinline__ MatrixDescriptor down_columns(const Bits16* tile) {
    return MatrixDescriptor::down_columns(smem_address(tile), Shape::kPanelBytesN);
  }
  // Computed anew where it is wanted: what follows from it would else be kept in registers that are wanted elsewhere.
  [[nodiscard]] static __device__ __forceinline__ int thread() {
    return recomputed_thread() % kWarpgroup;
  }

  Storage& smem_;
  const Sm90BackwardArgs& args_;
  const int warpgroup_;
  int diagonal_;       // i + off of the warpgroup's first row
  int first_key_;      // of tile 0
  int masked_from_;    // tiles from this number on have entries that are not seen
  int masked_before_;  // kWindow: so have those below this number
  ScoreRules<Config> rules_ = {};
  float dq_[Shape::kDepth / 2];
  float s_[32];  // s, then p
  float dp_[32];
  uint32 ds_[16];
  float lse_[2], delta_[2];
  bool has_coarse_rows_ = false;      // kAddsFromMemory: lse of the warp's
  uint32 kept_[kKeptWords<32>] = {};  // by dropout, of the tile
  BackwardDbias<Config> dbias_;
};

// Grid: sm90_backward_wide_row_blocks(), Config::kThreads threads.
template <class Config>
__device__ void sm90_backward_wide_queries(const Sm90BackwardArgs& args) {
  auto& smem = shared_storage<Sm90BackwardWideQueriesStorage<Config>, Config>();
  if (threadIdx.x == 0) {
    smem.init_barriers();
    smem.block = BackwardRowBlock::mine<Config>(args);
  }
  __syncthreads();  // the barriers are initialised, the block's rows are known
  if constexpr (Config::kDbiasBlocks > 1) cluster_barrier();  // the other blocks' barriers are initialised
  if (smem.block.rows.count <= 0) return;
  const int warpgroup = static_cast<int>(__shfl_sync(0xffffffffu, threadIdx.x / kWarpgroup, 0));
  if (warpgroup == 0) {
    give_registers<Config::kLoadRegisters>();
    const int warp = static_cast<int>(__shfl_sync(0xffffffffu, threadIdx.x / 32, 0));
    if (warp == 0) load_wide_queries<Config, true>(smem, args);
    if (warp == 1) load_wide_queries<Config, false>(smem, args);
    if constexpr (Score<Config>::kAddsFromMemory) {
      if (threadIdx.x == 64) load_wide_query_bias(smem, args);
    }
  } else {
    take_registers<Config::kComputeRegisters>();
    WideQueryWarpgroup<Config>(smem, args, warpgroup - 1).run();
    if constexpr (Config::kDbiasBlocks > 1) cluster_barrier();  // no block arrives at this one's barriers any more
  }
}

}  // namespace attend
