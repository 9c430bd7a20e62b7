// Row tiles that are too few for the GPU: each has its keys cut into parts, a block has a part, and a merge follows.
// Source: Dao, Haziza, Massa & Sizov, Flash-Decoding for long-context inference (2023)
#pragma once

#include <cstdint>

#include "core/problem.hpp"
#include "cuda/launch/sm90_forward_variant.hpp"
#include "kernels/serving/merge_args.cuh"

namespace attend::cuda {

/// Parts of a row's keys, at most: the merge takes as many states.
constexpr std::int64_t kSm90MostSplits = kMergeStatesOfLaunch;

/// May the keys of the problem be split? Not where lists of tiles, lengths on the device or a logit of the row's own
/// say what a row sees, and not in a ring, whose pieces are merged by the kernel. Nor with a bias or a function of
/// scores: where it is -1e9 for a whole row, the parts' lse, rounded to float32, no longer say how many keys they have.
[[nodiscard]] bool sm90_forward_can_split(const core::Problem& p);

/// Bytes of the parts' o and lse in the workspace.
[[nodiscard]] std::int64_t sm90_forward_split_bytes(const core::Problem& p, std::int64_t splits);

/// Where the parts' o and lse lie: those of a part, as large as the problem's, follow those of the part before.
struct Sm90ForwardParts {
  float* o;
  float* lse;
  TensorStrides o_stride;
  TensorStrides lse_stride;

  [[nodiscard]] static Sm90ForwardParts of(const core::Problem& p, std::int64_t splits, void* memory);

  /// The merge of them into the problem's o and lse.
  [[nodiscard]] MergeArgs merge_args(const core::Problem& p, std::int64_t splits) const;
};

}  // namespace attend::cuda
