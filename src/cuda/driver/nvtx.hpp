// NVTX: named ranges on the time line of a profiler (Nsight Systems). Its library is looked for at the first range, and
// only where a tool has started the process (it sets NVTX_INJECTION64_PATH) or ATTEND_NVTX_PATH names the library (a
// file, a folder, or the root of a Python environment). Else, and where a tool is there without the library, a range is
// one comparison. Where ATTEND_NVTX_PATH names none, the first range throws.
#pragma once

#include <string>

namespace attend::cuda {

/// A range of this thread from here to the end of its life. Ranges nest.
class NvtxRange {
 public:
  /// @param describe  gives the name; called only where somebody listens
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
