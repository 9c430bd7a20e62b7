// Computes one row of append: norm, rotation and rounding. A warp handles a row, which stays in shared memory until it
// is stored.
#pragma once

#include "../common/warp_reduce.cuh"
#include "append_args.cuh"
#include "rows.cuh"

namespace attend {

// Computes rows of k, v or q. Config: kThreads, and kColumns, which is the largest number of columns of a row.
template <class Config>
class AppendRow {
 public:
  __device__ __forceinline__ AppendRow(const AppendArgs& args, const AppendPart& part)
      : args_(args), part_(part), cols_(static_cast<int>(part.cols)), memory_(memory_of_warp()) {
    if (!normalises()) return;
#pragma unroll 1
    for (int col = lane(); col < cols_; col += kWarpThreads) memory_.weight[col] = number(part.norm, col);
  }

  [[nodiscard]] __device__ __forceinline__ bool rotates() const {
    return part_.rotates != 0;
  }

  // Loads row `at` of cos and sin, which the following rows use.
  __device__ __forceinline__ void set_position(int64 at) {
    __syncwarp();  // waits until all lanes have read the values of the previous position, which may then be overwritten
    const int half = static_cast<int>(args_.rotary_dim) / 2;
#pragma unroll 2
    for (int c = lane(); c < half; c += kWarpThreads) {
      memory_.cos[c] = number(args_.cos, at * args_.cos.row_stride + c);
      memory_.sin[c] = number(args_.sin, at * args_.sin.row_stride + c);
    }
  }

  // Computes and writes a row. All lanes call it together. `to` and `from` may point to the same row.
  __device__ __forceinline__ void write(void* to, const void* from, float descale) {
    const bool is_copy = !normalises() && !rotates() && part_.to.element == part_.from.element;
    if (is_copy) return copy_row(part_.to, to, part_.from, from, cols_);
    load_row(memory_.row, part_.from, from, cols_);
    __syncwarp();  // waits until the row, the weights, cos and sin are written; all lanes may then read them
    if (normalises()) normalise();
    if (rotates()) rotate();
    store_row(part_.to, to, memory_.row, cols_, descale);
    __syncwarp();  // waits until the row has been read; it may then be overwritten
  }

 private:
  static constexpr int kSums = 16;  // number of running sums of squares, the same as on every SIMD target of the CPU

  struct Memory {
    alignas(16) float row[Config::kColumns];
    float weight[Config::kColumns];
    float cos[Config::kColumns / 2];
    float sin[Config::kColumns / 2];
  };

  [[nodiscard]] static __device__ __forceinline__ int lane() {
    return static_cast<int>(threadIdx.x) % kWarpThreads;
  }
  [[nodiscard]] static __device__ __forceinline__ Memory& memory_of_warp() {
    __shared__ Memory memory[Config::kThreads / kWarpThreads];
    return memory[threadIdx.x / kWarpThreads];
  }
  [[nodiscard]] static __device__ __forceinline__ float number(const TableArgs& table, int64 at) {
    return load_number(table.data, static_cast<StoredElement>(table.element), at);
  }

  [[nodiscard]] __device__ __forceinline__ bool normalises() const {
    return part_.norm.data != nullptr;
  }

  // Computes x / sqrt(mean(x^2) + eps) * weight for the row. The two halves of the warp compute the same sum.
  __device__ __forceinline__ void normalise() {
    float sum = 0;
#pragma unroll 4
    for (int col = lane() % kSums; col < cols_; col += kSums) {
      sum = __fadd_rn(sum, __fmul_rn(memory_.row[col], memory_.row[col]));
    }
#pragma unroll
    for (int distance = kSums / 2; distance > 0; distance /= 2) {
      sum = __fadd_rn(sum, __shfl_xor_sync(kAllLanes, sum, distance));
    }
    const float mean = __fdiv_rn(sum, static_cast<float>(cols_));
    const float factor = __frcp_rn(__fsqrt_rn(__fadd_rn(mean, args_.norm_eps)));
    __syncwarp();  // waits until all lanes have read the columns, which are overwritten next
#pragma unroll 1
    for (int col = lane(); col < cols_; col += kWarpThreads) {
      memory_.row[col] = __fmul_rn(__fmul_rn(memory_.row[col], factor), memory_.weight[col]);
    }
    __syncwarp();  // waits until the other lanes' columns are written; they may then be read
  }

  // Rotates the pairs of columns. One lane computes the two columns of a pair.
  __device__ __forceinline__ void rotate() {
    const int half = static_cast<int>(args_.rotary_dim) / 2;
    const bool interleaved = args_.is_interleaved != 0;
    float* x = memory_.row + args_.first_column;
#pragma unroll 1
    for (int c = lane(); c < half; c += kWarpThreads) {
      float& first = x[interleaved ? 2 * c : c];
      float& second = x[interleaved ? 2 * c + 1 : half + c];
      const float a = first, b = second, cos = memory_.cos[c], sin = memory_.sin[c];
      first = __fsub_rn(__fmul_rn(a, cos), __fmul_rn(b, sin));
      second = __fadd_rn(__fmul_rn(b, cos), __fmul_rn(a, sin));
    }
    __syncwarp();  // waits until the other lanes' columns are written; they may then be read
  }

  const AppendArgs& args_;
  const AppendPart& part_;
  const int cols_;
  Memory& memory_;
};

}  // namespace attend
