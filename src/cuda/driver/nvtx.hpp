// NVTX: named ranges on the time line of a profiler (Nsight Systems). The first range loads the NVTX library if a
// profiler has started the process, or if ATTEND_NVTX_PATH is set. A profiler sets NVTX_INJECTION64_PATH.
// ATTEND_NVTX_PATH names the library: a file, a folder, or the root of a Python environment. If the library is not
// loaded or not found, a range costs only one comparison. If ATTEND_NVTX_PATH is set but no usable library is there,
// the first range throws an Error.
#pragma once

#include <string>

namespace attend::cuda {

/// A named range of this thread. It begins in the constructor and ends in the destructor. Ranges may be nested.
class NvtxRange {
 public:
  /// @param describe  function that returns the name; called only if a profiler records ranges
  template <class Describe>
  explicit NvtxRange(const Describe& describe) : listened_(is_listened()) {
    if (listened_) push(describe());
  }
  ~NvtxRange() {
    if (listened_) pop();
  }
  NvtxRange(const NvtxRange&) = delete;
  NvtxRange& operator=(const NvtxRange&) = delete;

 private:
  [[nodiscard]] static bool is_listened();
  static void push(const std::string& name);
  static void pop();

  bool listened_;
};

}  // namespace attend::cuda
