// The calls for serving on a GPU, as its tests make them. Tensors and arrays lie in memory that host and GPU both see.
#pragma once

#include "attend/serving.hpp"
#include "cuda/driver/driver_types.hpp"
#include "gpu/gpu.hpp"
#include "serving/append_and_decode.hpp"
#include "serving/cache_case.hpp"

namespace attend::test {

/// The call with all its tensors on GPU 0, and of whatever computes there.
[[nodiscard]] DecodeCall on_gpu(DecodeCall call, cuda::StreamHandle stream = nullptr);
[[nodiscard]] AppendCall on_gpu(AppendCall call, cuda::StreamHandle stream = nullptr);

/// Each of them waits for the GPU.
[[nodiscard]] ServingCalls gpu_calls();

/// Likewise decode, by "decode" (all rows by one kernel) or "sm90_forward" (long rows by another one, on Hopper).
[[nodiscard]] Decode gpu_decode_by(std::string_view compute);

/// A decode call with outputs of its own, which are there as long as it is: for graphs and calls that nobody waits for.
class GpuDecode {
 public:
  explicit GpuDecode(const CacheCase& problem);

  void submit(cuda::StreamHandle stream) const { decode(on_gpu(call_, stream)); }

  /// Both outputs as they are now, o first.
  [[nodiscard]] std::vector<std::byte> bytes() const;
  /// Makes NaN of both.
  void poison() const;

 private:
  TensorBuffer o_, lse_;
  DecodeCall call_;
};

}  // namespace attend::test
