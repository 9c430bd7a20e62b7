// Remembers the choices of "auto". A model repeats the same calls in every step, so a repeated call need not query
// every backend. Between the kernels of a small model that query is slow, because its code is no longer in the
// processor's caches.
#pragma once

#include <array>
#include <cstdint>

#include "core/backend.hpp"
#include "core/score_options.hpp"

namespace attend::dispatch {

/// All properties of a complete problem that determine the choice among GPU backends, as numbers; for addresses only
/// their alignment. Choices for a part of a larger problem (Problem::part) are not remembered.
class ProblemKey {
 public:
  ProblemKey() = default;  // empty key
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

/// Returns the calling thread's backend for problems with this key, or null if the key is unknown or was replaced.
[[nodiscard]] const core::Backend* remembered_choice(const ProblemKey& key);
void remember_choice(const ProblemKey& key, const core::Backend& backend);

}  // namespace attend::dispatch
