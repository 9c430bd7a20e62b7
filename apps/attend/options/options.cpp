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
  Params params = {.scale = scale,
                   .causal = causal,
                   .window_left = window_left,
                   .window_right = window_right,
                   .seed = seed,
                   .offset = offset,
                   .compute = compute};
  for (std::size_t i = 0; i < score_numbers.size(); ++i) params.*core::kScoreNumbers[i].param = score_numbers[i];
  return params;
}

}  // namespace attend::cli
