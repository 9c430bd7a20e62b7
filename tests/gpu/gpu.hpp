// What the tests on a GPU share.
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

/// Why there is no GPU to test on; empty where there is one.
[[nodiscard]] const std::string& missing_gpu();

/// Skips every test of the binary where there is no GPU, and gives TensorBuffers memory that host and GPU both see.
class GpuTest : public testing::Test {
 protected:
  void SetUp() override;
};

/// Skips where the GPU is older than Ampere.
class AmpereTest : public GpuTest {
 protected:
  void SetUp() override;
};

/// Skips where the GPU has not Hopper's warpgroup instructions.
class HopperTest : public GpuTest {
 protected:
  void SetUp() override;
};

/// Names the instances of a suite by their numbers.
inline const auto kIndexName = [](const auto& test) { return std::to_string(test.index); };

/// Does the backend support the case, forward, on this GPU? Asks the library itself.
[[nodiscard]] bool supports(std::string_view compute, const Inputs& in);

/// Compares a backend with the reference (compare_with_reference), prints a line, and keeps it for the report.
void check_backend(std::string_view compute, const Inputs& in);

/// Compiles what the backend needs for the cases, on all cores: processes that share the cases then find it on disk.
/// max_smem_per_block: as if the GPU had no more, in bytes; 0: what it has.
void compile_ahead(std::string_view compute, const std::vector<AttentionCase>& cases, int max_smem_per_block = 0);

/// A function of libcuda that only tests need.
template <class Function>
Function driver_function(const char* name) {
  static const cuda::SharedLibrary library("libcuda", {cuda::driver().path}, "");
  return reinterpret_cast<Function>(library.require(name));
}

/// What `submit` puts on the stream, as a graph. Wants the device's context current.
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
