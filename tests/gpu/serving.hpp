// The serving calls on a GPU. Tensors and arrays are in memory that host and GPU can both access.
#pragma once

#include "attend/serving.hpp"
#include "cuda/driver/driver_types.hpp"
#include "gpu/gpu.hpp"
#include "serving/append_and_decode.hpp"
#include "serving/cache_case.hpp"

namespace attend::test {

/// Return the call with all tensors on GPU 0. The field `compute` becomes "auto" unless it names a GPU kernel.
[[nodiscard]] DecodeCall on_gpu(DecodeCall call, cuda::StreamHandle stream = nullptr);
[[nodiscard]] AppendCall on_gpu(AppendCall call, cuda::StreamHandle stream = nullptr);

/// Returns functions that make the serving calls on the GPU and wait for it.
[[nodiscard]] ServingCalls gpu_calls();

/// Returns a function that runs decode() with the given backend and waits for the GPU. "decode" uses one kernel for all
/// rows. "sm90_forward" uses another kernel for sequences with many query rows, on Hopper.
[[nodiscard]] Decode gpu_decode_by(std::string_view compute);

/// A decode call and its outputs. The outputs live as long as this object, so graphs and pending calls can use them.
class GpuDecode {
 public:
  explicit GpuDecode(const CacheCase& problem);

  void submit(cuda::StreamHandle stream) const { decode(on_gpu(call_, stream)); }

  /// Returns the current bytes of o, followed by those of lse.
  [[nodiscard]] std::vector<std::byte> bytes() const;
  /// Fills both outputs with NaN.
  void poison() const;

 private:
  TensorBuffer o_, lse_;
  DecodeCall call_;
};

}  // namespace attend::test
