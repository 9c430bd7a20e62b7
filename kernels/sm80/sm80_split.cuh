// Two warps share query rows (Config::kSplits). Each warp computes s for half of a tile's keys. It then computes half
// of the columns of o from p of all keys. The warps exchange p as 16-bit values, from each lane to the same lane of the
// other warp. Each operand of k or v is thus multiplied with twice as many rows as the registers of one warp would
// allow. With 256 columns the products are limited by shared memory, and sharing rows halves the loads.
//
// The product p v follows s one tile later (sm80_trailing.cuh), so one barrier per tile suffices. p of both warps is
// relative to the same m. At the barrier all threads learn whether m was large enough. If not, the block computes p of
// the tile again.
#pragma once

#include "../isa/named_barrier.cuh"
#include "sm80_trailing.cuh"

namespace attend {

template <class Config>
struct Sm80Split {
  using Shape = Sm80Shape<Config>;
  using Storage = Sm80Storage<Config>;
  using Rows = Sm80Rows<Config>[Config::kRowGroups];
  using PartOfV = PanelTile<Config::kBlockN, Shape::kColumnsOfWarp>;
  using PartOfO = PanelTile<Shape::kBlockM, Shape::kColumnsOfWarp>;
  static constexpr int kOperands = Shape::kKeysOfWarp / kMmaDepth;  // operands of p that the warp computes
  static constexpr int kTeamThreads = Config::kSplits * 32;
  static constexpr int kState = Config::kRowGroups * kRowsOfThread;
  static_assert(Config::kTrails && Config::kColumnParts == 1 && Shape::kColumnsOfWarp % kPanelColumns == 0);

  Storage& smem;
  uint32 warp;
  uint32 lane;
  float sum[kState];  // row sums of p over the newest tile. They are added to l when m is confirmed to be large enough

  [[nodiscard]] __device__ __forceinline__ uint32 team() const { return warp / Config::kSplits; }
  [[nodiscard]] __device__ __forceinline__ uint32 part() const { return warp % Config::kSplits; }

  // Returns the rows of k in tile n for which this warp computes s. Their number is a multiple of 8, so the swizzle of
  // a row is the same as in the complete tile.
  [[nodiscard]] __device__ __forceinline__ const typename Storage::KTile& own_keys(int n) const {
    static_assert(Shape::kKeysOfWarp % 8 == 0);
    constexpr int kChunksOfRow = kSwizzleBytes / kChunkBytes;
    const uint4* first = smem.stage_of(n).k.chunk + part() * (Shape::kKeysOfWarp * kChunksOfRow);
    return *reinterpret_cast<const typename Storage::KTile*>(first);
  }

  __device__ __forceinline__ void hand_over(const Rows& rows, int n) {
#pragma unroll
    for (int i = 0; i < kOperands * Config::kRowGroups; ++i) {
      const OperandA p =
          pack_operand_a<ElementOf<Config>>(rows[i % Config::kRowGroups].s + i / Config::kRowGroups * kMmaDepth / 2);
      smem.p[n & 1][team()][part() * kOperands + i / Config::kRowGroups][i % Config::kRowGroups][lane] = {
          p.reg[0], p.reg[1], p.reg[2], p.reg[3]};
    }
  }

  // Computes o += p v of tile n.
  template <class Beside = Sm80Idle>
  __device__ __forceinline__ void multiply_pv(Rows& rows, int n, Beside&& beside = {}) {
    const auto& v_tile = reinterpret_cast<const PartOfV*>(&smem.stage_of(n).v)[part()];
    const auto v = BlockReader<PartOfV>::by_rows(v_tile, lane);
    const uint4* from = &smem.p[n & 1][team()][0][0][lane];
#pragma unroll
    for (int key = 0; key < Config::kBlockN; key += kMmaDepth) {
      OperandA p[Config::kRowGroups];
#pragma unroll
      for (int r = 0; r < Config::kRowGroups; ++r) {
        const uint4 x = from[(key / kMmaDepth * Config::kRowGroups + r) * 32];
        p[r] = {{x.x, x.y, x.z, x.w}};
      }
#pragma unroll
      for (int column = 0; column < Shape::kColumnsOfWarp; column += 2 * kMmaColumns) {
        const OperandBPair pair = v.b(key, column);
#pragma unroll
        for (int i = 0; i < 2 * Config::kRowGroups; ++i) {
          float* o = rows[i / 2].o + column / 2 + i % 2 * kAccumulatorsOfMma;
          mma_add<ElementOf<Config>>(o, p[i / 2], pair.half[i % 2]);
        }
        beside((key * Shape::kColumnsOfWarp / kMmaDepth + column) / kMmaDepth);
      }
    }
  }

  // Shares the row maxima or sums of a tile between the warps of the team. what(group, half) returns this lane's value.
  template <class What>
  __device__ __forceinline__ void put_for_team(const What& what) {
#pragma unroll
    for (int i = 0; i < kState; ++i) {
      const int row = sm80_first_row<Config>(i / kRowsOfThread) + accumulator_row(lane) + i % kRowsOfThread * kRowHalf;
      if (accumulator_column(lane) == 0) smem.of_rows[part()][row] = what(i / kRowsOfThread, i % kRowsOfThread);
    }
    barrier_wait<kTeamThreads>(1 + team());  // waits until both warps have written their values
  }
  [[nodiscard]] __device__ __forceinline__ float of_other(int group, int h) const {
    return smem.of_rows[1 - part()][sm80_first_row<Config>(group) + accumulator_row(lane) + h * kRowHalf];
  }

  // Computes p of tile n with a search for its row maxima. Adds p to the row sums without waiting for a later
  // confirmation of m. Both warps of a team must call this.
  __device__ __forceinline__ void look_for_maxima(Rows& rows, int n, bool is_whole) {
    sm80_multiply_qk(rows, smem.q_or_o, own_keys(n), recomputed(threadIdx.x));
    if (!is_whole) sm80_apply_rules(rows, smem, n, static_cast<int>(part()) * Shape::kKeysOfWarp);
    float tile_max[Config::kRowGroups][kRowsOfThread];
#pragma unroll
    for (int i = 0; i < kState; ++i) {
      tile_max[i / kRowsOfThread][i % kRowsOfThread] =
          quad_max(thread_row_max(rows[i / kRowsOfThread].s, i % kRowsOfThread));
    }
    put_for_team([&](int r, int h) { return tile_max[r][h]; });
#pragma unroll
    for (int i = 0; i < kState; ++i) {
      float& max = tile_max[i / kRowsOfThread][i % kRowsOfThread];
      max = fmaxf(max, of_other(i / kRowsOfThread, i % kRowsOfThread));
    }
    follow_maxima(rows, tile_max, smem.block.scale_log2);
    hand_over(rows, n);
#pragma unroll
    for (int i = 0; i < kState; ++i) sum[i] = 0.0f;
  }

  // Computes p of tile n, which must be unmasked. The exponentials are interleaved with the products p v of the
  // previous tile. Returns whether m was large enough.
  [[nodiscard]] __device__ __forceinline__ bool weights_beside_pv(Rows& rows, const ForwardArgs& args, int n) {
    constexpr int kOfGroup = Shape::kKeysOfWarp / 2;  // elements of p that a lane has in one row group
    constexpr int kCount = Config::kRowGroups * kOfGroup;
    // Number of 16 x 16 blocks of v that the warp multiplies.
    constexpr int kBlocks = Config::kBlockN / kMmaDepth * (Shape::kColumnsOfWarp / kMmaDepth);
    sm80_scores_beside_sends(rows, smem, args, n, own_keys(n));
    const float scale_log2 = smem.block.scale_log2;
    float base[kState];
#pragma unroll
    for (int i = 0; i < kState; ++i) {
      base[i] = rows[i / kRowsOfThread].softmax.row_max[i % kRowsOfThread] * scale_log2;
    }
    multiply_pv(rows, n + 1, [&](int block) {
#pragma unroll
      for (int i = block * kCount / kBlocks; i < (block + 1) * kCount / kBlocks; ++i) {
        const int row = i / kOfGroup * kRowsOfThread + i / 2 % 2;
        float& s = rows[i / kOfGroup].s[i % kOfGroup];
        s = exp2_fast(fmaf(s, scale_log2, -base[row]));
        sum[row] += s;
      }
    });
    bool serves = true;  // whether m was large enough; false for NaN
#pragma unroll
    for (int i = 0; i < kState; ++i) {
      serves &= sum[i] <= kLargestTileSum && rows[i / kRowsOfThread].softmax.can_fold(base[i]);
    }
    hand_over(rows, n);
    return serves;
  }

  // Completes l of the team's rows as the sum over all keys.
  __device__ __forceinline__ void finish(Rows& rows) {
#pragma unroll
    for (Sm80Rows<Config>& group : rows) group.softmax.finish();
    put_for_team([&](int r, int h) { return rows[r].softmax.row_sum[h]; });
#pragma unroll
    for (int i = 0; i < kState; ++i) {
      rows[i / kRowsOfThread].softmax.row_sum[i % kRowsOfThread] += of_other(i / kRowsOfThread, i % kRowsOfThread);
    }
  }

  __device__ __forceinline__ void add_sums(Rows& rows) {
#pragma unroll
    for (int i = 0; i < kState; ++i) {
      rows[i / kRowsOfThread].softmax.row_sum[i % kRowsOfThread] += sum[i];
      sum[i] = 0.0f;
    }
  }
};

// Processes all key tiles from the last to the first. When this function is called, the keys of the last tile may still
// be arriving, but no other copies may be in flight.
template <class Config>
__device__ __forceinline__ void sm80_attend_split(Sm80Rows<Config> (&rows)[Config::kRowGroups],
                                                  Sm80Storage<Config>& smem, const ForwardArgs& args) {
  Sm80Split<Config> split = {smem, threadIdx.x / 32, threadIdx.x % 32, {}};
  bool serves = true;
#pragma unroll 1
  for (int n = smem.block.keys.tiles.end - 1; n >= smem.block.keys.tiles.begin - 1; --n) {
    const Sm80WarpTiles own = smem.block.own[split.warp];
    cp_async_wait<0>();  // waits for this thread's copies: k of tile n, and v of tile n + 1
    // Waits for the copies of all threads and for p of tile n + 1. k of tile n + 1 and v of tile n + 2 have then been
    // read.
    if (__syncthreads_or(!serves)) {
      for (float& sum : split.sum) sum = 0.0f;
      if (own.seen.has(n + 2) && own.whole.has(n + 1)) split.look_for_maxima(rows, n + 1, true);
      __syncthreads();  // waits until p of tile n + 1 is rewritten and its k has been read
    }
    serves = true;
    split.add_sums(rows);
    const bool has_p = own.seen.has(n + 1);
    const bool is_usual = has_p && own.seen.has(n) && own.whole.has(n);
    if (!Sm80Sends<Config>::kApply || !is_usual) sm80_send_next(args, smem, n - 1, n);
    if (own.seen.has(n)) {
      if (is_usual) {
        serves = split.weights_beside_pv(rows, args, n);
      } else {
        if (has_p) split.multiply_pv(rows, n + 1);
        split.look_for_maxima(rows, n, own.whole.has(n));
      }
    } else if (has_p) {
      split.multiply_pv(rows, n + 1);
    }
  }
  split.finish(rows);
}

}  // namespace attend
