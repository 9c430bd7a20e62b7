// Computes p and ds of a panel, for the sm90 backward pass with head dimensions above 256.
//
//   s = scale q k^T   p = exp(s - lse)   ds = p (dout v^T - delta)
//
// Shapes   as in Sm90BackwardPanelsArgs. p and ds are rounded to 16 bits. ds is computed from the unrounded p.
// Supports float16 and bfloat16, full, causal and window masks, packed sequences, grouped heads, and any lengths.
//          Requires sm_90a.
// Work     A thread block processes tiles of 128 rows and 128 keys. Its two computing warpgroups have 64 rows each.
//          Their 64 accumulators first hold s. Then p moves to other registers, and the accumulators hold dp. Tiles
//          without a visible key are neither computed nor stored. Tiles of 256 keys are 1 to 3 % faster, but have no
//          registers for the unrounded p.
// Roles    One thread of warpgroup 0 loads 64 columns of the operands at a time. Warpgroups 1 and 2 compute. While
//          they store a tile, the thread loads the first stages of the next.
// Source   docs/hopper_backward.md
#pragma once

#include "../common/numbers.cuh"
#include "../isa/setmaxnreg.cuh"
#include "../isa/wgmma_widths.cuh"
#include "../tiles/shared_storage.cuh"
#include "quad_transpose.cuh"
#include "sm90_backward_panels_ring.cuh"
#include "sm90_backward_panels_work.cuh"
#include "sm90_backward_units.cuh"

namespace attend {

using PanelsScoresStorage = PanelsStorage<PanelsScoreTile>;

// Loads the operands of all tiles of this thread block.
template <class Config>
__device__ __forceinline__ void load_panels_scores(PanelsScoresStorage& smem, const Sm90BackwardPanelsArgs& args) {
  constexpr int kBoxes = kPanelsScoreKeys / kPanelsBoxRows;  // boxes of k or v
  PanelsLoads<PanelsScoreTile> loads(smem);
  PanelsScoreWalk<Config> walk(args);
#pragma unroll 1
  for (uint32 index = blockIdx.x; walk.seek(index); index += gridDim.x) {
    const PanelsScoreTile tile = walk.tile();
    const SequenceSpan& span = walk.matrix().span;
    const int row = static_cast<int>(span.q_begin) + tile.row, key = static_cast<int>(span.k_begin) + tile.key;
    const int head = walk.matrix().head, head_k = walk.head_k(), batch = static_cast<int>(span.batch);
    loads.describe(tile);
#pragma unroll 1
    for (int product = 0; product < 2; ++product) {
      const TensorMapArg& a_map = product == 0 ? args.q_map : args.dout_map;
      const TensorMapArg& b_map = product == 0 ? args.k_map : args.v_map;
      const int columns = product == 0 ? Config::kHeadDim : Config::kHeadDimV;
#pragma unroll 1
      for (int column = 0; column < columns; column += kPanelsDepth) {
        loads.begin_stage(kPanelsABoxes + kBoxes);
        for (int i = 0; i < kPanelsABoxes; ++i) loads.load_a(i, a_map, {column, row + i * kPanelsBoxRows, head, batch});
        for (int i = 0; i < kBoxes; ++i) {
          loads.load_b(i, b_map, {column, key + i * kPanelsBoxRows, head_k, batch});
        }
        loads.end_stage();
      }
    }
  }
  PanelsScoreTile end = {};
  end.row = -1;
  loads.describe(end);
  loads.empty_stage();
}

// A computing warpgroup.
template <class Config>
class PanelsScores {
 public:
  using Element = ElementOf<Config>;

  __device__ __forceinline__ PanelsScores(PanelsScoresStorage& smem, const Sm90BackwardPanelsArgs& args, int warpgroup)
      : args_(args), products_(smem, warpgroup), warpgroup_(warpgroup) {}

  __device__ __forceinline__ void run() {
    const auto issue = [](float(&s)[kAccumulators], uint32 a, uint32 b, bool accumulate) {
      multiply(s, a, b, accumulate);
    };
    const auto unchanged = [](int, Bits16*) {};
    float x[kAccumulators] = {};
    float p[kAccumulators];
#pragma unroll 1
    while (true) {
      const PanelsScoreTile& tile = products_.next_tile();
      if (uniform(tile.row) < 0) break;
      read_statistics(tile);
      products_.sum(x, kStages, issue, unchanged);
      probabilities(tile, x);
#pragma unroll
      for (int i = 0; i < kAccumulators; ++i) p[i] = x[i];
      store(tile, static_cast<Bits16*>(args_.p), x);
      products_.sum(x, kStagesV, issue, unchanged);
      score_gradients(tile, x, p);
      store(tile, static_cast<Bits16*>(args_.ds), x);
    }
  }

 private:
  static constexpr int kAccumulators = kPanelsScoreKeys / 2;
  static constexpr int kStages = (Config::kHeadDim + kPanelsDepth - 1) / kPanelsDepth;
  static constexpr int kStagesV = (Config::kHeadDimV + kPanelsDepth - 1) / kPanelsDepth;

  // Issues the products of a stage.
  static __device__ __forceinline__ void multiply(float (&x)[kAccumulators], uint32 a, uint32 b, bool accumulate) {
    constexpr int kProductBytes = kWgmmaDepth * int{sizeof(Bits16)};
    const auto rows = MatrixDescriptor::along_rows(a), keys = MatrixDescriptor::along_rows(b);
#pragma unroll
    for (int i = 0; i < kPanelsDepth / kWgmmaDepth; ++i) {
      WgmmaOp<Config::kElement, kPanelsScoreKeys>::template ss<false, 1>(
          x, rows.advance(i * kProductBytes), keys.advance(i * kProductBytes), i > 0 || accumulate);
    }
  }

  __device__ __forceinline__ void read_statistics(const PanelsScoreTile& tile) {
    const int64 at = tile.stats + first_row();
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      lse_[h] = args_.lse_log2[at + 8 * h];
      delta_[h] = args_.delta[at + 8 * h];
    }
  }

  // Turns s into p.
  __device__ __forceinline__ void probabilities(const PanelsScoreTile& tile, float (&x)[kAccumulators]) const {
#pragma unroll
    for (int i = 0; i < kAccumulators; ++i) x[i] = exp2_fast(fmaf(x[i], args_.scale_log2, -lse_[i / 2 % 2]));
    if (uniform(tile.is_masked) != 0) hide(tile, x);
  }

  // Turns dp into ds. dp of hidden entries may be NaN, so it is set to 0 before.
  __device__ __forceinline__ void score_gradients(const PanelsScoreTile& tile, float (&x)[kAccumulators],
                                                  const float (&p)[kAccumulators]) const {
    constexpr Sm90BackwardUnits kUnits = sm90_backward_units(Config::kElement);
    constexpr float kUnit = sm90_backward_unit(kUnits.p_bits - kUnits.ds_bits);
    if (uniform(tile.is_masked) != 0) hide(tile, x);
#pragma unroll
    for (int i = 0; i < kAccumulators; ++i) x[i] = fmaf(x[i], kUnit, -delta_[i / 2 % 2]) * p[i];
  }

  // Sets hidden entries to 0.
  __device__ __forceinline__ void hide(const PanelsScoreTile& tile, float (&x)[kAccumulators]) const {
    const BackwardBand band = BackwardBand::of<Config>(args_.options);
    const int key = tile.key + static_cast<int>(threadIdx.x) % 4 * 2;  // key of the thread's first column
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = tile.row + first_row() + 8 * h;
      const int diagonal = row + tile.seqlen_k - tile.seqlen_q - key;
      int begin = -kNearlyEverywhere, end = tile.seqlen_k - key;
      if constexpr (Config::kMask != MaskKind::kFull) end = min(end, diagonal + band.right + 1);
      if constexpr (Config::kMask == MaskKind::kWindow) begin = diagonal - band.left;
      if (row >= tile.seqlen_q) end = -kNearlyEverywhere;
#pragma unroll
      for (int i = 2 * h; i < kAccumulators; i += i % 2 == 0 ? 1 : 3) {
        const int column = i / 4 * 8 + i % 2;
        if (column < begin || column >= end) x[i] = 0.0f;
      }
    }
  }

  // Rounds and stores the warpgroup's rows of the tile. Each lane stores 16 bytes of a row.
  __device__ __forceinline__ void store(const PanelsScoreTile& tile, Bits16* matrix,
                                        const float (&x)[kAccumulators]) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    Bits16* const to = matrix + tile.scores + int64{first_row()} * args_.panel_keys + lane % 4 * 8;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      Bits16* const row = to + 8 * h * args_.panel_keys;
#pragma unroll
      for (int column = 0; column < kPanelsScoreKeys; column += 32) {
        uint32 r[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int i = (column / 8 + j) * 4 + h * 2;
          r[j] = Element::pack(x[i], x[i + 1]);
        }
        transpose_quad(r);
        *reinterpret_cast<uint4*>(row + column) = {r[0], r[1], r[2], r[3]};
      }
    }
  }

  // Returns the first of the thread's two rows in the tile. The other row is 8 rows later.
  [[nodiscard]] __device__ __forceinline__ int first_row() const {
    const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
    return warpgroup_ * kWarpgroupRows + thread / 32 * 16 + thread % 32 / 4;
  }
  const Sm90BackwardPanelsArgs& args_;
  PanelsProducts<PanelsScoreTile> products_;
  const int warpgroup_;
  float lse_[2], delta_[2];  // of the thread's two rows
};

// Computes p and ds of the panel. Grid: at most one block for each multiprocessor, with kPanelsThreads threads.
template <class Config>
__device__ void sm90_backward_panels_scores(const Sm90BackwardPanelsArgs& args) {
  auto& smem = shared_storage<PanelsScoresStorage, Config>();
  if (threadIdx.x == 0) smem.init_barriers();
  __syncthreads();  // the barriers are initialised, so all threads may use them
  const int warpgroup = static_cast<int>(__shfl_sync(0xffffffffu, threadIdx.x / kWarpgroup, 0));
  if (warpgroup == 0) {
    give_registers<kPanelsLoadRegisters>();
    if (threadIdx.x == 0) load_panels_scores<Config>(smem, args);
  } else {
    take_registers<kPanelsComputeRegisters>();
    PanelsScores<Config>(smem, args, warpgroup - 1).run();
  }
}

}  // namespace attend
