// sm80_backward for unmodified scores: computes dq, dk and dv in one pass if the scores have no modification except
// masks.
//
// Shapes   as in sm80_backward.cuh, with d and d_v multiples of 8. All addresses are multiples of 16 bytes.
// Supports float16 and bfloat16, masks, packed sequences and grouped heads. Requires sm_80 or later. The order of the
//          additions to dq is not fixed.
// Work     A block owns a tile of keys and iterates over tiles of query rows, the streamed tiles. All warps store ds to
//          shared memory. After a barrier each warp computes a part of the product of ds and the block's keys
//          (sm80_backward_dq.cuh). If kRoles is kSm80KeysAndValues, a warp has 16 * kRowGroups keys and computes their
//          s, dp, dk and dv. If kRoles is kSm80KeysOrValues, half of the warps compute s and dv, and the other half dp
//          and dk of the same keys. The first half passes p to the second half in float. Each warp then has twice as
//          many keys, and loads half as many operands per product. If kParts is 2, two warps of a role share keys. Each
//          of them computes half of the streamed rows of s or dp, and half of the columns of its gradient.
// Memory   Sm80BackwardStorage. If kRoles is kSm80KeysAndValues, it holds ds of two tiles. If kRoles is
//          kSm80KeysOrValues, it holds ds of one tile, p in float, and also rounded p if warps share keys.
// Measured TFLOP/s for the shape (B, H, S, D) = (batch, heads, rows and keys, head_dim), on an H200 with CUDA 13.0 and
//          bfloat16. A backward pass counts 10 B H S^2 D operations. The kernel reaches 292 with a full mask and 280
//          with a causal mask for (2, 32, 8192, 64), 330 and 313 for (2, 16, 8192, 128), and 268 and 259 for (2, 8,
//          8192, 256). With the other value of kRoles, it reaches 258 at 128 columns and 231 at 64. No other GPU was
//          measured. Called by the backend 'sm80_backward' (src/cuda/launch/sm80_backward.cpp).
//          sm80_backward_variant.cpp chooses the tile sizes. Source Dao, FlashAttention-2 (2023), Algorithm 2
#pragma once

#include "sm80_backward_unmodified_keys.cuh"
#include "sm80_backward_unmodified_keys_values.cuh"
#include "sm80_backward_unmodified_values.cuh"

namespace attend {

// Adds dq of a head's last streamed tile. dq of each other tile is added while the next tile is processed.
template <class Config, class Role>
__device__ __forceinline__ void sm80_add_last_dq(Sm80BackwardStorage<Config>& smem, const BackwardOptionArgs& args) {
  const Sm80Range streamed = smem.block.streamed;
  if (streamed.begin < streamed.end) {
    const int last = (streamed.end - 1) / Config::kStreamed * Config::kStreamed;
    sm80_add_dq(smem.scores.tile[Role::last_ds_tile(last)], smem, args, last);
  }
}

// Runs the warps of one role over every query head that shares the keys. Afterwards the block's tiles hold the
// gradients.
template <class Role, class Config>
__device__ __forceinline__ void sm80_run_role(Role role, Sm80BackwardStorage<Config>& smem,
                                              const BackwardOptionArgs& args) {
  for (bool is_last = false; !is_last;) {
    sm80_wait_all<Config>(kSm80HeadBarrier);  // waits until the block's work is set
    const int begin = sm80_first_tile(smem.block);
    if (begin < smem.block.streamed.end) sm80_send_streamed(smem, args, begin, sm80_buffer<Config>(begin));
    cp_async_commit();
    role.add_head(smem, args);
    sm80_wait_all<Config>(kSm80HeadBarrier);  // waits until ds of the last tile is written
    sm80_add_last_dq<Config, Role>(smem, args);
    const uint32 next = smem.block.head + 1;
    is_last = next * args.base.num_heads_k == (smem.block.work.head + 1) * args.base.num_heads_q;
    // Waits until every warp has finished the head, so that its tiles and the block's work may be overwritten.
    sm80_wait_all<Config>(kSm80HeadBarrier);
    if (threadIdx.x == 0 && !is_last) Sm80BackwardBlock<Config>::set_head(smem.block, args, next);
  }
  // Waits for this thread's copies; copies of the owned rows may still be in flight if there was no streamed tile.
  cp_async_wait<0>();
  // Waits for the copies of all threads, so that the owned rows may be overwritten.
  sm80_wait_all<Config>(kSm80HeadBarrier);
  role.write(smem, args);
}

// Computes the gradients of one tile of kOwned keys. Sm80BackwardWork::mine() defines the grid.
template <class Config>
__device__ void sm80_backward_unmodified(const BackwardOptionArgs& args) {
  using Storage = Sm80BackwardStorage<Config>;
  static_assert(sizeof(Storage) == Config::kSmemBytes);
  static_assert(Config::kCopyBytes == kChunkBytes && !Config::kSumsDterms && kFoldsScale<Config> &&
                    !Score<Config>::kMasksFromMemory && !Score<Config>::kDrops,
                "nothing but masks between q.k and p");
  extern __shared__ __align__(kSwizzleAtom) unsigned char smem_bytes[];
  auto& smem = *reinterpret_cast<Storage*>(smem_bytes);

  const auto work = Sm80BackwardWork::mine<Config>(args.base);
  const SequenceSpan span = sequence_span<Config>(args.base, args.options, work.sequence);
  if (work.owned >= span.seqlen_k) return;  // the grid covers the longest packed sequence, and this one is shorter
  const uint32 head = work.head * (args.base.num_heads_q / args.base.num_heads_k);
  sm80_load_owned(smem, args, span, head, work.owned);
  Sm80BackwardBlock<Config>::make(smem.block, args, work, span, head);
  smem.pairs.init();
  if constexpr (Config::kRoles == kSm80KeysAndValues) {
    sm80_run_role(Sm80KeysAndValuesRole<Config>{}, smem, args);
  } else if (threadIdx.x < Config::kThreads / 2) {
    sm80_run_role(Sm80ValuesRole<Config>{}, smem, args);
  } else {
    sm80_run_role(Sm80KeysRole<Config>{}, smem, args);
  }
  __syncthreads();  // waits until all gradients are in the tiles
  sm80_store_key_tile(smem.owned, args.base.dk, args.base.dk_stride, smem.block, Config::kHeadDim);
  sm80_store_key_tile(smem.owned_v, args.base.dv, args.base.dv_stride, smem.block, Config::kHeadDimV);
}

}  // namespace attend
