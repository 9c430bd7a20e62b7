// A modification of scores in the caller's own words, as a problem carries it: source text and captured tensors.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "attend/tensor.hpp"
#include "kernels/attention/score_mods.cuh"

namespace attend::core {

/// It applies after the options of kernels/attention/score_mods.cuh and before masks. No backend takes one yet: all of
/// them refuse it.
struct CustomScore {
  /// CUDA C++ that takes the place of kernels/attention/custom_score.cuh in the program of a kernel.
  std::string source;
  /// Of the source: two problems with equal digests take the same kernels.
  std::array<std::int32_t, 4> digest = {};
  /// Its effects on a score, which tile choices and kernels ask for.
  ScoreModTraits traits = {};
  /// Tensors that the source reads, kMostCaptured at most, on the device of q. No key has their values or addresses.
  std::vector<Tensor> captured = {};
  static constexpr std::size_t kMostCaptured = 8;
  /// On a GPU: the same as an array of CapturedTensor in its memory.
  const CapturedTensor* captured_on_device = nullptr;
};

}  // namespace attend::core
