// Computes the gradients of a panel from p and ds, for the sm90 backward pass with head dimensions above 256.
//
//   dv = p^T dout   dk = scale ds^T q   dq = scale ds k
//
// Shapes   as in Sm90BackwardPanelsArgs. dk and dv are sums over the query heads that share a KV head.
// Supports the same problems as sm90_backward_panels_scores.cuh, which runs before.
// Work     A thread block computes output tiles of 128 rows and kColumns columns, as in an ordinary matrix product. The
//          two computing warpgroups have 64 rows each. dk and dv of a panel are complete. If the keys of a unit are in
//          several panels, dq is summed in float32: the launches of the panels add to it one after another. So the
//          same inputs give the same bits.
// Roles    as in sm90_backward_panels_scores.cuh
// Source   docs/hopper_backward.md
#pragma once

#include "../isa/setmaxnreg.cuh"
#include "../isa/wgmma_transposed.cuh"
#include "../isa/wgmma_widths.cuh"
#include "../tiles/shared_storage.cuh"
#include "sm90_backward_panels_ring.cuh"
#include "sm90_backward_panels_work.cuh"
#include "sm90_backward_store.cuh"
#include "sm90_backward_units.cuh"

namespace attend {

using PanelsProductsStorage = PanelsStorage<PanelsProductTile>;

// Loads the operands of one output tile.
__device__ __forceinline__ void load_panels_product(PanelsLoads<PanelsProductTile>& loads,
                                                    const Sm90BackwardPanelsArgs& args, const PanelsProductTile& tile,
                                                    int columns) {
  const bool is_q = tile.gradient == kPanelsDq;
  const TensorMapArg& a_map = tile.gradient == kPanelsDv ? args.p_map : args.ds_map;
  const TensorMapArg& b_map = is_q ? args.k_map : tile.gradient == kPanelsDk ? args.q_map : args.dout_map;
  const int existing = tile.columns < columns ? tile.columns : columns;
  const int b_boxes = (existing + kPanelsBoxRows - 1) / kPanelsBoxRows;
  // Distances between boxes of A and between chunks, in keys and in rows.
  const int box_keys = is_q ? 0 : kPanelsBoxRows, box_rows = is_q ? kPanelsBoxRows : 0;
#pragma unroll 1
  for (int run = 0; run < tile.runs; ++run) {
#pragma unroll 1
    for (int chunk = 0; chunk < tile.chunks; ++chunk) {
      const int at = tile.first + chunk * kPanelsDepth;
      const int key = (is_q ? at : tile.at) - args.first_key, row = is_q ? tile.at : at;
      const int b_row = static_cast<int>(tile.b_begin) + at;
      loads.begin_stage(kPanelsABoxes + b_boxes);
      for (int i = 0; i < kPanelsABoxes; ++i) {
        loads.load_a(i, a_map, {key + i * box_keys, row + i * box_rows, tile.matrix + run, 0});
      }
      for (int i = 0; i < b_boxes; ++i) {
        loads.load_b(i, b_map, {tile.column + i * kPanelsDepth, b_row, tile.head + run, tile.batch});
      }
      loads.end_stage();
    }
  }
  if (tile.chunks == 0) loads.empty_stage();
}

// Loads the operands of all tiles of this thread block. The block takes one tile from each run of gridDim.x tiles. The
// direction alternates, because the tiles of a run become shorter under a causal mask.
template <class Config>
__device__ __forceinline__ void load_panels_products(PanelsProductsStorage& smem, const Sm90BackwardPanelsArgs& args) {
  PanelsLoads<PanelsProductTile> loads(smem);
  const PanelsProductList<Config> list(args);
  PanelsProductTile tile = {};
  bool is_reversed = false;
#pragma unroll 1
  for (uint32 first = 0; first < list.size(); first += gridDim.x, is_reversed = !is_reversed) {
    const uint32 index = first + (is_reversed ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
    if (index >= list.size() || !list.get(index, tile)) continue;
    loads.describe(tile);
    load_panels_product(loads, args, tile, Config::kColumns);
  }
  tile.gradient = -1;
  loads.describe(tile);
  loads.empty_stage();
}

// A computing warpgroup.
template <class Config>
class PanelsGradients {
 public:
  using Element = ElementOf<Config>;

  __device__ __forceinline__ PanelsGradients(PanelsProductsStorage& smem, const Sm90BackwardPanelsArgs& args,
                                             int warpgroup)
      : args_(args), products_(smem, warpgroup), warpgroup_(warpgroup) {}

  __device__ __forceinline__ void run() {
    using Sums = float(&)[kAccumulators];
    const auto issue = [](Sums x, uint32 a, uint32 b, bool accumulate) { multiply(x, a, b, accumulate); };
    const auto issue_transposed = [](Sums x, uint32 a, uint32 b, bool accumulate) {
      multiply_transposed(x, a, b, accumulate);
    };
    float x[kAccumulators] = {};
#pragma unroll 1
    while (true) {
      const PanelsProductTile& tile = products_.next_tile();
      const int gradient = uniform(tile.gradient);
      if (gradient < 0) break;
      const int stages = uniform(tile.runs * tile.chunks);
      const auto prepare = [&](int number, Bits16* b) { clear_tail(tile, number, b); };
      if (stages == 0) {
        products_.skip_stage();
#pragma unroll
        for (float& sum : x) sum = 0.0f;
      } else if (gradient == kPanelsDq) {
        products_.sum(x, stages, issue, prepare);
      } else {
        products_.sum(x, stages, issue_transposed, prepare);
      }
      if (gradient == kPanelsDq && args_.dq_sums != nullptr) add_before(tile, x);
      store(tile, x);
    }
  }

 private:
  static constexpr int kAccumulators = Config::kColumns / 2;
  static constexpr int kDepthBytes = kWgmmaDepth * kSwizzleBytes;  // 16 rows of a box

  // Issues the products of a stage of dq, and of dk or dv.
  static __device__ __forceinline__ void multiply(float (&x)[kAccumulators], uint32 a, uint32 b, bool accumulate) {
    constexpr int kProductBytes = kWgmmaDepth * int{sizeof(Bits16)};
    const auto rows = MatrixDescriptor::along_rows(a), columns = MatrixDescriptor::down_columns(b, kPanelsBoxBytes);
#pragma unroll
    for (int i = 0; i < kPanelsDepth / kWgmmaDepth; ++i) {
      WgmmaOp<Config::kElement, Config::kColumns>::template ss<true, 1>(
          x, rows.advance(i * kProductBytes), columns.advance(i * kDepthBytes), i > 0 || accumulate);
    }
  }
  static __device__ __forceinline__ void multiply_transposed(float (&x)[kAccumulators], uint32 a, uint32 b,
                                                             bool accumulate) {
    const auto keys = MatrixDescriptor::down_columns(a, kPanelsBoxBytes);
    const auto columns = MatrixDescriptor::down_columns(b, kPanelsBoxBytes);
#pragma unroll
    for (int i = 0; i < kPanelsDepth / kWgmmaDepth; ++i) {
      WgmmaTransposed<Config::kElement, Config::kColumns>::ss(x, keys.advance(i * kDepthBytes),
                                                              columns.advance(i * kDepthBytes), i > 0 || accumulate);
    }
  }

  // Sets rows of a B operand to 0 that belong to the next packed sequence. p and ds are 0 there, but the rows may hold
  // NaN. Without packed sequences these rows lie outside the tensor, and were loaded as zeros.
  __device__ __forceinline__ void clear_tail(const PanelsProductTile& tile, int number, Bits16* b) const {
    if constexpr (!Config::kIsVarlen) return;
    const int left = uniform(tile.sum_length - tile.first - number % tile.chunks * kPanelsDepth);
    if (left >= kPanelsDepth) return;
    const int thread = warpgroup_ * kWarpgroup + static_cast<int>(threadIdx.x) % kWarpgroup;
    for (int i = thread; i < Config::kColumns / kPanelsDepth * kPanelsBoxRows; i += kPanelsComputeThreads) {
      if (i % kPanelsBoxRows < left) continue;
      auto* const row = reinterpret_cast<uint4*>(b + i * kPanelColumns);
      for (int chunk = 0; chunk < kSwizzleBytes / kChunkBytes; ++chunk) row[chunk] = {};
    }
    fence_smem_for_async();
    constexpr int kBarrier = 1;
    barrier_wait<kPanelsComputeThreads>(kBarrier);  // both warpgroups have cleared their part, so products may start
  }

  // Adds the sums of the preceding panels to x, and writes the result for the next panel.
  __device__ __forceinline__ void add_before(const PanelsProductTile& tile, float (&x)[kAccumulators]) const {
    constexpr int kTiles = (Config::kHeadDim + Config::kColumns - 1) / Config::kColumns;
    const int64 row_tile = (int64{tile.matrix} * args_.matrix_rows + tile.at) / kPanelsRows;
    const int64 part = (row_tile * kTiles + tile.column / Config::kColumns) * 2 + warpgroup_;
    auto* const sums =
        reinterpret_cast<float4*>(args_.dq_sums) + part * (kAccumulators / 4) * kWarpgroup + threadIdx.x % kWarpgroup;
    const bool is_first = args_.first_key == 0;
#pragma unroll
    for (int i = 0; i < kAccumulators / 4; ++i) {
      const float4 before = is_first ? float4{} : sums[i * kWarpgroup];
      x[4 * i] += before.x, x[4 * i + 1] += before.y, x[4 * i + 2] += before.z, x[4 * i + 3] += before.w;
      sums[i * kWarpgroup] = make_float4(x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]);
    }
  }

  __device__ __forceinline__ void store(const PanelsProductTile& tile, const float (&x)[kAccumulators]) const {
    const BackwardArgs& base = args_.base;
    const int gradient = tile.gradient;
    // The last panel of a unit stores dq.
    if (gradient == kPanelsDq && args_.first_key + args_.panel_keys < base.seqlen_k) return;
    auto* const tensor = static_cast<Bits16*>(gradient == kPanelsDv   ? base.dv
                                              : gradient == kPanelsDk ? base.dk
                                                                      : base.dq);
    const int64 stride = gradient == kPanelsDv   ? base.dv_stride.row
                         : gradient == kPanelsDk ? base.dk_stride.row
                                                 : base.dq_stride.row;
    const float factor =
        gradient == kPanelsDv ? sm90_backward_unit(sm90_backward_units(Config::kElement).p_bits) : base.gradient_scale;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int first_row = warpgroup_ * kWarpgroupRows + static_cast<int>(threadIdx.x) % kWarpgroup / 32 * 16 + lane / 4;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = first_row + 8 * h;
      Bits16* const to = tensor + tile.output + row * stride;
#pragma unroll
      for (int first = 0; first < Config::kColumns; first += 32) {
        uint32 r[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int i = (first / 8 + j) * 4 + h * 2;
          r[j] = Element::pack(x[i] * factor, x[i + 1] * factor);
        }
        transpose_quad(r);
        if (row < tile.rows) store_part(to, first + lane % 4 * kPieceElements, tile.columns, r);
      }
    }
  }

  // Stores elements [column, column + 8) of a row that has `columns` elements.
  static __device__ __forceinline__ void store_part(Bits16* row, int column, int columns, const uint32 (&pair)[4]) {
    if (column + kPieceElements <= columns) {
      *reinterpret_cast<uint4*>(row + column) = {pair[0], pair[1], pair[2], pair[3]};
    } else if constexpr (Config::kHeadDim % kPieceElements != 0 || Config::kHeadDimV % kPieceElements != 0) {
#pragma unroll
      for (int i = 0; i < kPieceElements; ++i) {
        if (column + i < columns) row[column + i] = static_cast<Bits16>(pair[i / 2] >> (i % 2 * 16));
      }
    }
  }

  const Sm90BackwardPanelsArgs& args_;
  PanelsProducts<PanelsProductTile> products_;
  const int warpgroup_;
};

// Computes the gradients of the panel. Grid: at most one block for each multiprocessor, with kPanelsThreads threads.
template <class Config>
__device__ void sm90_backward_panels_products(const Sm90BackwardPanelsArgs& args) {
  auto& smem = shared_storage<PanelsProductsStorage, Config>();
  if (threadIdx.x == 0) smem.init_barriers();
  __syncthreads();  // the barriers are initialised, so all threads may use them
  const int warpgroup = static_cast<int>(__shfl_sync(0xffffffffu, threadIdx.x / kWarpgroup, 0));
  if (warpgroup == 0) {
    give_registers<kPanelsLoadRegisters>();
    if (threadIdx.x == 0) load_panels_products<Config>(smem, args);
  } else {
    take_registers<kPanelsComputeRegisters>();
    PanelsGradients<Config>(smem, args, warpgroup - 1).run();
  }
}

}  // namespace attend
