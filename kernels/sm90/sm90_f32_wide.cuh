// sm90_f32_wide: computes the heads that sm90_f32_forward skips, with the code of simt_forward. Two float16 pieces
// cannot represent the numbers of these heads, because they contain infinities, NaN, or numbers of very different
// magnitude (sm90_f32_split.cuh). Thread blocks of other heads exit at once.
#pragma once

#include "../simt/simt_forward.cuh"
#include "sm90_f32_args.cuh"

namespace attend {

template <class Config>
__device__ void sm90_f32_wide(const Sm90F32WideArgs& args) {
  const auto work = SimtForwardWork<Config>::mine(args.base);
  const uint32 head_k = work.head / (args.base.num_heads_q / args.base.num_heads_k);
  if (__ldg(args.wide + work.sequence * args.base.num_heads_k + head_k) != 0) simt_forward<Config>(args);
}

}  // namespace attend
