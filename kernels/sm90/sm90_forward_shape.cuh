// The numbers of sm90_forward that host and device must agree on: tiles, shared memory, threads, the list of tiles.
#pragma once

#include "../common/config_enums.cuh"
#include "../common/key_range.cuh"
#include "../common/portable.cuh"
#include "../common/smem_address.cuh"
#include "../common/work.cuh"

namespace attend {

constexpr int kSm90RowsOfConsumer = 64;
constexpr int kSm90ThreadsOfGroup = 128;
constexpr int kSm90WorkSlots = 4;  // tiles that the producer has announced and a consumer has not left

// The numbers that decide the sizes. Methods, not constants, so that the host may ask before there is a Config.
struct Sm90ForwardTile {
  int head_dim;    // of q and k
  int head_dim_v;  // of v and o
  int consumers;   // warpgroups, 64 query rows each
  int block_n;     // keys
  int stages;      // buffers of k, and of v
  int q_buffers;   // of q

  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int block_m() const { return consumers * kSm90RowsOfConsumer; }
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int threads() const { return (1 + consumers) * kSm90ThreadsOfGroup; }
  // Columns of the products with v, of which the last may not exist.
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int columns_v() const {
    return head_dim_v <= 64 ? 64 : head_dim_v <= 96 ? 96 : head_dim_v <= 128 ? 128 : head_dim_v <= 192 ? 192 : 256;
  }
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int panels_qk() const {
    return (head_dim + kPanelColumns - 1) / kPanelColumns;
  }
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int panels_v() const {
    return (columns_v() + kPanelColumns - 1) / kPanelColumns;
  }
  // With two buffers of q, o leaves by the copy engine from the place of its q. With one, threads store o themselves, so
  // that the next q can come as soon as the last scores are made.
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr bool stages_o() const { return q_buffers > 1; }
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int panels_q() const {
    return stages_o() && panels_v() > panels_qk() ? panels_v() : panels_qk();
  }
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int q_bytes() const { return panels_q() * block_m() * kSwizzleBytes; }
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int k_bytes() const { return panels_qk() * block_n * kSwizzleBytes; }
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int v_bytes() const { return panels_v() * block_n * kSwizzleBytes; }
  // Of Sm90Storage: the tiles, the slots of work and the barriers, in whole atoms of the swizzle.
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int smem_bytes() const {
    const int barriers = 2 * q_buffers + 4 * stages + 2 * kSm90WorkSlots + 1;
    const int bytes = q_buffers * q_bytes() + stages * (k_bytes() + v_bytes()) + kSm90WorkSlots * 32 + barriers * 8;
    return (bytes + kSwizzleAtom - 1) / kSwizzleAtom * kSwizzleAtom;
  }
};

// The same for a Config.
template <class Config>
struct Sm90Shape {
  static constexpr Sm90ForwardTile kTile = {Config::kHeadDim, Config::kHeadDimV, Config::kConsumers,
                                            Config::kBlockN,  Config::kStages,   Config::kQBuffers};
  static constexpr int kConsumers = Config::kConsumers;
  static constexpr int kBlockM = kTile.block_m();
  static constexpr int kThreads = kTile.threads();
  static constexpr int kQkSteps = (Config::kHeadDim + 15) / 16;  // products of depth 16
  static constexpr int kColumnsV = kTile.columns_v();
  static constexpr int kPanelsQk = kTile.panels_qk();
  static constexpr int kPanelsV = kTile.panels_v();
  static constexpr bool kStagesO = kTile.stages_o();
  static constexpr int kPanelBytesQ = kBlockM * kSwizzleBytes;
  static constexpr int kPanelBytesK = Config::kBlockN * kSwizzleBytes;
  static constexpr int kQBytes = kTile.q_bytes();
  static constexpr int kKBytes = kTile.k_bytes();
  static constexpr int kVBytes = kTile.v_bytes();
  static constexpr int kSmemBytes = kTile.smem_bytes();
};

}  // namespace attend
