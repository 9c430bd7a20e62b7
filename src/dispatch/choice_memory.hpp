// What "auto" took for problems like this one, so that a model's calls, alike step after step, do not ask every backend
// each time: between a small model's kernels that code is in no cache.
#pragma once

#include <array>
#include <cstdint>

#include "core/backend.hpp"
#include "core/score_options.hpp"

namespace attend::dispatch {

/// All of a whole problem that a choice among a GPU's backends may depend on, as numbers; of addresses only what they
/// are multiples of. No choice is remembered for a part of a larger problem (Problem::part).
class ProblemKey {
 public:
  ProblemKey() = default;  // of nothing
  explicit ProblemKey(const core::Problem& p);
  [[nodiscard]] bool operator==(const ProblemKey& other) const;
  [[nodiscard]] std::uint64_t hash() const;

 private:
  static constexpr std::size_t kNumbersOfTensor = 9, kMostOthers = 28 + core::CustomScore::kMostCaptured;
  static constexpr std::size_t kMostTensors =
      10 + 2 * core::kScoreTensors.size() + 2 * core::CustomScore::kMostCaptured;

  void add(std::int64_t number) { numbers_.at(count_++) = number; }
  void add(const Tensor& t);
  void add(const std::optional<Tensor>& t);

  std::size_t count_ = 0;
  std::array<std::int64_t, kNumbersOfTensor * kMostTensors + kMostOthers> numbers_;  // the first count_ are set
};

/// The calling thread's backend for problems with this key; null where it has none, or not any more.
[[nodiscard]] const core::Backend* remembered_choice(const ProblemKey& key);
void remember_choice(const ProblemKey& key, const core::Backend& backend);

}  // namespace attend::dispatch
