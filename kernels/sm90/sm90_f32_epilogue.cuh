// Writes o / l and lse of the 64 query rows of a consumer of sm90_f32_forward from registers to memory.
#pragma once

#include "../attention/row_end.cuh"
#include "sm90_epilogue.cuh"
#include "sm90_f32_softmax.cuh"

namespace attend {

// Stores o of the thread's two rows. Each row is multiplied by its factor.
template <class Config>
__device__ __forceinline__ void f32_store_o(const Sm90ForwardArgs& args, const Sm90Work& work, const Sm90Rows& rows,
                                            const float (&factor)[kRowsOfThread],
                                            const float (&o)[Sm90F32Shape<Config>::kOutputs]) {
#pragma unroll
  for (int h = 0; h < kRowsOfThread; ++h) {
    const int row = rows.mine + h * kRowHalf;
    if (row >= work.seqlen_q) continue;
    const int first = accumulator_column(rows.thread);
    float* to = static_cast<float*>(args.base.o) +
                work.template span<Config>().query_offset(args.base.o_stride, work.head, row) + first;
#pragma unroll
    for (int column = 0; column < Config::kHeadDimV; column += kColumnsOfTile) {
      const int i = column / 2 + 2 * h;
      const float a = o[i] * factor[h], b = o[i + 1] * factor[h];
      if constexpr (Config::kAligned) {  // head_dim_v is a multiple of 4
        if (first + column < Config::kHeadDimV) *reinterpret_cast<float2*>(to + column) = make_float2(a, b);
      } else {
        if (first + column < Config::kHeadDimV) to[column] = a;
        if (first + column + 1 < Config::kHeadDimV) to[column + 1] = b;
      }
    }
  }
}

// Stores the result of rows that see no key: o = 0, and lse = -inf or the head's logit.
template <class Config>
__device__ __forceinline__ void f32_store_nothing_seen(const Sm90ForwardArgs& args, const Sm90Work& work,
                                                       const Sm90Rows& rows) {
  const float zeros[Sm90F32Shape<Config>::kOutputs] = {};
  f32_store_o<Config>(args, work, rows, {0.0f, 0.0f}, zeros);
  const float lse = row_end<Config>(args, work).lse(-kInfinity);
  store_lse<Config>(args, work, rows, {lse, lse});
}

template <class Config>
__device__ __forceinline__ void f32_store_rows(const Sm90ForwardArgs& args, const Sm90Work& work, const Sm90Rows& rows,
                                               const F32Softmax<Config>& softmax,
                                               const float (&o)[Sm90F32Shape<Config>::kOutputs]) {
  const float of_keys[kRowsOfThread] = {softmax.lse(0), softmax.lse(1)};
  const auto end = row_end<Config>(args, work);
  store_lse<Config>(args, work, rows, {end.lse(of_keys[0]), end.lse(of_keys[1])});
  f32_store_o<Config>(args, work, rows,
                      {end.factor(softmax.inverse_sum(0), of_keys[0]), end.factor(softmax.inverse_sum(1), of_keys[1])},
                      o);
}

}  // namespace attend
