// Maps the mask type of a kernel's Config to a WindowMask. Only this file defines the mapping.
#pragma once

#include "../common/config_enums.cuh"
#include "../common/portable.cuh"
#include "key_range.cuh"

namespace attend {

// Returns the WindowMask. window_left and window_right are the caller's values, which only MaskKind::kWindow reads.
template <class Config>
[[nodiscard]] ATTEND_HOST_DEVICE constexpr WindowMask window_of(int64 seqlen_q, int64 seqlen_k,
                                                                int64 window_left = kOpenWindow,
                                                                int64 window_right = kOpenWindow) {
  WindowMask window = {seqlen_q, seqlen_k, kOpenWindow, kOpenWindow};
  if constexpr (Config::kMask == MaskKind::kCausal) window.window_right = 0;
  if constexpr (Config::kMask == MaskKind::kWindow) {
    window.window_left = window_left;
    window.window_right = window_right;
  }
  return window;
}

}  // namespace attend
