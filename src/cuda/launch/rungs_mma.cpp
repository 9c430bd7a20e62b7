// Rungs 09 to 15: float16 and bfloat16 on tensor cores, with the instructions that Ampere brought.
//
// One table of tiles serves all architectures: no block takes more than the 99 KB that sm_120 has.
#include "cuda/launch/ladder.hpp"

namespace attend::cuda {
namespace {

constexpr unsigned kElementBytes = 2;
constexpr unsigned kFloatBytes = 4;

bool has_cp_async(const Arch& arch) {
  return arch.cp_async;
}

std::vector<Step> warp_wmma_forward(const RungConfig& config) {
  constexpr unsigned kRows = 16, kKeys = 32;  // a fragment's rows; a lane for each key
  const auto d = static_cast<unsigned>(config.head_dim);
  return {{.function = "warp_wmma_forward",
           .block_m = kRows,
           .block_n = kKeys,
           .threads = 32,
           .smem_bytes = (kRows + 2 * kKeys) * d * kElementBytes +       // Q, K, V
                         kRows * kKeys * (kFloatBytes + kElementBytes) +  // S, P
                         kRows * d * kFloatBytes}};                       // O
}

std::vector<Step> block_wmma_forward(const RungConfig& config) {
  constexpr unsigned kRows = 64, kKeys = 64;  // 96 KB at head_dim 128
  const auto d = static_cast<unsigned>(config.head_dim);
  return {{.function = "block_wmma_forward",
           .block_m = kRows,
           .block_n = kKeys,
           .threads = 128,
           .smem_bytes = (kRows + 2 * kKeys) * d * kElementBytes +  // Q, K, V
                         kRows * kKeys * kFloatBytes +              // S, and P over it
                         kRows * d * kFloatBytes}};                 // O
}

std::vector<Step> wmma_row_block_forward(const RungConfig& config) {
  constexpr unsigned kRows = 128, kKeys = 64;  // 96 KB at head_dim 128
  const auto d = static_cast<unsigned>(config.head_dim);
  return {{.function = "wmma_row_block_forward",
           .block_m = kRows,
           .block_n = kKeys,
           .threads = 256,
           .smem_bytes = (kRows + 2 * kKeys) * d * kElementBytes +  // Q, K, V
                         kRows * kKeys * kFloatBytes}};              // S, and P over it
}

Rung half_rung(int number, const char* name, const char* description, const char* source,
               std::vector<Step> (*forward)(const RungConfig&)) {
  return {.number = number,
          .name = name,
          .description = description,
          .source = source,
          .dtypes = {DType::kF16, DType::kBF16},
          .head_dims = {64, 128},
          .alignment = 16,
          .supports = has_cp_async,
          .forward = forward};
}

Rung wmma_rung(int number, const char* name, const char* description, const char* source,
               std::vector<Step> (*forward)(const RungConfig&)) {
  Rung rung = half_rung(number, name, description, source, forward);
  rung.toolkit_headers = true;
  return rung;
}

}  // namespace

std::vector<Rung> mma_rungs() {
  return {
      wmma_rung(9, "warp_wmma", "rung 09: tensor cores through wmma, one warp a block", "ladder/09_warp_wmma.cuh",
                warp_wmma_forward),
      wmma_rung(10, "block_wmma", "rung 10: four warps share K and V, products divided by columns",
                "ladder/10_block_wmma.cuh", block_wmma_forward),
      wmma_rung(11, "wmma_row_block", "rung 11: a warp owns its rows, O stays in registers",
                "ladder/11_wmma_row_block.cuh", wmma_row_block_forward),
  };
}

}  // namespace attend::cuda
