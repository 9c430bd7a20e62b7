// Runs the library's kernels on the CPU, for tests on machines without a GPU. The emulator replaces a kernel's asm
// statements by function calls (ptx.hpp). The host's compiler compiles the resulting text, and the blocks run one after
// another (threads.hpp). Results differ from those of a GPU if the GPU's arithmetic is approximate.
#pragma once

#include <string>
#include <vector>

#include "cuda/jit/kernel_spec.hpp"
#include "emulator/late_arrays.hpp"

namespace attend::test {

/// Returns the reason why no kernel can run here, for GTEST_SKIP(). Returns an empty string if the machine has a
/// suitable compiler.
[[nodiscard]] const std::string& why_no_emulation();

/// A compiled kernel. It stays loaded until the process ends. The source of the kernel is deleted unless
/// ATTEND_TEST_KEEP_COMPILED is set.
class EmulatedKernel {
 public:
  /// Compiles the kernel. @throws std::runtime_error with the compiler's messages if compilation fails.
  explicit EmulatedKernel(const cuda::KernelSpec& spec);

  /// Runs the blocks [0, blocks) in order. Shared memory is filled with NaN before each block.
  /// @param seed  selects the order in which threads run
  /// @throws std::runtime_error if a block writes beyond the shared memory of the spec
  void launch(const void* args, unsigned blocks, unsigned seed,
              const std::vector<emulated::LateArray>& late = {}) const;

 private:
  using Launch = bool (*)(const void* args, unsigned blocks, unsigned threads, unsigned seed,
                          emulated::LateArrays late);
  std::string name_;
  Launch launch_ = nullptr;
  unsigned threads_ = 0;
};

}  // namespace attend::test
