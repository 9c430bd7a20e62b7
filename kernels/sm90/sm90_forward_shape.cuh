// The numbers of sm90_forward that host and device must agree on: tiles, shared memory, threads, the list of tiles.
#pragma once

#include "../common/config_enums.cuh"
#include "../common/key_range.cuh"
#include "../common/portable.cuh"
#include "../common/smem_address.cuh"
#include "../common/work.cuh"

namespace attend {

// Which block works on which tiles.
enum class Sm90Schedule {
  kStatic,   // block b has tiles b, b + blocks, b + 2 blocks, ...
  kDynamic,  // whoever is free takes the next: Sm90ForwardArgs::next_tile
};

constexpr int kSm90RowsOfConsumer = 64;
constexpr int kSm90ThreadsOfGroup = 128;
constexpr int kSm90WorkSlots = 4;  // tiles that the producer has announced and a consumer has not left

// Sizes for a Config. `rounded` head_dims: those of the products, of which the tensors' may be short.
template <class Config>
struct Sm90Shape {
  static constexpr int kConsumers = Config::kConsumers;  // warpgroups
  static constexpr int kBlockM = kConsumers * kSm90RowsOfConsumer;
  static constexpr int kThreads = (1 + kConsumers) * kSm90ThreadsOfGroup;
  static constexpr int kQkSteps = (Config::kHeadDim + 15) / 16;  // products of depth 16
  static constexpr int kColumnsV = Config::kHeadDimV <= 64    ? 64
                                   : Config::kHeadDimV <= 96  ? 96
                                   : Config::kHeadDimV <= 128 ? 128
                                   : Config::kHeadDimV <= 192 ? 192
                                                              : 256;
  static constexpr int kPanelsQk = (Config::kHeadDim + kPanelColumns - 1) / kPanelColumns;
  static constexpr int kPanelsV = (kColumnsV + kPanelColumns - 1) / kPanelColumns;
  // With two buffers of q, o leaves by the copy engine from the place of its q. With one, threads store o themselves, so
  // that the next q can come as soon as the last scores are made.
  static constexpr bool kStagesO = Config::kQBuffers > 1;
  static constexpr int kPanelsQ = kStagesO && kPanelsV > kPanelsQk ? kPanelsV : kPanelsQk;
  static constexpr int kPanelBytesQ = kBlockM * kSwizzleBytes;
  static constexpr int kPanelBytesK = Config::kBlockN * kSwizzleBytes;
  static constexpr int kQBytes = kPanelsQ * kPanelBytesQ;
  static constexpr int kKBytes = kPanelsQk * kPanelBytesK;
  static constexpr int kVBytes = kPanelsV * kPanelBytesK;
  static constexpr int kBarriers = 2 * Config::kQBuffers + 4 * Config::kStages + 2 * kSm90WorkSlots + 1;
  static constexpr int kWorkBytes = 32;
  static constexpr int kSmemBytes = Config::kQBuffers * kQBytes + Config::kStages * (kKBytes + kVBytes) +
                                    kSm90WorkSlots * kWorkBytes + kBarriers * 8;
};

}  // namespace attend
