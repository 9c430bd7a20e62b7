// sm90, backward beyond 128 columns: dq. sm90_backward.cuh has the equations; dk and dv are made by
// sm90_backward_wide_keys.cuh, whose header says what is supported and what the limits are.
//
// Work     A block has 128 query rows of a head and walks over the tiles of 64 keys that they see: dq stays in
//          registers. s and dp are computed a second time, which makes seven products of five; but nothing is added up
//          in memory, whose L2 cache could not take the sums of key blocks as short as these
// Roles    warpgroup 0: one warp loads q and k, one dout and v. Warpgroups 1 and 2: 64 rows each, all of p, ds and dq
// Source   Dao, FlashAttention-2 (2023), Algorithm 2; docs/hopper_backward.md
#pragma once

#include "../common/fast_dropout.cuh"
#include "../common/online_softmax.cuh"
#include "../common/setmaxnreg.cuh"
#include "sm90_backward_load.cuh"
#include "sm90_backward_products.cuh"
#include "sm90_backward_scores.cuh"
#include "sm90_backward_store.cuh"
#include "sm90_backward_wide_storage.cuh"

namespace attend {

// The rows of a block, or of a warpgroup of it, and the key tiles that at least one of them sees.
struct BackwardRows {
  int row;       // first, in the sequence
  int count;     // that exist; <= 0: none
  int tile;      // of keys
  int tile_end;  // tile_end <= tile: none

  template <class Config>
  [[nodiscard]] static __device__ __forceinline__ BackwardRows of(const SequenceSpan& span, const BackwardBand& band,
                                                                  int row, int rows) {
    const auto seqlen_q = static_cast<int>(span.seqlen_q);
    const auto seqlen_k = static_cast<int>(span.seqlen_k);
    const int offset = seqlen_k - seqlen_q;
    const int count = min(rows, seqlen_q - row);
    const int first_key = max(0, row + offset - band.left);
    const int end_key = count <= 0 ? 0 : min(seqlen_k, row + count + offset + band.right);
    const int tile = first_key / Config::kBlockN;
    return {row, count, tile, end_key <= first_key ? tile : (end_key - 1) / Config::kBlockN + 1};
  }
};

// What a block works on.
struct BackwardRowBlock {
  uint32 sequence;
  int head;
  SequenceSpan span;
  BackwardBand band;
  BackwardRows rows;

  template <class Config>
  [[nodiscard]] static __device__ __forceinline__ BackwardRowBlock mine(const Sm90BackwardArgs& args) {
    const auto tiles = static_cast<uint32>(num_tiles(args.base.seqlen_q, kBackwardWideRows));
    constexpr int64 kColumns = Config::kHeadDim + Config::kHeadDimV;
    const HeadTile at = Config::kMask == MaskKind::kFull && !Config::kIsVarlen
                            ? HeadTile::of_block(blockIdx.x, tiles, args.base.num_heads_q)
                            : longest_first(blockIdx.x, tiles, args.base.batch, args.base.num_heads_q,
                                            args.base.seqlen_k * kColumns * static_cast<int64>(sizeof(Bits16)));
    BackwardRowBlock block = {at.batch, static_cast<int>(at.head)};
    block.span = sequence_span<Config>(args.base, args.options, at.batch);
    block.band = BackwardBand::of<Config>(args.options);
    block.rows = BackwardRows::of<Config>(block.span, block.band, static_cast<int>(at.tile) * kBackwardWideRows,
                                          kBackwardWideRows);
    return block;
  }
};

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

  __device__ __forceinline__ WideQueryWarpgroup(Storage& smem, const Sm90BackwardArgs& args,
                                                const BackwardRowBlock& block, int warpgroup)
      : smem_(smem),
        args_(args),
        block_(block),
        rows_(BackwardRows::of<Config>(block.span, block.band, block.rows.row + warpgroup * kWarpgroupRows,
                                       kWarpgroupRows)),
        q_(MatrixDescriptor::along_rows(smem_address(smem.q[warpgroup]))),
        dout_(MatrixDescriptor::along_rows(smem_address(smem.dout[warpgroup]))) {}

  __device__ __forceinline__ void run() {
#pragma unroll
    for (float& x : dq_) x = 0.0f;
    // The warpgroup's tiles are numbered from the block's first on. What lies before its own first is masked.
    const auto all = static_cast<uint32>(uniform(block_.rows.tile_end - block_.rows.tile));
    const auto end = static_cast<uint32>(uniform(rows_.tile_end > rows_.tile ? rows_.tile_end - block_.rows.tile : 0));
    read_statistics();
    set_rules();
    if (end > 0) compute(end);
#pragma unroll 1
    for (uint32 number = end; number < all; ++number) {  // the other warpgroup's: keeps step and uses nothing
      wait_k(number);
      wait_v(number);
      arrive_as_warp(smem_.k_empty[stage_k(number)]);
      arrive_as_warp(smem_.v_empty[stage_v(number)]);
    }
    const int row = rows_.row + thread() / 32 * 16;
    const BackwardArgs& base = args_.base;
    auto* to = static_cast<Bits16*>(base.dq) +
               base.dq_stride.offset(block_.span.batch, block_.head, block_.span.q_begin + row);
    store_accumulator<Element, Config::kHeadDim>(dq_, base.gradient_scale, to, base.dq_stride.row,
                                                 static_cast<int>(block_.span.seqlen_q) - row);
  }

 private:
  static constexpr int kStagesK = Storage::kStagesK;
  static constexpr int kStagesV = Storage::kStagesV;

  __device__ __forceinline__ void compute(uint32 end) {
    smem_.q_full.wait(0);     // q has landed
    smem_.dout_full.wait(0);  // dout has
    wait_k(0);
    wait_v(0);
    wgmma_fence();
    begin_scores<Config, Config::kHeadDim>(s_, q_, k_rows(0));
    begin_scores<Config, Config::kHeadDimV>(dp_, dout_, v_rows(0));
    end_tile(0);
#pragma unroll 1
    for (uint32 number = 1; number < end; ++number) {
      wait_k(number);
      wait_v(number);
      wgmma_fence();
      begin_gradient<Config, Shape::kDepth>(dq_, ds_, k_columns(number - 1));
      begin_scores<Config, Config::kHeadDim>(s_, q_, k_rows(number));
      begin_scores<Config, Config::kHeadDimV>(dp_, dout_, v_rows(number));
      wgmma_wait<2>(dq_);
      arrive_as_warp(smem_.k_empty[stage_k(number - 1)]);
      end_tile(number);
    }
    wgmma_fence();
    begin_gradient<Config, Shape::kDepth>(dq_, ds_, k_columns(end - 1));
    wgmma_wait<0>(dq_);
    arrive_as_warp(smem_.k_empty[stage_k(end - 1)]);
  }

  // s and dp of the tile are under way: ds.
  __device__ __forceinline__ void end_tile(uint32 number) {
    wgmma_wait<1>(s_);
    const int key = (block_.rows.tile + static_cast<int>(number)) * Config::kBlockN;
    exponentials(key);
    uint32 kept[kKeptWords<32>];
    if constexpr (Config::kHasDropout) kept_bits<32>(rules_.tile(rows_.row, key), kept, thread());
    wgmma_wait<0>(dp_);
    arrive_as_warp(smem_.v_empty[stage_v(number)]);
    if constexpr (Config::kHasDropout) drop(dp_, kept);
#pragma unroll
    for (int i = 0; i < 16; ++i) ds_[i] = Element::pack(score_gradient(2 * i), score_gradient(2 * i + 1));
    pin_registers(ds_);
  }

  // s becomes p; entries that are not seen become 0, whatever stood there.
  __device__ __forceinline__ void exponentials(int key) {
    if (is_masked(key)) mask(key);
    const float distance = static_cast<float>(first_diagonal() - key - accumulator_column(thread()));
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const int h = i / 2 % 2;
      float exponent = fmaf(s_[i], args_.scale_log2, -lse_[h]);
      if constexpr (Config::kHasAlibi) {
        exponent = fmaf(-rules_.slope, fabsf(distance + static_cast<float>(h * kRowHalf - backward_column(i))), exponent);
      }
      s_[i] = exp2_fast(exponent);
    }
  }

  // i + off of the thread's first row: the key that it has the distance 0 to.
  [[nodiscard]] __device__ __forceinline__ int first_diagonal() const {
    return rows_.row + accumulator_row(thread()) + static_cast<int>(block_.span.seqlen_k - block_.span.seqlen_q);
  }
  // Are there entries of the tile that are not seen? Rows that do not exist do not count.
  [[nodiscard]] __device__ __forceinline__ bool is_masked(int key) const {
    const auto offset = static_cast<int>(block_.span.seqlen_k - block_.span.seqlen_q);
    bool is_masked = key + Config::kBlockN > static_cast<int>(block_.span.seqlen_k);
    if constexpr (Config::kMask != MaskKind::kFull) {
      is_masked |= key + Config::kBlockN - 1 > rows_.row + offset + block_.band.right;
    }
    if constexpr (Config::kMask == MaskKind::kWindow) {
      is_masked |= key < rows_.row + kWarpgroupRows - 1 + offset - block_.band.left;
    }
    return uniform(is_masked ? 1 : 0) != 0;
  }
  __device__ __forceinline__ void mask(int key) {
    const float unseen = -kInfinity * args_.scale_log2;  // of the sign that makes p 0; scale_log2 is not 0
    const int first = key + accumulator_column(thread());
    const int keys_left = static_cast<int>(block_.span.seqlen_k) - first;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      int end = keys_left;  // the row sees columns [begin, end) of those that the thread counts
      int begin = 0;
      if constexpr (Config::kMask != MaskKind::kFull) {
        end = min(end, first_diagonal() + h * kRowHalf + block_.band.right + 1 - first);
      }
      if constexpr (Config::kMask == MaskKind::kWindow) {
        begin = first_diagonal() + h * kRowHalf - block_.band.left - first;
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
    return wide_score_gradient(s_[i], dp_[i], kBackwardUnshift<Config>, delta_[i / 2 % 2]);
  }

  __device__ __forceinline__ void read_statistics() {
    const int64 first = (int64{block_.span.batch} * args_.base.num_heads_q + block_.head) * args_.stats_rows +
                        backward_stats_begin<Config>(block_.span, block_.sequence) + rows_.row;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = accumulator_row(thread()) + h * kRowHalf;
      lse_[h] = kInfinity;  // rows that do not exist: their tile may lie behind the statistics' end
      delta_[h] = 0.0f;
      if (row >= rows_.count) continue;
      const int64 place = first + row / 16 * 16 + sm90_backward_stats_place(row);
      lse_[h] = args_.lse_log2[place];
      delta_[h] = args_.delta[place] * kBackwardUnshift<Config>;
    }
  }
  __device__ __forceinline__ void set_rules() {
    if constexpr (Config::kHasAlibi || Config::kHasDropout) {
      rules_ = ScoreRules<Config>::make(args_.options, args_.base.scale, block_.span, block_.sequence,
                                        static_cast<uint32>(block_.head), args_.base.num_heads_q);
      rules_.slope *= kLog2E;
    }
  }

  // The buffers of tile `number`.
  [[nodiscard]] static __device__ __forceinline__ uint32 stage_k(uint32 number) { return stage_of<kStagesK>(number); }
  [[nodiscard]] static __device__ __forceinline__ uint32 stage_v(uint32 number) { return stage_of<kStagesV>(number); }
  __device__ __forceinline__ void wait_k(uint32 number) {  // k of the tile has landed
    smem_.k_full[stage_k(number)].wait(parity_of<kStagesK>(number));
  }
  __device__ __forceinline__ void wait_v(uint32 number) {  // v of the tile has landed
    smem_.v_full[stage_v(number)].wait(parity_of<kStagesV>(number));
  }
  [[nodiscard]] __device__ __forceinline__ MatrixDescriptor k_rows(uint32 number) const {
    return MatrixDescriptor::along_rows(smem_address(smem_.k[stage_k(number)]));
  }
  [[nodiscard]] __device__ __forceinline__ MatrixDescriptor k_columns(uint32 number) const {
    return MatrixDescriptor::down_columns(smem_address(smem_.k[stage_k(number)]), Shape::kPanelBytesN);
  }
  [[nodiscard]] __device__ __forceinline__ MatrixDescriptor v_rows(uint32 number) const {
    return MatrixDescriptor::along_rows(smem_address(smem_.v[stage_v(number)]));
  }
  [[nodiscard]] static __device__ __forceinline__ int thread() { return static_cast<int>(threadIdx.x % kWarpgroup); }

  Storage& smem_;
  const Sm90BackwardArgs& args_;
  const BackwardRowBlock& block_;
  const BackwardRows rows_;
  const MatrixDescriptor q_;     // the warpgroup's rows
  const MatrixDescriptor dout_;  // likewise
  ScoreRules<Config> rules_ = {};
  float dq_[Shape::kDepth / 2];
  float s_[32];  // s, then p
  float dp_[32];
  uint32 ds_[16];
  float lse_[2], delta_[2];
};

// By one warp: q and the tiles of k, or dout and those of v, into buffers as they become free.
template <class Config, bool kIsK>
__device__ __forceinline__ void load_wide_queries(Sm90BackwardWideQueriesStorage<Config>& smem,
                                                  const Sm90BackwardArgs& args, const BackwardRowBlock& block) {
  using Storage = Sm90BackwardWideQueriesStorage<Config>;
  using Shape = BackwardShape<Config>;
  constexpr int kDepth = kIsK ? Shape::kDepth : Shape::kDepthV;
  constexpr int kStages = kIsK ? Storage::kStagesK : Storage::kStagesV;
  if (block.rows.tile_end <= block.rows.tile) return;
  const auto batch = static_cast<int>(block.span.batch);
  // Rows behind the end may hold anything: they reach nothing but themselves.
#pragma unroll
  for (int i = 0; i < Storage::kWarpgroups; ++i) {
    const PanelPlace at = {0, static_cast<int>(block.span.q_begin) + block.rows.row + i * kWarpgroupRows, block.head,
                           batch};
    BackwardTileLoads<Config> rows(smem.tail_full[0]);
    if constexpr (kIsK) {
      rows.template load<kDepth, kWarpgroupRows>(smem.q[i], args.q_map, smem.q_full, at, kWarpgroupRows);
    } else {
      rows.template load<kDepth, kWarpgroupRows>(smem.dout[i], args.dout_map, smem.dout_full, at, kWarpgroupRows);
    }
  }
  BackwardTileLoads<Config> loads(smem.tail_full[kIsK ? 0 : 1]);
  const int head_k = block.head / static_cast<int>(args.base.num_heads_q / args.base.num_heads_k);
  const auto seqlen_k = static_cast<int>(block.span.seqlen_k);
  uint32 number = 0;
#pragma unroll 1
  for (int tile = block.rows.tile; tile < block.rows.tile_end; ++tile, ++number) {
    const uint32 stage = stage_of<kStages>(number);
    const uint32 parity = parity_of<kStages>(number) ^ 1;
    const int key = tile * Config::kBlockN;
    const PanelPlace at = {0, static_cast<int>(block.span.k_begin) + key, head_k, batch};
    if constexpr (kIsK) {
      smem.k_empty[stage].wait(parity);  // dq of the tile before has read it
      loads.template load<kDepth, Config::kBlockN>(smem.k[stage], args.k_map, smem.k_full[stage], at, seqlen_k - key);
    } else {
      smem.v_empty[stage].wait(parity);  // dp of the tile before has read it
      loads.template load<kDepth, Config::kBlockN>(smem.v[stage], args.v_map, smem.v_full[stage], at, seqlen_k - key);
    }
  }
}

// Grid: sm90_backward_wide_row_blocks(), Config::kThreads threads.
template <class Config>
__device__ void sm90_backward_wide_queries(const Sm90BackwardArgs& args) {
  auto& smem = shared_storage<Sm90BackwardWideQueriesStorage<Config>, Config>();
  const auto block = BackwardRowBlock::mine<Config>(args);
  if (block.rows.count <= 0) return;
  if (threadIdx.x == 0) smem.init_barriers();
  __syncthreads();  // the barriers are initialised
  const int warpgroup = static_cast<int>(__shfl_sync(0xffffffffu, threadIdx.x / kWarpgroup, 0));
  if (warpgroup == 0) {
    give_registers<Config::kLoadRegisters>();
    const int warp = static_cast<int>(__shfl_sync(0xffffffffu, threadIdx.x / 32, 0));
    if (warp == 0) load_wide_queries<Config, true>(smem, args, block);
    if (warp == 1) load_wide_queries<Config, false>(smem, args, block);
  } else {
    take_registers<Config::kComputeRegisters>();
    WideQueryWarpgroup<Config>(smem, args, block, warpgroup - 1).run();
  }
}

}  // namespace attend
