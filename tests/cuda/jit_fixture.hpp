// What the tests of the run-time compiler share: a small kernel, a folder of their own, and the question whether there
// is a compiler.
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

/// Empty where NVRTC is there (on the usual paths, or in the project's .venv-nvrtc), else why not.
[[nodiscard]] std::string why_no_nvrtc();

/// A kernel that compiles in no time: kernels/ is `folder`/kernels, and writes `value` somewhere.
class JitTest : public testing::Test {
 protected:
  JitTest();

  /// Another value is another variant.
  [[nodiscard]] static cuda::KernelSpec tiny_spec(int value = 1, const std::string& arch = "sm_90a");

  /// A compiler that starts with an empty memory, as in a new process. What it prints is added to `printed`.
  [[nodiscard]] std::unique_ptr<cuda::Jit> new_jit();
  [[nodiscard]] std::unique_ptr<cuda::Jit> new_jit(const std::filesystem::path& cache_root);

  /// Files below the cache, in order of their names.
  [[nodiscard]] std::vector<std::filesystem::path> entries() const;

  TempFolder folder_;
  const std::filesystem::path kernels_ = folder_ / "kernels";
  const std::filesystem::path cache_ = folder_ / "cache";
  std::vector<std::string> printed_;
};

/// The same, skipped where there is no NVRTC.
class NvrtcTest : public JitTest {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_nvrtc(); !why.empty()) GTEST_SKIP() << why;
  }
};

/// What ptxas says of a kernel, as launches compile it; a failure for each of its warnings.
[[nodiscard]] cuda::Resources compiled_without_warnings(const cuda::KernelSpec& spec);

}  // namespace attend::test
