// Computes p of a key tile while the product p v of the previous tile runs (Config::kTrails). So the exponentials of a
// warp overlap with its own products, and not only with those of other warps. p is kept in 16 bits until its product.
#pragma once

#include "sm80_weights.cuh"

namespace attend {

// Returns the values of tile n + 1, which is processed before tile n. The address is selected from two constants,
// because a computed address would occupy a register.
template <class Config>
[[nodiscard]] __device__ __forceinline__ const typename Sm80Storage<Config>::VTile& sm80_v_before(
    const Sm80Storage<Config>& smem, int n) {
  return n % kSm80Stages == 0 ? smem.stage[1].v : smem.stage[0].v;
}

// Packs p into operands. Afterwards the registers of s are free.
template <class Config>
__device__ __forceinline__ void sm80_pack_p(Sm80Rows<Config> (&rows)[Config::kRowGroups]) {
#pragma unroll
  for (int r = 0; r < Config::kRowGroups; ++r) {
#pragma unroll
    for (int i = 0; i < Config::kBlockN / kMmaDepth; ++i) {
      rows[r].p[i] = pack_operand_a<ElementOf<Config>>(rows[r].s + i * kMmaDepth / 2);
    }
  }
}

// Computes p of tile n, including the search for its row maxima.
template <class Config>
__device__ __forceinline__ void sm80_first_weights(Sm80Rows<Config> (&rows)[Config::kRowGroups],
                                                   Sm80Storage<Config>& smem, int n, bool is_whole) {
  sm80_scores(rows, smem, threadIdx.x, n, n, is_whole);
  follow_maxima(rows, smem.block.scale_log2);
}

// Starts this thread's copies of the keys of tile n - 1 and of the values of tile n. Tile n must be complete. The
// copies are issued one by one between other instructions, without a branch.
template <class Config>
class Sm80Sends {
  using Storage = Sm80Storage<Config>;
  static constexpr int kPieces = kSwizzleBytes / kChunkBytes;  // pieces in one row of a panel
  static constexpr int kRowStep = Config::kThreads / kPieces;
  static constexpr int kPanelsK = Sm80Shape<Config>::kWidthK / kPanelColumns;
  static constexpr int kPanelsV = Sm80Shape<Config>::kWidthV / kPanelColumns;
  static constexpr int kOfK = Config::kBlockN / kRowStep * kPanelsK;
  static constexpr int kOfV = Config::kBlockN / kRowStep * kPanelsV;

 public:
  static constexpr int kCount = kOfK + kOfV;
  static constexpr bool kApply = Config::kCopyBytes == 16 && Config::kColumnParts == 1 &&
                                 Config::kHeadDim % kPanelColumns == 0 && Config::kHeadDimV % kPanelColumns == 0 &&
                                 Config::kBlockN % kRowStep == 0;

  Sm80Sends() = default;
  __device__ __forceinline__ Sm80Sends(const ForwardArgs& args, Storage& smem, int n) {
    const uint32 thread = recomputed(threadIdx.x);
    const auto row = static_cast<int>(thread / kPieces);
    const auto piece = static_cast<int>(thread % kPieces);
    const int64 key = int64{n} * Config::kBlockN + row;
    has_k_ = n > smem.block.keys.tiles.begin;
    step_k_ = args.k_stride.row * kTileElementBytes;
    step_v_ = args.v_stride.row * kTileElementBytes;
    k_ = reinterpret_cast<const char*>(smem.block.keys.k) + (key - Config::kBlockN) * step_k_ + piece * kChunkBytes;
    v_ = reinterpret_cast<const char*>(smem.block.keys.v) + key * step_v_ + piece * kChunkBytes;
    const uint32 to = Storage::KTile::index(row, piece) * kChunkBytes;
    to_k_ = smem_address(smem.stage_of(n - 1).k.chunk) + to;
    to_v_ = smem_address(smem.stage_of(n).v.chunk) + to;
  }

  __device__ __forceinline__ void send(int i) const {
    if (i < kOfK) {
      const int row = i / kPanelsK * kRowStep, panel = i % kPanelsK;
      cp_async_16(to_k_ + (panel * Config::kBlockN + row) * kSwizzleBytes, k_ + row * step_k_ + panel * kSwizzleBytes,
                  has_k_);
    } else {
      const int row = (i - kOfK) / kPanelsV * kRowStep, panel = (i - kOfK) % kPanelsV;
      cp_async_16(to_v_ + (panel * Config::kBlockN + row) * kSwizzleBytes, v_ + row * step_v_ + panel * kSwizzleBytes);
    }
  }

 private:
  const char *k_, *v_;
  int64 step_k_, step_v_;  // distance in bytes from row to row
  uint32 to_k_, to_v_;
  bool has_k_;  // if false, the copies write zeros
};

// Computes s of tile n from k_tile. If Sm80Sends::kApply is set, also starts the copies of the next tiles between the
// products.
template <class Config>
__device__ __forceinline__ void sm80_scores_beside_sends(Sm80Rows<Config> (&rows)[Config::kRowGroups],
                                                         Sm80Storage<Config>& smem, const ForwardArgs& args, int n,
                                                         const typename Sm80Storage<Config>::KTile& k_tile) {
  using Sends = Sm80Sends<Config>;
  if constexpr (Sends::kApply) {
    constexpr int kBlocks = Sm80Shape<Config>::kDepth / kMmaDepth * (Sm80Shape<Config>::kKeysOfWarp / kMmaDepth);
    constexpr int kFirst = kBlocks / 8;  // number of products during which the addresses are computed
    constexpr int kLeft = kBlocks - kFirst;
    Sends sends;
    sm80_multiply_qk(rows, smem.q_or_o, k_tile, threadIdx.x, [&](int block) {
      const int at = block - kFirst;
      if (at < 0) return;
      if (at == 0) sends = Sends(args, smem, n);
#pragma unroll
      for (int i = at * Sends::kCount / kLeft; i < (at + 1) * Sends::kCount / kLeft; ++i) sends.send(i);
    });
    cp_async_commit();
  } else {
    sm80_multiply_qk(rows, smem.q_or_o, k_tile, threadIdx.x);
  }
}

// Computes s of tile n, which must be unmasked. Then computes o += p v of the previous tile, interleaved with the
// exponentials of tile n.
template <class Config>
__device__ __forceinline__ void sm80_weights_beside_pv(Sm80Rows<Config> (&rows)[Config::kRowGroups],
                                                       Sm80Storage<Config>& smem, const ForwardArgs& args, int n) {
  // Number of elements of p that a lane holds.
  constexpr int kCount = Config::kRowGroups * Config::kBlockN / 2;
  // Number of 16 x 16 blocks of v.
  constexpr int kBlocks = Config::kBlockN / kMmaDepth * (Sm80Shape<Config>::kColumnsV / kMmaDepth);
  sm80_scores_beside_sends(rows, smem, args, n, smem.stage_of(n).k);
  const float scale_log2 = smem.block.scale_log2;
  float base[Config::kRowGroups * kRowsOfThread];
  float sum[Config::kRowGroups * kRowsOfThread] = {};
#pragma unroll
  for (int i = 0; i < Config::kRowGroups * kRowsOfThread; ++i) {
    base[i] = rows[i / kRowsOfThread].softmax.row_max[i % kRowsOfThread] * scale_log2;
  }
  sm80_multiply_pv(rows, sm80_v_before(smem, n), [&](int block) {
#pragma unroll
    for (int i = block * kCount / kBlocks; i < (block + 1) * kCount / kBlocks; ++i) {
      const int r = i / (Config::kBlockN / 2);
      const int row = r * kRowsOfThread + i / 2 % 2;
      float& s = rows[r].s[i % (Config::kBlockN / 2)];
      s = exp2_fast(fmaf(s, scale_log2, -base[row]));
      sum[row] += s;
    }
  });
  bool serves = true;  // whether m was large enough; false for NaN
#pragma unroll
  for (int i = 0; i < Config::kRowGroups * kRowsOfThread; ++i) {
    serves &= sum[i] <= kLargestTileSum && rows[i / kRowsOfThread].softmax.can_fold(base[i]);
  }
  if (__all_sync(kAllLanes, serves)) {
#pragma unroll
    for (int i = 0; i < Config::kRowGroups * kRowsOfThread; ++i) {
      rows[i / kRowsOfThread].softmax.row_sum[i % kRowsOfThread] += sum[i];
    }
  } else {
    // The product is rarely computed again. The added zero keeps the compiler from holding its addresses in registers.
    const uint32 zero = smem.block.zero;
    sm80_multiply_qk(rows, smem.q_or_o, smem.stage_of(n + zero).k, threadIdx.x + zero);
    follow_maxima(rows, scale_log2);
  }
}

}  // namespace attend
