// The serving calls on a GPU. Tensors and arrays are in memory that host and GPU can both access.
#pragma once

#include "attend/serving.hpp"
#include "cuda/driver/driver_types.hpp"
#include "gpu/gpu.hpp"
#include "serving/append_and_decode.hpp"
#include "serving/cache_case.hpp"

namespace attend::test {

/// Returns the call with all tensors on GPU 0. compute becomes "auto" unless it names a GPU kernel.
[[nodiscard]] DecodeCall on_gpu(DecodeCall call, cuda::StreamHandle stream = nullptr);
[[nodiscard]] AppendCall on_gpu(AppendCall call, cuda::StreamHandle stream = nullptr);

/// Returns functions that each wait for the GPU.
[[nodiscard]] ServingCalls gpu_calls();

/// Returns a decode that waits for the GPU and uses "decode" (one kernel for all rows) or "sm90_forward" (on Hopper,
/// another kernel for sequences with many query rows).
[[nodiscard]] Decode gpu_decode_by(std::string_view compute);

/// A decode call with outputs that live as long as the object, for graphs and for calls that are not waited for.
class GpuDecode {
 public:
  explicit GpuDecode(const CacheCase& problem);

  void submit(cuda::StreamHandle stream) const { decode(on_gpu(call_, stream)); }

  /// Returns the bytes of o, then of lse, as they are now.
  [[nodiscard]] std::vector<std::byte> bytes() const;
  /// Fills both outputs with NaN.
  void poison() const;

 private:
  TensorBuffer o_, lse_;
  DecodeCall call_;
};

}  // namespace attend::test
