// A rung of the ladder as the host sees it: what it supports, and which kernels it puts on the stream in which order.
// The tables are in rungs_*.cpp; rung_family.cpp makes a family of each. Rungs are lessons: they take no options.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/problem.hpp"
#include "cuda/driver/arch.hpp"
#include "cuda/jit/kernel_spec.hpp"
#include "cuda/launch/fields.hpp"

namespace attend::cuda {

/// What a variant of a rung is compiled for.
struct RungConfig : Facts {
  std::int32_t max_smem_per_block = 0;  ///< bytes, of the device: tables may choose smaller tiles where it is less
  /// The query rows of all heads make at least four tiles of 128 for each multiprocessor; with fewer, tables may choose
  /// smaller tiles, so that every multiprocessor gets some.
  std::int32_t many_rows = 1;
};

/// What the blocks of a launch divide among themselves, in this order of the index: tiles of a head fastest.
enum class Grid {
  kRowTiles,    ///< tiles of block_m query rows, of every query head
  kKeyTiles,    ///< tiles of block_n keys, of every key head
  kScoreTiles,  ///< tiles of block_m rows and block_n keys (keys fastest), of every query head
  kQueryHeads,  ///< one block for each query head
};

/// The part of a problem that a block of one launch works on.
struct RungTile {
  int block_m = 64;  ///< query rows
  int block_n = 64;  ///< keys
  int threads = 128;
  int smem_bytes = 0;  ///< dynamic; the kernel asserts that its SharedStorage has this size
  int min_blocks = 1;  ///< blocks that have to fit on a multiprocessor together
};

inline constexpr Field<RungTile> kRungFields[] = {
    {nullptr, "kThreads", number<&RungTile::threads>}, {nullptr, "kBlockM", number<&RungTile::block_m>},
    {nullptr, "kBlockN", number<&RungTile::block_n>},  {nullptr, "kSmemBytes", number<&RungTile::smem_bytes>},
    {nullptr, nullptr, unread<&RungTile::min_blocks>},
};
static_assert(covers<RungTile>(kRungFields));

/// One launch. Its Config is the facts' constants, those of the tile, and what `constants` adds.
struct Step {
  std::string function = {};  ///< template <class Config> __device__ void in the rung's file; empty: NAME_forward
  Grid grid = Grid::kRowTiles;
  RungTile tile = {};
  std::vector<Constant> constants = {};
  bool takes_maps = false;  ///< ForwardTmaArgs, else ForwardArgs or BackwardArgs
};

/// Which kernels a variant launches, in this order.
using StepsOf = std::vector<Step> (*)(const RungConfig&);

/// One rung. Its file is kernels/ladder/NN_name.cuh.
struct Rung {
  int number = 0;
  const char* name = "";                  ///< the same on the command line, in the file's name and in the tables
  const char* description = "";           ///< one line
  const char* backward_source = nullptr;  ///< of its gradients, where they have a file of their own, below kernels/
  std::vector<DType> dtypes = {DType::kF32};
  std::vector<int> head_dims = {};       ///< that it supports; empty: 1 to max_head_dim
  int max_head_dim = 128;                ///< where head_dims is empty
  bool any_head_dim_v = false;           ///< else head_dim_v has to be head_dim
  bool needs_alignment = false;          ///< addresses, rows and strides are multiples of 16 bytes
  bool folds_scale = false;              ///< wants scale > 0 and Facts::negate_scores
  bool deterministic_backward = true;    ///< bit-equal from run to run
  double tflops = 0;                     ///< of a whole H200 at large sizes: "auto" tries it; 0: a lesson alone
  int blocks_per_multiprocessor = 1;     ///< at that speed
  bool toolkit_headers = false;          ///< needs the CUDA toolkit's include folder (mma.h)
  std::size_t max_workspace = SIZE_MAX;  ///< bytes; problems that want more are refused
  bool Arch::*instructions = nullptr;    ///< that it uses; null: those that every architecture has
  StepsOf forward = nullptr;
  StepsOf backward = nullptr;                                ///< null: forward only
  std::size_t (*workspace)(const core::Problem&) = nullptr;  ///< bytes of the problem's pass; null: none
};

/// A rung on tensor cores: float16 and bfloat16, head_dim 64 and 128, loads of 16 bytes.
[[nodiscard]] Rung half_rung(int number, const char* name, const char* description, StepsOf forward);

/// Every rung that runs on a GPU, in order.
[[nodiscard]] std::span<const Rung> ladder();

// The tables.
[[nodiscard]] std::vector<Rung> simt_rungs();   ///< 01 to 07: rungs_simt.cpp
[[nodiscard]] std::vector<Rung> fa2_rungs();    ///< 08: rungs_fa2.cpp
[[nodiscard]] std::vector<Rung> mma_rungs();    ///< 09 to 15: rungs_mma.cpp
[[nodiscard]] std::vector<Rung> wgmma_rungs();  ///< 16 to 18: rungs_wgmma.cpp

}  // namespace attend::cuda
