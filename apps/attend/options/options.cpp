#include "options/options.hpp"

namespace attend::cli {

const char* mode_name(Mode mode) noexcept {
  switch (mode) {
    case Mode::kForward:
      return "forward";
    case Mode::kBackward:
      return "backward";
    case Mode::kBoth:
      return "both";
  }
  return "?";
}

Params AttentionOptions::params(std::string_view compute) const {
  return {.scale = scale,
          .causal = causal,
          .window_left = window_left,
          .window_right = window_right,
          .softcap = softcap,
          .dropout_p = dropout_p,
          .seed = seed,
          .offset = offset,
          .compute = compute};
}

}  // namespace attend::cli
