// Kernels of this library run on the CPU, for tests on machines without a GPU: the text of a kernel, whose asm
// statements are rewritten as calls (ptx.hpp), is compiled by the host's compiler and run a block after the other
// (threads.hpp). Bits differ from a GPU's where its arithmetic is approximate.
#pragma once

#include <string>
#include <vector>

#include "cuda/jit/kernel_spec.hpp"
#include "emulator/late_arrays.hpp"

namespace attend::test {

/// Why no kernel can be run here, for GTEST_SKIP(): there is no compiler that takes them. Empty: they can.
[[nodiscard]] const std::string& why_no_emulation();

/// A compiled kernel. It stays loaded; its text is gone, unless the environment has ATTEND_TEST_KEEP_COMPILED.
class EmulatedKernel {
 public:
  /// @throws std::runtime_error with the compiler's words where it refuses the text.
  explicit EmulatedKernel(const cuda::KernelSpec& spec);

  /// Runs the blocks [0, blocks) in their order. Shared memory is full of NaN before each.
  /// @param seed  decides the order in which threads run
  /// @throws std::runtime_error where a block wrote to more shared memory than the spec has
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
