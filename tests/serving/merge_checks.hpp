// Compares attend::merge with float64 on any device.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "attend/serving.hpp"
#include "support/tensor_buffer.hpp"

namespace attend::test {

/// Runs merge() on the tested device and returns when the device has finished.
using Merge = std::function<void(std::span<const PartialState>, const Tensor&, const Tensor*, const MergeParams&)>;

struct MergeCase {
  std::vector<DType> states = {DType::kF32};
  DType dtype = DType::kF32;
  Shape shape = {2, 3, 7, 40};
  Layout layout = Layout::kBHSD;
  double lse_size = 3;       // standard deviation of the random lse
  double share_of_none = 0;  // fraction of rows in each state that saw no key; their o is NaN
  bool sinks = false;
  bool sinks_per_batch = false;
  bool lse_base2 = false;
  bool with_lse = true;
  std::uint64_t seed = 1;
};

struct States {
  std::vector<TensorBuffer> o, lse;

  [[nodiscard]] std::vector<PartialState> views() const;
};

[[nodiscard]] States make_states(const MergeCase& c);

/// Returns cases with every number of states, every dtype and every option.
[[nodiscard]] std::vector<MergeCase> merge_cases();

void check_merge(const MergeCase& c, const Merge& merge);

// Checks of results that must keep their bits, and of numbers at the limits of float32.

void check_one_state_keeps_its_bits(const Merge& merge);
void check_merge_into_a_state(const Merge& merge);
void check_ends_of_float32(const Merge& merge);
void check_merge_of_nothing(const Merge& merge);

}  // namespace attend::test
