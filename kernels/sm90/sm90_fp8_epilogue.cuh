// Writes o and lse of the 64 query rows of a consumer of sm90_fp8_forward from registers to memory.
#pragma once

#include "sm90_epilogue.cuh"
#include "sm90_fp8_softmax.cuh"

namespace attend {

// Stores o of the thread's two rows. Each row is multiplied by its factor. All lanes of the warp must call it.
template <class Config>
__device__ __forceinline__ void fp8_store_o(const Sm90ForwardArgs& args, const Sm90Work& work, const Sm90Rows& rows,
                                            const float (&factor)[kRowsOfThread],
                                            const float (&o)[Sm90Fp8Shape<Config>::kOutputs]) {
  if constexpr (Config::kElement == ElementType::kF32) {
#pragma unroll
    for (int h = 0; h < kRowsOfThread; ++h) {
      const int row = rows.mine + h * kRowHalf;
      if (row >= work.seqlen_q) continue;
      float* to = static_cast<float*>(args.base.o) +
                  work.template span<Config>().query_offset(args.base.o_stride, work.head, row) +
                  accumulator_column(rows.thread);
#pragma unroll
      for (int column = 0; column < Config::kHeadDimV; column += kColumnsOfTile) {
        const int i = column / 2 + 2 * h;
        *reinterpret_cast<float2*>(to + column) = make_float2(o[i] * factor[h], o[i + 1] * factor[h]);
      }
    }
  } else {
    uint32 pair[Sm90Fp8Shape<Config>::kOutputs / 2];
#pragma unroll
    for (int i = 0; i < Sm90Fp8Shape<Config>::kOutputs / 2; ++i) {
      pair[i] = ElementOf<Config>::pack(o[2 * i] * factor[i % 2], o[2 * i + 1] * factor[i % 2]);
    }
    store_o_directly<Config>(args, work, rows, pair);
  }
}

// Stores the result of rows that see no key: o = 0, and lse = -inf.
template <class Config>
__device__ __forceinline__ void fp8_store_nothing_seen(const Sm90ForwardArgs& args, const Sm90Work& work,
                                                       const Sm90Rows& rows) {
  const float zeros[Sm90Fp8Shape<Config>::kOutputs] = {};
  fp8_store_o<Config>(args, work, rows, {0.0f, 0.0f}, zeros);
  store_lse<Config>(args, work, rows, {-kInfinity, -kInfinity});
}

// p_sum has the sum of the rounded p of each row, and v_unit is the descale of v.
template <class Config>
__device__ __forceinline__ void fp8_store_rows(const Sm90ForwardArgs& args, const Sm90Work& work, const Sm90Rows& rows,
                                               const Fp8Softmax<Config>& softmax, float v_unit,
                                               const float (&p_sum)[kRowsOfThread],
                                               const float (&o)[Sm90Fp8Shape<Config>::kOutputs]) {
  store_lse<Config>(args, work, rows, {softmax.lse(0), softmax.lse(1)});
  fp8_store_o<Config>(args, work, rows, {inverse_or_zero(p_sum[0]) * v_unit, inverse_or_zero(p_sum[1]) * v_unit}, o);
}

}  // namespace attend
