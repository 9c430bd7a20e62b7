// NVTX: named ranges on the time line of a profiler (Nsight Systems). The first range loads the library if a tool has
// started the process (the tool sets NVTX_INJECTION64_PATH) or if ATTEND_NVTX_PATH names the library (a file, a folder,
// or the root of a Python environment). Otherwise, or if the tool is present but the library is missing, a range costs
// one comparison. If ATTEND_NVTX_PATH names no usable library, the first range throws.
#pragma once

#include <string>

namespace attend::cuda {

/// A range of this thread, from the constructor to the destructor. Ranges nest.
class NvtxRange {
 public:
  /// @param describe  returns the name; called only if a tool listens
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
