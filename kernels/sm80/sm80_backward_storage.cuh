// Shared memory of a thread block of sm80_backward.
#pragma once

#include "../isa/mbarrier.cuh"
#include "../tiles/smem_tile.cuh"
#include "sm80_backward_work.cuh"

namespace attend {

// Tiles of rounded scores that all warps share, such as ds for dq. A tile has one row for each key, and kStreamed
// columns. This class is empty without kAddsDq.
template <class Config, bool kIsThere>
struct Sm80ScoresPlace {
  using Tile = PanelTile<Sm80BackwardShape<Config>::kOwned, kPanelColumns>;
  Tile tile[sm80_score_tiles(true, Config::kRoles, Config::kParts)];
};
template <class Config>
struct Sm80ScoresPlace<Config, false> {
  using Tile = void;
};

// p in float, which the warps that sum dv pass to the warps that sum dk. Each lane's values are in the order of its
// registers.
template <class Config, bool kIsThere>
struct Sm80SharedP {
  static constexpr int kThreads = Config::kThreads / 2;
  float4 four[Sm80BackwardShape<Config>::kOwned * Config::kStreamed / 4 / kThreads][kThreads];
};
template <class Config>
struct Sm80SharedP<Config, false> {};

// Results of lse_log2_sum() for the query rows, in the order of `lse`. The class is empty without kHasLseRounding.
template <int kRows, bool kIsThere>
struct Sm80Log2Sums {
  alignas(8) float of_row[kRows];
};
template <int kRows>
struct Sm80Log2Sums<kRows, false> {};

// Barriers among the warps of one role that share keys, one for each group of keys. The class is empty if no warps
// share keys.
template <class Config, bool kIsThere>
struct Sm80PairBarriers {
  static constexpr int kKeyWarps = Sm80BackwardShape<Config>::kKeyWarps;
  Mbarrier of_keys[kKeyWarps];

  // Initialises the barriers. All threads of the block must call this, and a barrier of the block must follow.
  __device__ __forceinline__ void init() {
    if (threadIdx.x < kKeyWarps) of_keys[threadIdx.x].init(32 * Config::kParts);
  }
};
template <class Config>
struct Sm80PairBarriers<Config, false> {
  __device__ __forceinline__ void init() {}
};

template <class Config>
struct alignas(kSwizzleAtom) Sm80BackwardStorage {
  using Shape = Sm80BackwardShape<Config>;
  using OwnedTile = PanelTile<Shape::kOwned, Shape::kWidth>;
  using OwnedTileV = PanelTile<Shape::kOwned, Shape::kWidthV>;
  using StreamedTile = PanelTile<Config::kStreamed, Shape::kWidth>;
  using StreamedTileV = PanelTile<Config::kStreamed, Shape::kWidthV>;
  struct Stage {
    StreamedTile rows;
    StreamedTileV rows_v;
  };
  OwnedTile owned;     // tile of k or q. Each warp reads only its own rows, and overwrites them with dk or dq
  OwnedTileV owned_v;  // tile of v or dout, and later of dv
  Stage stage[Shape::kStages];
  using ScoresPlace = Sm80ScoresPlace<Config, Config::kAddsDq>;
  using ScoreTile = typename ScoresPlace::Tile;
  static_assert(!Config::kAddsDq || Config::kStreamed <= kPanelColumns);
  ScoresPlace scores;
  Sm80SharedP<Config, Config::kRoles == kSm80KeysOrValues> p;
  // The lse of the query rows, which are owned or in the buffers. Lanes read pairs.
  alignas(8) float lse[Shape::kSavedRows];
  alignas(8) float delta[Shape::kSavedRows];
  Sm80Log2Sums<Shape::kSavedRows, Config::kHasLseRounding> log2_sums;
  Sm80BackwardBlock<Config> block;
  using PairBarriers = Sm80PairBarriers<Config, (Config::kParts > 1)>;
  PairBarriers pairs;
  static_assert(sizeof(Sm80BackwardBlock<Config>) + sizeof(PairBarriers) <= kSm80BlockBytes && kFitsTiles<Config>);
};

// The two products between an owned and a streamed tile: one gives scores, the other the gradient dp.
enum class Sm80Product {
  kScores,     // q k^T
  kGradients,  // dout v^T
};

// Types of the owned and the streamed tile of a product, and access to these tiles.
template <class Config, Sm80Product kProduct>
struct Sm80ProductOperands {
  using Storage = Sm80BackwardStorage<Config>;
  using OwnedTile = typename Storage::OwnedTile;
  using StreamedTile = typename Storage::StreamedTile;
  static constexpr int kDepth = Sm80BackwardShape<Config>::kDepth;
  static constexpr bool kNegates = Config::kNegateScores;
  static __device__ __forceinline__ const OwnedTile& owned(const Storage& smem) { return smem.owned; }
  static __device__ __forceinline__ const StreamedTile& streamed(const typename Storage::Stage& stage) {
    return stage.rows;
  }
};
template <class Config>
struct Sm80ProductOperands<Config, Sm80Product::kGradients> {
  using Storage = Sm80BackwardStorage<Config>;
  using OwnedTile = typename Storage::OwnedTileV;
  using StreamedTile = typename Storage::StreamedTileV;
  static constexpr int kDepth = Sm80BackwardShape<Config>::kDepthV;
  static constexpr bool kNegates = false;
  static __device__ __forceinline__ const OwnedTile& owned(const Storage& smem) { return smem.owned_v; }
  static __device__ __forceinline__ const StreamedTile& streamed(const typename Storage::Stage& stage) {
    return stage.rows_v;
  }
};

}  // namespace attend
