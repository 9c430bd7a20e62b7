// sm90_f32_split: writes each of the float32 tensors q, k and v as two float16 pieces for sm90_f32_forward:
//   x = unit * (high + low),   high = float16(x / unit),   low = float16(x / unit - high)
//
// Work     A thread block converts 64 rows of q, or kBlockN rows of k or v, of one head. `unit` is the power of two
//          that scales the largest |x| of these rows to [2^14, 2^15). float16 overflows at 2^16.
// Bounds   |x - unit (high + low)| <= max(2^-23 |x|, 2^-40 max |x|), where the second maximum is taken over the block.
//          `high` has 11 bits. `low` adds 11 bits and a sign. 2^-25 is half of the smallest float16 number.
// Wide     In two cases two pieces are not enough. In the first case, the largest |x| of a block is not finite or not
//          between 2^-48 and 2^49. In the second case, the largest |x| of some row or column is not 0, but below 2^-16
//          of the largest |x| of its block. Some results would then have fewer than 24 bits: scores of that row,
//          outputs of rows that see only such keys, outputs of that column, or scores to which a tiny column of q and a
//          huge column of k contribute. The kernel marks these heads as wide, and sm90_f32_wide.cuh computes them.
// Called   by the backend 'sm90_f32_forward', before its main kernel.
// Source   Ootomo and Yokota, Recovering single precision accuracy from Tensor Cores (2022)
#pragma once

#include "../attention/sequence.cuh"
#include "../attention/work.cuh"
#include "../common/element.cuh"
#include "../common/warp_reduce.cuh"
#include "sm90_f32_args.cuh"
#include "sm90_f32_shape.cuh"

namespace attend {

// The rows of a tensor that a thread block converts.
struct F32Source {
  const float* data;  // first row of the block
  int64 row_stride;
  int rows;  // number of rows of the block that exist
};

// The memory to which a thread block writes pieces.
struct F32Target {
  unsigned short* high;  // high piece of the block's first row
  int64 low_offset;      // distance in elements from a high piece to its low piece
  float* unit;
  uint32* wide;
};

// A block of kRows rows and kColumns columns of float32 numbers, in registers.
template <int kRows, int kColumns, bool kAligned>
struct F32Block {
  static constexpr int kVector = 4;
  static constexpr int kLanes = kColumns <= 32 ? 8 : kColumns <= 64 ? 16 : 32;  // number of lanes that share a row
  static constexpr int kVectors = (kColumns + kVector * kLanes - 1) / (kVector * kLanes);
  static constexpr int kRowsAtOnce = kF32SplitThreads / kLanes;
  static constexpr int kSteps = kRows / kRowsAtOnce;
  static constexpr int kWarps = kF32SplitThreads / kWarpThreads;
  static constexpr uint32 kMagnitude = 0x7fffffff;
  static constexpr int kExponentBits = 23, kBias = 127;
  static constexpr int kTop = 14;        // floor(log2) of the largest high piece
  static constexpr int kMostRange = 48;  // limit of |floor(log2 x)| for the largest x
  static constexpr int kMostSpread =
      16;  // limit of log2 of the ratio of the block's maximum to that of a row or column
  static_assert(kRows % kRowsAtOnce == 0);
  float value[kSteps][kVectors][kVector];

  [[nodiscard]] static __device__ __forceinline__ int row(int step) {
    return step * kRowsAtOnce + static_cast<int>(threadIdx.x) / kLanes;
  }
  [[nodiscard]] static __device__ __forceinline__ int column(int vector) {
    return (vector * kLanes + static_cast<int>(threadIdx.x) % kLanes) * kVector;
  }

  __device__ __forceinline__ void load(const F32Source& from) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int n = 0; n < kVectors; ++n) {
        float(&to)[kVector] = value[step][n];
        const int first = column(n);
        const float* at = from.data + row(step) * from.row_stride + first;
        to[0] = to[1] = to[2] = to[3] = 0.0f;
        if (row(step) >= from.rows || first >= kColumns) continue;
        if constexpr (kAligned) {
          const float4 four = __ldg(reinterpret_cast<const float4*>(at));
          to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
        } else {
#pragma unroll
          for (int i = 0; i < kVector; ++i) {
            if (first + i < kColumns) to[i] = __ldg(at + i);
          }
        }
      }
    }
  }

  // Returns the bits of the largest magnitude in a row. As unsigned integers, the bits of infinity exceed those of all
  // finite numbers, and the bits of NaN exceed those of infinity.
  [[nodiscard]] __device__ __forceinline__ uint32 row_largest(int step) const {
    uint32 largest = 0;
#pragma unroll
    for (int n = 0; n < kVectors; ++n) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) largest = max(largest, __float_as_uint(value[step][n][i]) & kMagnitude);
    }
#pragma unroll
    for (int distance = kLanes / 2; distance > 0; distance /= 2) {
      largest = max(largest, __shfl_xor_sync(kAllLanes, largest, distance));
    }
    return largest;
  }

  // Writes the bits of the largest magnitude of each column, over the rows of this warp.
  __device__ __forceinline__ void store_column_largest(uint32 (&to)[kVectors * kLanes * kVector]) const {
#pragma unroll
    for (int n = 0; n < kVectors; ++n) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        uint32 largest = 0;
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
          largest = max(largest, __float_as_uint(value[step][n][i]) & kMagnitude);
        }
#pragma unroll
        for (int distance = kLanes; distance < kWarpThreads; distance *= 2) {
          largest = max(largest, __shfl_xor_sync(kAllLanes, largest, distance));
        }
        if (threadIdx.x % kWarpThreads < kLanes) to[column(n) + i] = largest;
      }
    }
  }

  // Bits of the largest magnitude in the block, and of the smallest maximum of a row or column. Rows and columns of
  // zeros do not count for the latter.
  struct Extent {
    uint32 largest;
    uint32 smallest;

    __device__ __forceinline__ void add(const Extent& other) {
      largest = max(largest, other.largest);
      smallest = min(smallest, other.smallest);
    }
    [[nodiscard]] __device__ __forceinline__ bool is_wide() const {
      if (largest == 0) return false;
      const int exponent = static_cast<int>(largest >> kExponentBits) - kBias;  // 128 for NaN and infinity
      if (exponent < -kMostRange || exponent > kMostRange) return true;
      return __uint_as_float(smallest) < __uint_as_float(largest - (kMostSpread << kExponentBits));
    }
    // Returns n. The numbers of the block are multiplied by 2^n before they are split, so the unit is 2^-n.
    [[nodiscard]] __device__ __forceinline__ int shift() const {
      return largest == 0 ? 0 : kTop + kBias - static_cast<int>(largest >> kExponentBits);
    }
  };
  [[nodiscard]] __device__ __forceinline__ Extent extent() const {
    __shared__ Extent of_warp[kWarps];
    __shared__ uint32 of_columns[kWarps][kVectors * kLanes * kVector];
    store_column_largest(of_columns[threadIdx.x / kWarpThreads]);
    Extent mine = {0, kMagnitude};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const uint32 largest = row_largest(step);
      mine.add({largest, smallest_of(largest)});
    }
#pragma unroll
    for (int distance = kLanes; distance < kWarpThreads; distance *= 2) {
      mine.add(
          {__shfl_xor_sync(kAllLanes, mine.largest, distance), __shfl_xor_sync(kAllLanes, mine.smallest, distance)});
    }
    if (threadIdx.x % kWarpThreads == 0) of_warp[threadIdx.x / kWarpThreads] = mine;
    __syncthreads();  // the values of all warps are written, so any thread may read them
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) mine.add(of_warp[warp]);
    mine.smallest = min(mine.smallest, smallest_column(of_columns));
    return mine;
  }

  // Returns the bits of a maximum for the search of the smallest. A row or column of zeros is never the smallest.
  [[nodiscard]] static __device__ __forceinline__ uint32 smallest_of(uint32 largest) {
    return largest == 0 ? kMagnitude : largest;
  }
  // Returns the bits of the smallest column maximum of the block.
  template <int kPadded>
  [[nodiscard]] static __device__ __forceinline__ uint32 smallest_column(const uint32 (&of_warps)[kWarps][kPadded]) {
    uint32 smallest = kMagnitude;
#pragma unroll
    for (int at = 0; at < kPadded; at += kWarpThreads) {
      uint32 largest = 0;
#pragma unroll
      for (int warp = 0; warp < kWarps; ++warp) {
        largest = max(largest, of_warps[warp][at + threadIdx.x % kWarpThreads]);
      }
      smallest = min(smallest, smallest_of(largest));
    }
#pragma unroll
    for (int distance = kWarpThreads / 2; distance > 0; distance /= 2) {
      smallest = min(smallest, __shfl_xor_sync(kAllLanes, smallest, distance));
    }
    return smallest;
  }

  // Returns 2^exponent. The result must be a normal number.
  [[nodiscard]] static __device__ __forceinline__ float power_of_two(int exponent) {
    return __uint_as_float(static_cast<uint32>(exponent + kBias) << kExponentBits);
  }

  __device__ __forceinline__ void store(float scale, const F32Target& to) const {
    constexpr int kPitch = f32_piece_pitch(kColumns);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int n = 0; n < kVectors; ++n) {
        if (column(n) >= kPitch) continue;
        uint32 high[kVector / 2], low[kVector / 2];
#pragma unroll
        for (int i = 0; i < kVector / 2; ++i) {
          const float a = value[step][n][2 * i] * scale, b = value[step][n][2 * i + 1] * scale;
          high[i] = Float16::pack(a, b);
          low[i] = Float16::pack(a - Float16::low(high[i]), b - Float16::high(high[i]));
        }
        unsigned short* at = to.high + static_cast<int64>(row(step)) * kPitch + column(n);
        *reinterpret_cast<uint2*>(at) = make_uint2(high[0], high[1]);
        *reinterpret_cast<uint2*>(at + to.low_offset) = make_uint2(low[0], low[1]);
      }
    }
  }

  static __device__ __forceinline__ void split(const F32Source& from, const F32Target& to) {
    F32Block block;
    block.load(from);
    const Extent extent = block.extent();
    const bool is_wide = extent.is_wide();  // if true, no kernel reads the pieces
    const int shift = is_wide ? 0 : extent.shift();
    if (threadIdx.x == 0) {
      *to.unit = power_of_two(-shift);
      if (is_wide) *to.wide = 1;
    }
    block.store(power_of_two(shift), to);
  }
};

// The rows of a thread block, with their sequence and head.
template <class Config>
struct F32SplitWork {
  SequenceSpan span;
  uint32 sequence;
  uint32 head;
  uint32 number;     // index of the block in its sequence
  uint32 num_heads;  // heads of the tensor
  uint32 batches;    // batch entries of the tensor

  [[nodiscard]] static __device__ __forceinline__ F32SplitWork of(const Sm90F32SplitArgs& args, uint32 index,
                                                                  uint32 blocks, uint32 num_heads) {
    const HeadTile at = HeadTile::of_block(index, blocks, num_heads);
    return {sequence_span<Config>(args.base, args.options, at.batch),
            at.batch,
            at.head,
            static_cast<uint32>(at.tile),
            num_heads,
            Config::kIsVarlen ? 1 : args.base.batch};
  }

  // A tensor to convert. `begin` and `length` describe the sequence in the tensor. F32Pieces describes `pieces`, `rows`
  // and `units`. This tensor uses every kStep-th element of `units`.
  struct Tensor {
    const void* data;
    const TensorStrides& stride;
    int64 begin;
    int64 length;
    unsigned short* pieces;
    int64 rows;
    float* units;
  };
  template <int kRows, int kColumns, int kStep>
  __device__ __forceinline__ void split(const Tensor& tensor, uint32* wide) const {
    constexpr int kPitch = f32_piece_pitch(kColumns);
    const int64 row = static_cast<int64>(number) * kRows;
    if (row >= tensor.length) return;
    const int64 of_head = static_cast<int64>(span.batch) * num_heads + head;
    const int64 first = row + (Config::kIsVarlen ? F32PieceRows::first(tensor.begin, sequence, kRows) : 0);
    const F32Source from = {
        static_cast<const float*>(tensor.data) + tensor.stride.offset(span.batch, head, tensor.begin + row),
        tensor.stride.row, static_cast<int>(min(tensor.length - row, int64{kRows}))};
    const F32Target to = {tensor.pieces + (of_head * tensor.rows + first) * kPitch,
                          static_cast<int64>(batches) * num_heads * tensor.rows * kPitch,
                          tensor.units + (of_head * tensor.rows + first) / kRows * kStep, wide};
    F32Block<kRows, kColumns, Config::kAligned>::split(from, to);
  }
};

// Grid: the blocks of q of all heads, followed by those of k and those of v.
template <class Config>
__device__ void sm90_f32_split(const Sm90F32SplitArgs& args) {
  static_assert(Config::kThreads == kF32SplitThreads);
  using Work = F32SplitWork<Config>;
  const ForwardArgs& base = args.base;
  const F32Pieces& pieces = args.pieces;
  const uint32 of_q = pieces.q_blocks * base.num_heads_q * base.batch;
  const uint32 of_k = pieces.k_blocks * base.num_heads_k * base.batch;
  if (blockIdx.x < of_q) {
    const Work work = Work::of(args, blockIdx.x, pieces.q_blocks, base.num_heads_q);
    const uint32 head_k = work.head / (base.num_heads_q / base.num_heads_k);
    work.template split<kSm90ConsumerRows, Config::kHeadDim, 1>(
        {base.q, base.q_stride, work.span.q_begin, work.span.seqlen_q, pieces.q, pieces.q_rows, pieces.q_units},
        pieces.wide + work.sequence * base.num_heads_k + head_k);
    return;
  }
  const bool is_v = blockIdx.x - of_q >= of_k;
  const Work work = Work::of(args, blockIdx.x - of_q - (is_v ? of_k : 0), pieces.k_blocks, base.num_heads_k);
  uint32* wide = pieces.wide + work.sequence * base.num_heads_k + work.head;
  if (is_v) {
    work.template split<Config::kBlockN, Config::kHeadDimV, 2>(
        {base.v, base.v_stride, work.span.k_begin, work.span.seqlen_k, pieces.v, pieces.k_rows, pieces.key_units + 1},
        wide);
  } else {
    work.template split<Config::kBlockN, Config::kHeadDim, 2>(
        {base.k, base.k_stride, work.span.k_begin, work.span.seqlen_k, pieces.k, pieces.k_rows, pieces.key_units},
        wide);
  }
}

}  // namespace attend
