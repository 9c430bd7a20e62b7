// Helpers shared by the GPU tests.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "attend/tensor.hpp"
#include "cuda/driver/driver.hpp"
#include "cuda/driver/shared_library.hpp"
#include "support/attention_case.hpp"

namespace attend::test {

/// Returns the reason why no GPU can be tested, or an empty string if there is a GPU.
[[nodiscard]] const std::string& missing_gpu();

/// Skips each test if there is no GPU. Otherwise gives TensorBuffers memory that host and GPU can both access.
class GpuTest : public testing::Test {
 protected:
  void SetUp() override;
};

/// Skips the test if the GPU is older than Ampere.
class AmpereTest : public GpuTest {
 protected:
  void SetUp() override;
};

/// Skips the test if the GPU does not have Hopper's warpgroup instructions.
class HopperTest : public GpuTest {
 protected:
  void SetUp() override;
};

/// Names the instances of a test suite by their index.
inline const auto kIndexName = [](const auto& test) { return std::to_string(test.index); };

/// Returns whether the backend supports the forward of the case on this GPU, according to the library.
[[nodiscard]] bool supports(std::string_view compute, const Inputs& in);

/// Compares a backend with the reference by compare_with_reference(), prints one line, and adds the comparison to the
/// report.
void check_backend(std::string_view compute, const Inputs& in);

/// Compiles the kernels that the backend needs for the cases, using all cores. Test processes that run parts of the
/// cases then load the kernels from disk. @param max_smem_per_block bytes of shared memory per block to assume, or 0
/// for the GPU's own value
void compile_ahead(std::string_view compute, const std::vector<AttentionCase>& cases, int max_smem_per_block = 0);

/// Returns a function of libcuda that the library itself does not load.
template <class Function>
Function driver_function(const char* name) {
  static const cuda::SharedLibrary library("libcuda", {cuda::driver().path}, "");
  return reinterpret_cast<Function>(library.require(name));
}

/// Captures the work that `submit` puts on the stream into a graph. The device's context must be current.
class CapturedGraph {
 public:
  CapturedGraph(cuda::StreamHandle stream, const std::function<void()>& submit);
  ~CapturedGraph();
  CapturedGraph(const CapturedGraph&) = delete;
  CapturedGraph& operator=(const CapturedGraph&) = delete;

  void launch() { launch_on(stream_); }
  void launch_on(cuda::StreamHandle stream);

 private:
  cuda::StreamHandle stream_;
  void* graph_ = nullptr;
  void* exec_ = nullptr;
};

}  // namespace attend::test
