// Helpers shared by the tests of the run-time compiler: a small kernel, a temporary folder, and a check whether NVRTC
// is installed.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "cuda/jit/jit.hpp"
#include "cuda/jit/kernel_spec.hpp"
#include "cuda/jit/ptxas_log.hpp"
#include "io/temp_folder.hpp"

namespace attend::test {

/// Returns the reason why NVRTC cannot be found, or an empty string if it is found. Searches the usual paths and the
/// project's .venv-nvrtc.
[[nodiscard]] std::string why_no_nvrtc();

/// Provides a small kernel that compiles quickly. Its sources are in `folder`/kernels. The kernel writes `value` to
/// memory.
class JitTest : public testing::Test {
 protected:
  JitTest();

  /// Returns the spec of the small kernel. Each value gives a separate variant.
  [[nodiscard]] static cuda::KernelSpec tiny_spec(int value = 1, const std::string& arch = "sm_90a");

  /// Returns a compiler without compiled kernels in memory, as in a new process. Its output is added to `printed`.
  [[nodiscard]] std::unique_ptr<cuda::Jit> new_jit();
  [[nodiscard]] std::unique_ptr<cuda::Jit> new_jit(const std::filesystem::path& cache_root);

  /// Returns the files in the cache, sorted by name.
  [[nodiscard]] std::vector<std::filesystem::path> entries() const;

  TempFolder folder_;
  const std::filesystem::path kernels_ = folder_ / "kernels";
  const std::filesystem::path cache_ = folder_ / "cache";
  std::vector<std::string> printed_;
};

/// Like JitTest, but skips the test if NVRTC is not installed.
class NvrtcTest : public JitTest {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_nvrtc(); !why.empty()) GTEST_SKIP() << why;
  }
};

/// Compiles a kernel as a launch does. Returns the resource use that ptxas reports. Each warning fails the test.
[[nodiscard]] cuda::Resources compiled_without_warnings(const cuda::KernelSpec& spec);

}  // namespace attend::test
