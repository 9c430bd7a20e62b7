// Shared memory of the sm90 backward kernels for head dimensions above 256, and the ring through which both kernels
// stream their operands.
//
// A stage of the ring holds 64 elements of the summed dimension: an A operand for the 128 rows of a tile, and a B
// operand for its columns. The loading thread fills stages with boxes of 64 x 64 elements, and the two computing
// warpgroups multiply them. A sum is a sequence of stages, whatever tensors they come from.
#pragma once

#include "../isa/mbarrier.cuh"
#include "../isa/named_barrier.cuh"
#include "../isa/wgmma.cuh"
#include "../tiles/tma_panel.cuh"
#include "sm90_backward_panels_layout.cuh"

namespace attend {

// Descriptions in shared memory. A tile has at least one stage. So the loading thread is at most as many tiles ahead as
// the ring has stages.
constexpr int kPanelsTiles = kPanelsStages + 1;
constexpr int kPanelsComputeThreads = 2 * kWarpgroup;

template <class Tile>
struct alignas(kSwizzleAtom) PanelsStorage {
  Bits16 a[kPanelsStages][kPanelsRows * kPanelsDepth];
  Bits16 b[kPanelsStages][kPanelsMostColumns * kPanelsDepth];
  Tile tiles[kPanelsTiles];       // written before the first stage of a tile becomes full
  Mbarrier full[kPanelsStages];   // The loading thread arrives: the operands have arrived.
  Mbarrier empty[kPanelsStages];  // 8 warps arrive: the products with the operands are complete.

  // Initialises the barriers. One thread must call this, and the block must synchronise afterwards.
  __device__ __forceinline__ void init_barriers() {
    for (int i = 0; i < kPanelsStages; ++i) {
      full[i].init(1);
      empty[i].init(arrivals_of_warps(kPanelsComputeThreads / 32));
    }
    mbarrier_init_fence();
  }
};

// The loading thread's end of the ring.
template <class Tile>
class PanelsLoads {
 public:
  __device__ __forceinline__ explicit PanelsLoads(PanelsStorage<Tile>& smem) : smem_(smem) {}

  // Waits for an empty stage, and announces `boxes` boxes.
  __device__ __forceinline__ void begin_stage(int boxes) {
    wait();
    smem_.full[at_.stage].arrive_expect_bytes(static_cast<uint32>(boxes * kPanelsBoxBytes));
  }
  // Loads box `i` of an operand.
  __device__ __forceinline__ void load_a(int i, const TensorMapArg& map, const PanelPlace& from) {
    tma_load_panel(smem_address(smem_.a[at_.stage]) + i * kPanelsBoxBytes, map, smem_.full[at_.stage], from);
  }
  __device__ __forceinline__ void load_b(int i, const TensorMapArg& map, const PanelPlace& from) {
    tma_load_panel(smem_address(smem_.b[at_.stage]) + i * kPanelsBoxBytes, map, smem_.full[at_.stage], from);
  }
  __device__ __forceinline__ void end_stage() { at_.advance(); }

  // Writes the description of the next tile. Waits for an empty stage before, because the warps have then read the
  // description that this one replaces. A stage must follow.
  __device__ __forceinline__ void describe(const Tile& tile) {
    wait();
    smem_.tiles[tile_] = tile;
    tile_ = tile_ + 1 == kPanelsTiles ? 0 : tile_ + 1;
  }
  // Announces a stage without operands, for a tile without products and after the last tile.
  __device__ __forceinline__ void empty_stage() {
    wait();
    smem_.full[at_.stage].arrive();
    at_.advance();
  }

 private:
  __device__ __forceinline__ void wait() { smem_.empty[at_.stage].wait(at_.parity ^ 1); }

  PanelsStorage<Tile>& smem_;
  PipelineState<kPanelsStages> at_;
  int tile_ = 0;  // place of the next tile's description
};

// A computing warpgroup's end of the ring.
template <class Tile>
class PanelsProducts {
 public:
  __device__ __forceinline__ PanelsProducts(PanelsStorage<Tile>& smem, int warpgroup)
      : smem_(smem), warpgroup_(warpgroup) {}

  // Waits for the next tile and returns its description. It is valid until the first stage of the next tile is
  // released.
  [[nodiscard]] __device__ __forceinline__ const Tile& next_tile() {
    smem_.full[at_.stage].wait(at_.parity);
    const Tile& tile = smem_.tiles[tile_];
    tile_ = tile_ + 1 == kPanelsTiles ? 0 : tile_ + 1;
    return tile;
  }

  // Releases the stage of a tile without products.
  __device__ __forceinline__ void skip_stage() {
    __syncwarp();
    release(at_.stage);
    at_.advance();
  }

  // Computes x = the sum over `stages` stages, of which there is at least one. `issue` issues the products of a stage.
  // `prepare` is called before the products of each stage with its B operand.
  template <int kCount, class Issue, class Prepare>
  __device__ __forceinline__ void sum(float (&x)[kCount], int stages, const Issue& issue, const Prepare& prepare) {
    issue_stage(x, false, issue, prepare, 0);
    int previous = at_.stage;
    at_.advance();
#pragma unroll 1
    for (int i = 1; i < stages; ++i) {
      issue_stage(x, true, issue, prepare, i);
      wgmma_wait<1>(x);
      release(previous);
      previous = at_.stage;
      at_.advance();
    }
    wgmma_wait<0>(x);
    release(previous);
  }

 private:
  template <int kCount, class Issue, class Prepare>
  __device__ __forceinline__ void issue_stage(float (&x)[kCount], bool accumulate, const Issue& issue,
                                              const Prepare& prepare, int number) {
    smem_.full[at_.stage].wait(at_.parity);
    prepare(number, smem_.b[at_.stage]);
    wgmma_fence();
    issue(x, smem_address(smem_.a[at_.stage]) + static_cast<uint32>(warpgroup_ * kPanelsBoxBytes),
          smem_address(smem_.b[at_.stage]), accumulate);
    wgmma_commit();
  }
  __device__ __forceinline__ void release(int stage) {
    arrive_as_warp(smem_.empty[stage]);
  }

  PanelsStorage<Tile>& smem_;
  const int warpgroup_;
  PipelineState<kPanelsStages> at_;
  int tile_ = 0;  // place of the next tile's description
};

}  // namespace attend
